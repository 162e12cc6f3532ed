"""Rows of a step by request slot: how many programs share a row."""

import pytest

from spec_decode_bench.baselines.step_inputs.operator import operator
from spec_decode_bench.baselines.workloads.request_slots import longest_row, row_tiling, warps_per_row


@pytest.mark.parametrize(("tokens", "programs", "warps"), [(4, 1, 1), (100, 2, 4), (2**23, 65535, 65535)])
def test_a_row_has_no_more_programs_than_a_grid_may(tokens, programs, warps):
    point = operator.complete({"batch_size": 1, "prefills": 1, "prefill_len": tokens, "max_decode_len": 1})
    assert longest_row(point) == tokens
    assert row_tiling(point)[1] == programs
    assert warps_per_row(point) == warps
