"""dcp_lengths of vLLM 0.33: its kernel, and the function that launches it."""

from __future__ import annotations

from collections.abc import Callable

from spec_decode_bench.baselines.dcp_lengths.operator import Inputs, Outputs, rank_of
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.upstream._vllm import Definitions

CODE = Definitions("v1/worker/gpu/cp_utils.py", "_dcp_local_seq_lens_kernel", "prepare_dcp_local_seq_lens")
#: Rows of a program, as vLLM launches it.
BLOCK_SIZE = 128


@variant("dcp_lengths", requires=CODE.need)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernel."""
    kernel, rows, rank = CODE()._dcp_local_seq_lens_kernel, point.max_num_seqs, rank_of(point)
    grid, ranks = (cdiv(rows, BLOCK_SIZE),), (point.cp_size, rank, point.cp_interleave)

    def launch() -> None:
        kernel[grid](out.local_seq_lens, x.seq_lens, *ranks, x.num_reqs, rows, BLOCK_SIZE)

    return launch


@variant("dcp_lengths", requires=CODE.need)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's prepare_dcp_local_seq_lens, as the model runner and the speculator call it."""
    call, ranks = CODE().prepare_dcp_local_seq_lens, (point.cp_size, rank_of(point), point.cp_interleave)

    def launch() -> None:
        call(out.local_seq_lens, x.seq_lens, x.num_reqs, *ranks, num_reqs_padded=point.batch_size)

    return launch
