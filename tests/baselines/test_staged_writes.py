"""staged_writes: a worked example, and what the writes of every step have in common."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_decode_bench.baselines.staged_writes.operator import Inputs, operator
from spec_decode_bench.baselines.workloads.request_slots import group_tables
from tests.baselines.random_batches import drawn, int32, legal_point, run_examples


def test_worked_example():
    """Slot 2 gets a row of three blocks in group 0 and of two in group 1; slot 0 one block more in both."""
    axes = {"batch_size": 2, "prefills": 1, "prefill_len": 12, "growth": 1.0, "max_num_seqs": 3, "num_groups": 2}
    point = legal_point(
        operator, axes | {"group_blocks": "mixed", "block_size": 4, "max_model_len": 16, "context_len": 9}
    )
    x = Inputs(
        contents=int32(7, 8, 9, 5, 3, 4, 6),
        starts=torch.tensor([0, 12]),
        widths=torch.tensor([4, 2]),
        group_ids_device=int32(0, 0, 1, 1),
        indices_device=int32(2, 0, 2, 0),
        write_starts_device=int32(0, 3, 0, 1),
        cu_lens_device=int32(3, 4, 6, 7),
    )
    expected = operator.reference(point, x)["tables"]
    shown = torch.where(expected.untouched, -1, expected.value)
    first, second = (table.tolist() for table in group_tables(point, shown))
    assert first == [[-1, -1, -1, 5], [-1, -1, -1, -1], [7, 8, 9, -1]]
    assert second == [[-1, 6], [-1, -1], [3, 4]]


batches = st.fixed_dictionaries(
    {
        "batch_size": st.integers(2, 20),
        "max_num_seqs": st.integers(20, 30),
        "context_len": st.builds(lambda top: {"uniform": [1, top]}, st.integers(1, 400)),
        "max_model_len": st.just(400),
        "prefills": st.integers(0, 2),
        "prefill_len": st.integers(1, 400),
        "growth": st.sampled_from([0.1, 0.5, 1.0]),
        "block_size": st.integers(1, 70),
        "num_groups": st.integers(1, 4),
        "group_blocks": st.sampled_from(["same", "mixed"]),
        "memory": st.sampled_from(["device", "uva"]),
        "contents": st.sampled_from(["random", "last_columns", "large_ids"]),
    }
)


@run_examples(200)
@given(axes=batches, seed=st.integers(0, 2**32 - 1))
def test_no_write_is_empty_passes_its_row_or_meets_another(axes, seed):
    point, x = drawn(operator, axes, seed)
    lens = torch.diff(x.cu_lens, prepend=int32(0))
    assert (lens > 0).all()
    assert int(x.cu_lens[-1]) == len(x.contents)
    assert (x.write_starts + lens <= x.widths[x.group_ids.long()]).all()
    assert (torch.diff(x.group_ids) >= 0).all()
    assert len(set(zip(x.group_ids.tolist(), x.indices.tolist(), strict=True))) == len(lens)
    expected = operator.reference(point, x)["tables"]
    assert expected.value[~expected.untouched].sort().values.equal(x.contents.sort().values)
