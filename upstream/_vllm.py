"""What the variants of vLLM's step share: where its files are, and what puts state where its kernels change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl

from spec_decode_bench.harness.engine_launch import own
from spec_decode_bench.harness.launch import fixed_launch
from spec_decode_bench.harness.packages import file_in
from spec_decode_bench.upstream._kernel_source import definitions

BLOCK_TABLE = "v1/worker/gpu/block_table.py"
BUFFERS = "v1/worker/gpu/buffer_utils.py"
INPUT_BATCH = "v1/worker/gpu/input_batch.py"
REJECTION = "v1/worker/gpu/spec_decode/rejection_sampler.py"
SPECULATOR = "v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py"
HYBRID = "v1/worker/gpu/model_states/mamba_hybrid.py"
MAMBA = "v1/worker/mamba_utils.py"

#: Arguments of kernels that a supported version of a file has.
_MARKS = {
    BLOCK_TABLE: "MASK_SLIDING_WINDOW",
    INPUT_BATCH: "LOOKAHEAD_BLOCK",
    SPECULATOR: "ADVANCE_DRAFT_POSITIONS",
}
COLUMNS = 256
ALIGNED = "table addresses are promised to be multiples of 16 bytes; vLLM's are"


class Definitions:
    """Definitions of a file of vLLM, loaded by the first call. given: makes what they use beside each other, torch,
    numpy and Triton.
    """

    def __init__(self, file: str, *names: str, given: Callable[[], Mapping[str, Any]] = dict) -> None:
        self._file, self._names, self._given = file, names, given

    @property
    def need(self) -> str:
        """An entry of ``requires``."""
        mark = f"#{_MARKS[self._file]}" if self._file in _MARKS else ""
        return f"vllm:{self._file}::{','.join(self._names)}{mark}"

    def __call__(self) -> SimpleNamespace:
        return self._loaded

    @cached_property
    def _loaded(self) -> SimpleNamespace:
        # vLLM asserts a GPU where Triton's interpreter would do.
        asserts = torch.cuda.is_available()
        return definitions(file_in("vllm", self._file), self._names, asserts=asserts, **self._given())


def needs(*used: Definitions) -> tuple[str, ...]:
    """``requires`` of a variant that uses these."""
    return tuple(one.need for one in used)


def needs_of(modules: Sequence[ModuleType]) -> tuple[str, ...]:
    """``requires`` of a variant that is made of those of other modules."""
    return tuple(dict.fromkeys(need for module in modules for need in module.NEEDS))


def with_kernels(*names: str) -> tuple[str, ...]:
    """Functions and the kernels that they launch."""
    return (*(f"_{name}_kernel" for name in names), *names)


#: What reads an address out of a table of them.
LOAD_PTR = Definitions(BUFFERS, "_load_ptr")


def load_ptr() -> dict[str, Any]:
    return vars(LOAD_PTR())


def addresses(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """uint64, on the device of the tensors."""
    return torch.tensor([one.data_ptr() for one in tensors], dtype=torch.uint64, device=tensors[0].device)


@triton.jit(do_not_specialize=["width"])
def copy_slots_kernel(idx_mapping, source, target, width, COLUMNS: tl.constexpr):
    s = tl.load(idx_mapping + tl.program_id(0))
    for first in range(0, tl.where(s < 0, 0, width), COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        tl.store(target + s * width + column, tl.load(source + s * width + column, mask=column < width), column < width)


def state_of_slots(
    idx_mapping: torch.Tensor, source: torch.Tensor | None, target: torch.Tensor | None
) -> Callable[[], None] | None:
    """Copies the state of a batch's slots to where a kernel changes it in place; None where it is there already, as
    in a decode loop.
    """
    if source is None or source.data_ptr() == target.data_ptr() or not len(idx_mapping):
        return None
    grid, width = (len(idx_mapping),), source[0].numel()
    return own(fixed_launch(copy_slots_kernel, grid, idx_mapping, source, target, width, COLUMNS=COLUMNS))


def state_of_rows(source: torch.Tensor, target: torch.Tensor) -> Callable[[], None] | None:
    """The same by row of the batch: ``source`` goes to the first rows of ``target``."""
    if source.data_ptr() == target.data_ptr():
        return None
    rows = target[: len(source)]
    return own(lambda: rows.copy_(source))
