"""seq_lens_update from PyTorch operators: as vLLM 0.22 runs it, with the blocking copy it had before, compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.seq_lens_update.operator import Inputs, Outputs, by_slot, operator
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def write_bound(x: Inputs, out: Outputs) -> None:
    """The host's part: one add, one fill."""
    rows = len(x.num_scheduled)
    torch.add(x.num_computed_tokens_cpu, x.num_scheduled, out=out.seq_lens_cpu_upper_bound[:rows])
    out.seq_lens_cpu_upper_bound[rows:].fill_(0)


def correct_counts(
    prev_pos: torch.Tensor,
    num_computed_tokens_cpu: torch.Tensor,
    prev_drafts: torch.Tensor,
    before: torch.Tensor,
    valid: torch.Tensor,
    computed: torch.Tensor,
    accepted: torch.Tensor,
) -> None:
    """13 launches. A request without a previous row gathers row 0 and discards it. computed, accepted: [B], written."""
    source = prev_pos.clamp(min=0).long()
    old, produced, drafts = before[source], valid[source], prev_drafts[source]
    corrected = (prev_pos >= 0) & (drafts > 0)
    computed.copy_(torch.where(corrected, old + produced, num_computed_tokens_cpu))
    accepted.copy_(torch.where(corrected, produced, accepted))


def write_lengths(x: Inputs, out: Outputs, arange: torch.Tensor, computed: torch.Tensor | None = None) -> None:
    """seq_lens with its tail, and positions, from counts by row: num_computed_tokens unless given."""
    rows, tokens = len(x.num_scheduled), x.num_tokens
    computed = out.num_computed_tokens[:rows] if computed is None else computed
    scheduled = torch.diff(x.query_start_loc)
    torch.add(computed, scheduled, out=out.seq_lens[:rows])
    out.seq_lens[rows:].fill_(0)
    shift = torch.repeat_interleave(computed - x.query_start_loc[:-1], scheduled, output_size=tokens)
    torch.add(shift, arange[:tokens], out=out.positions[:tokens])


def update_on_device(x: Inputs, out: Outputs, uploaded: list[torch.Tensor], arange: torch.Tensor) -> None:
    rows = len(x.num_scheduled)
    correct_counts(
        *uploaded, x.prev_num_computed_tokens, x.valid, out.num_computed_tokens[:rows], out.num_accepted[:rows]
    )
    write_lengths(x, out, arange)


def update_by_slot(x: Inputs, out: Outputs, uploaded: list[torch.Tensor], arange: torch.Tensor) -> None:
    """11 launches for the counts: gathers and scatters by slot in place of a permutation."""
    slots, host_computed, drafts = uploaded[0].long(), uploaded[1], uploaded[2][: len(x.num_scheduled)]
    produced, corrected = x.valid[slots], drafts > 0
    computed = torch.where(corrected, x.prev_num_computed_tokens[slots] + produced, host_computed)
    out.num_computed_tokens[slots] = computed
    out.num_accepted[slots] = torch.where(corrected, produced, out.num_accepted[slots])
    write_lengths(x, out, arange, computed)


def on_device_of(point: Point) -> Callable[..., None]:
    return update_by_slot if by_slot(point) else update_on_device


def _uploads(x: Inputs, out: Outputs) -> tuple[list[torch.Tensor], Callable[[], None]]:
    """Device copies of the three host arrays, and a closure that sends them in three copies."""
    host, device = (x.prev_pos, x.num_computed_tokens_cpu, x.prev_drafts), out.seq_lens.device
    # At least one entry: row 0 is gathered even if the previous step had no request.
    buffers = [torch.zeros(max(len(source), 1), dtype=torch.int32, device=device) for source in host]
    targets = [buffer[: len(source)] for buffer, source in zip(buffers, host, strict=True)]

    def upload() -> None:
        for target, source in zip(targets, host, strict=True):
            target.copy_(source, non_blocking=True)

    return [*targets[:2], buffers[2]], upload


def set_up(point: Point, x: Inputs, out: Outputs, on_device: Callable[..., None]) -> Callable[[], None]:
    """on_device: see update_on_device."""
    uploaded, upload = _uploads(x, out)
    # As long as the token buffers: a table that covered fewer tokens was overrun upstream (vLLM #39277).
    arange = torch.arange(len(out.positions), dtype=torch.int32, device=out.positions.device)

    def launch() -> None:
        upload()
        on_device(x, out, uploaded, arange)
        write_bound(x, out)

    return launch


@variant("seq_lens_update", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The operator chain of vLLM 0.22: three host-to-device copies, 13 launches for the counts (11 by slot), then
    lengths and positions.
    """
    return set_up(point, x, out, on_device_of(point))


@variant("seq_lens_update", waives=("no_alloc", "no_sync", "graph_safe"))
def blocking_copy(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Before vLLM #40654: the operator chain, then the exact lengths come back by a copy that waits for the GPU.

    The bound is written too, so that the outputs are the same.
    """
    chain, rows = op_chain(point, x, out), len(x.num_scheduled)

    def launch() -> None:
        chain()
        out.seq_lens[:rows].cpu()

    return launch


#: A general step first, then one request, which Inductor compiles separately (see compiled).
_EXAMPLES = (
    {"batch_size": BUSY_BATCH, "num_prev_reqs": 231, "max_num_seqs": 1000},
    {"batch_size": 1},
)
_BY_SLOT = tuple(example | {"state": "slots"} for example in _EXAMPLES)


@variant("seq_lens_update", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the chain's device side; copies and bound are not compiled."""
    examples = _BY_SLOT if by_slot(point) else _EXAMPLES
    return set_up(point, x, out, compiled(on_device_of(point), set_up, operator, examples, out.seq_lens.device))
