"""step_epilogue: what holds between its parts."""

from hypothesis import given
from hypothesis import strategies as st

from spec_decode_bench.baselines.step_epilogue.operator import operator
from tests.baselines.random_batches import drawn, run_examples, steps

SMALL = {"max_model_len": 300, "max_num_seqs": 9, "max_num_batched_tokens": 100, "history_len": 40}


random_steps = steps(
    300,
    rows=7,
    next_n=st.sampled_from([1, 2, 4, 7]),
    prefill_len=st.integers(1, 40),
    acceptance=st.sampled_from([0.0, 0.5, 1.0]),
    penalties=st.sampled_from(["off", "on"]),
    vocab_size=st.sampled_from([1, 60]),
    memory=st.sampled_from(["device", "uva"]),
    states=st.sampled_from(["no", "yes"]),
    mamba_block_size=st.sampled_from([1, 16, 1024]),
)


@run_examples(60)
@given(axes=random_steps, seed=st.integers(0, 2**32 - 1))
def test_the_drafter_goes_on_where_the_request_is(axes, seed):
    """The last kept token stands at the request's count, the token behind it is the newest one of its history."""
    point, x = drawn(operator, SMALL | axes, seed)
    got = {name: e.value for name, e in operator.reference(point, x).items()}
    history = got["all_token_ids_device" if point.memory == "device" else "all_token_ids_host"]
    for b, s in enumerate(x.idx_mapping.tolist()):
        if s < 0:
            continue
        end = int(got["last_token_indices"][b])
        assert got["positions"][end] == got["num_computed_tokens"][s] - 1
        if got["num_sampled"][b] > 0:
            assert got["input_ids"][end] == history[s, got["total_len"][s] - 1] == got["last_sampled_tokens"][s]
        else:
            assert got["input_ids"][end] == x.next_prefill_tokens[s]
