"""mamba_state_gather from PyTorch operators: in every layer as vLLM 0.22 runs it, once per step, compiled; and the
historic bugs of such chains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from spec_decode_bench.baselines.mamba_state_gather.operator import Inputs, Outputs, operator
from spec_decode_bench.baselines.workloads import mamba_steps as mamba
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def gather_both(
    x: Inputs, prev_step: torch.Tensor, offsets: torch.Tensor, input_slots: torch.Tensor, output_slots: torch.Tensor
) -> None:
    """Two adds, two gathers, into rows [B, 1 + k] of both outputs."""
    # The sizes are equal; with this torch.compile knows it and fuses both gathers.
    torch._check(len(prev_step) == len(x.block_idx_last_scheduled_token))
    mamba.gather_into(input_slots, x.state_indices, prev_step[:, None] + offsets)
    mamba.gather_into(output_slots, x.state_indices, x.block_idx_last_scheduled_token[:, None] + offsets)


def _repeated(
    point: Point,
    x: Inputs,
    out: Outputs,
    times: int,
    gather: Callable[..., None] = gather_both,
    prev_step: torch.Tensor | None = None,
) -> Callable[[], None]:
    # int64: every torch release accepts it as an index, and adding it to an int32 column converts in the same launch.
    offsets = torch.arange(mamba.slots_per_step(point), device=x.state_indices.device)
    rows = out.views(point)
    first = x.block_idx_last_scheduled_token_prev_step if prev_step is None else prev_step

    def launch() -> None:
        for _ in range(times):
            gather(x, first, offsets, rows["input_slots"], rows["output_slots"])

    return launch


def _once(
    point: Point,
    x: Inputs,
    out: Outputs,
    gather: Callable[..., None] = gather_both,
    prev_step: torch.Tensor | None = None,
) -> Callable[[], None]:
    return _repeated(point, x, out, 1, gather, prev_step)


@variant("mamba_state_gather", waives="no_alloc")
def per_layer_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Two adds and two gathers in every layer, as vLLM 0.22 runs them."""
    return _repeated(point, x, out, times=point.num_layers)


@variant("mamba_state_gather", waives="no_alloc")
def hoisted_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same four launches once per step."""
    return _once(point, x, out)


#: A general batch first; then a table without space between its rows and one request, which are compiled separately.
_EXAMPLES = (
    {"batch_size": BUSY_BATCH, "table_padding": 3},
    {"batch_size": BUSY_BATCH},
    {"batch_size": 1},
)


@variant("mamba_state_gather", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the hoisted chain."""
    return _once(point, x, out, compiled(gather_both, _once, operator, _EXAMPLES, x.state_indices.device))


# --- historic defects -------------------------------------------------------------------------------------------------


@variant(
    "mamba_state_gather",
    defect="one tensor is returned as input and output slots (first version of vLLM #39809)",
    waives="no_alloc",
)
def same_tensor(point: Point, x: Inputs, out: Outputs) -> Callable[[], Mapping[str, torch.Tensor]]:
    chain, rows = _once(point, x, out), out.views(point)

    def launch() -> Mapping[str, torch.Tensor]:
        chain()
        return {"input_slots": rows["output_slots"], "output_slots": rows["output_slots"]}

    return launch


@variant(
    "mamba_state_gather",
    defect="states are read from the column of the last computed token (vLLM 0.22)",
    waives="no_alloc",
)
def computed_token_anchor(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return _once(point, x, out, prev_step=x.block_idx_last_computed_token)
