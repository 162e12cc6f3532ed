"""staged_writes of vLLM 0.33: its kernel, with a program of 1,024 ids for every write and part of one.

The methods that launch it copy lists of the host into pinned memory first, which are inputs here.
"""

from __future__ import annotations

from collections.abc import Callable

from spec_decode_bench.baselines.staged_writes.operator import Inputs, Outputs, longest_write
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import group_tables
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.upstream._vllm import BUFFERS, LOAD_PTR, Definitions, addresses, load_ptr, needs

CODE = Definitions(BUFFERS, "_apply_write_kernel", given=load_ptr)
#: Ids that a program copies, as vLLM launches it.
BLOCK_SIZE = 1024


@variant("staged_writes", requires=needs(CODE, LOAD_PTR))
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernel: of one group on its table, of several through a list of addresses."""
    kernel, tables, several = CODE()._apply_write_kernel, group_tables(point, out.tables), point.num_groups > 1
    grid = (len(x.cu_lens), cdiv(longest_write(point), BLOCK_SIZE))
    target, strides = (addresses(tables), x.widths) if several else (tables[0], tables[0].stride(0))
    writes = x.indices, x.write_starts, x.contents, x.cu_lens, x.group_ids if several else None

    def launch() -> None:
        kernel[grid](target, strides, *writes, BLOCK_SIZE=BLOCK_SIZE, MULTI_GROUP=several)

    return launch
