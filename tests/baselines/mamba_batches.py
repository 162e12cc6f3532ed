"""What the random batches of all Mamba operators have in common."""

import torch
from hypothesis import strategies as st


def entries_moved(operator, point, x, table, requests):
    """(table entries that the slots of the first ``requests`` rows come from, elements written), counted one by one."""
    table.copy_(torch.arange(table.numel(), dtype=torch.int32).view(table.shape))
    expected = operator.reference(point, x)
    slots = [expected[name].value[:requests].tolist() for name in ("input_slots", "output_slots") if name in expected]
    written = (
        e.value.numel() - int((e.untouched if e.may_vary is None else e.untouched | e.may_vary).sum())
        for e in expected.values()
    )
    return sum(len(set().union(*rows)) for rows in zip(*slots, strict=True)), sum(written)


def check_requests(point, x):
    """Tokens and lengths are those of requests, and zero in rows of padding: (tokens by row, which rows are real)."""
    rows, live = torch.diff(x.query_start_loc), x.seq_lens > 0
    assert bool(((rows == 0) == ~live).all())
    assert bool((x.seq_lens >= rows).all())
    assert int(x.seq_lens.max()) <= point.max_model_len
    assert 1 <= int(x.num_accepted_tokens.min()) <= int(x.num_accepted_tokens.max()) <= 1 + point.num_speculative_blocks
    return rows, live


batches = st.builds(
    lambda axes, k, row: axes | {"num_speculative_blocks": k, "max_decode_len": min(row, k + 1)},
    st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 10),
            "decode_len": st.sampled_from(["uniform", "ragged", "mixed"]),
            "padding": st.sampled_from([0.0, 0.2, 0.7]),
            "context_len": st.one_of(st.integers(1, 90), st.just({"uniform": [1, 90]})),
            "mamba_block_size": st.sampled_from([1, 2, 3, 4, 16, 33, 1024]),
            "acceptance": st.sampled_from([0.0, 0.3, 0.8, 1.0]),
        }
    ),
    st.sampled_from([1, 2, 3, 5]),
    st.integers(1, 6),
)
