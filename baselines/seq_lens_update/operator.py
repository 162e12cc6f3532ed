"""seq_lens_update: from the tokens a speculative step accepted to the next step's lengths, without waiting for the GPU.

Asynchronous scheduling prepares a step before the CPU knows how many drafts the previous one accepted. The CPU counts
all of them; the device corrects that. For request b, which stood in row p = prev_pos[b] of the previous step (-1: in
none):

    num_computed[b] = prev_num_computed[p] + valid[p]       where p >= 0 and prev_drafts[p] > 0, else num_computed_cpu[b]
    num_accepted[b] = valid[p]                              in the first case, else left alone
    seq_lens[b]     = num_computed[b] + num_scheduled[b]
    positions[t]    = num_computed[b] + t - query_start_loc[b]          for the tokens t of request b
    seq_lens_cpu_upper_bound[b] = num_computed_cpu[b] + num_scheduled[b]                    on the host

Rows from B on: both lengths 0, because a graph captured at a larger batch reads them; the rest keeps what it held.

The bound is all the host gets (vLLM #40654): 0 <= bound - seq_lens <= drafts of the previous step, and equal where
there were none. It may size buffers, bound loops and choose kernels; what is computed per row takes seq_lens. Until
then consumers copied seq_lens back, and every step waited for the GPU.

Buffers: the rows of the counts move between steps, so they are held twice. prev_num_computed is the previous step's
num_computed and is only read; the two change places every step, so a captured consumer reads seq_lens, whose address never
moves. Written into itself, a row could be read after another block has overwritten it (the defect permuted_in_place).

Host arrays stay on the CPU, in pinned memory where there is a GPU. The three that the device needs stand one behind the
other in one allocation, so they may be sent by three copies or by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from baselines.seq_lens_update import _steps as steps
from baselines.seq_lens_update._points import HARD_POINTS, SEQUENCES
from baselines.seq_lens_update._steps import Inputs, make_inputs, num_tokens
from baselines.workloads.torch_compile import compiled
from harness.contract import COMPILER, HOST, Expected, Operator, Point, variant


@dataclass(frozen=True)
class Outputs:
    num_computed: Tensor  # [max_num_seqs] int32
    num_accepted: Tensor  # [max_num_seqs] int32
    seq_lens: Tensor  # [max_num_seqs] int32
    positions: Tensor  # [max_num_batched_tokens] int64
    seq_lens_cpu_upper_bound: Tensor = field(metadata=HOST)  # [max_num_seqs] int32


def make_outputs(point: Point) -> Outputs:
    per_request = lambda: torch.empty(point.max_num_seqs, dtype=torch.int32)  # noqa: E731
    positions = torch.empty(point.max_num_batched_tokens, dtype=torch.int64)
    return Outputs(per_request(), per_request(), per_request(), positions, per_request())


def views(point: Point, out: Outputs) -> Mapping[str, Tensor]:
    rows, tokens = point.batch_size, num_tokens(point)
    return {
        "num_computed": out.num_computed[:rows],
        "num_accepted": out.num_accepted[:rows],
        "seq_lens": out.seq_lens[:rows],
        "positions": out.positions[:tokens],
        "seq_lens_cpu_upper_bound": out.seq_lens_cpu_upper_bound[:rows],
    }


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    capacity, tokens = point.max_num_seqs, point.max_num_batched_tokens
    before, valid, drafts = x.prev_num_computed.tolist(), x.valid.tolist(), x.prev_drafts.tolist()
    computed, accepted, lens, bound, positions = (
        [0] * capacity,
        [0] * capacity,
        [0] * capacity,
        [0] * capacity,
        [0] * tokens,
    )
    kept = [True] * capacity
    t = 0
    for b, (p, believed, scheduled) in enumerate(
        zip(x.prev_pos.tolist(), x.num_computed_cpu.tolist(), x.num_scheduled.tolist(), strict=True)
    ):
        computed[b] = believed
        if p >= 0 and drafts[p] > 0:
            computed[b], accepted[b], kept[b] = before[p] + valid[p], valid[p], False
        lens[b], bound[b] = computed[b] + scheduled, believed + scheduled
        for j in range(scheduled):
            positions[t] = computed[b] + j
            t += 1
    rows = len(x.prev_pos)
    int32 = lambda values: torch.tensor(values, dtype=torch.int32)  # noqa: E731
    return {
        "num_computed": Expected(int32(computed), untouched=torch.arange(capacity) >= rows),
        "num_accepted": Expected(int32(accepted), untouched=torch.tensor(kept)),
        "seq_lens": Expected(int32(lens)),
        "positions": Expected(torch.tensor(positions), untouched=torch.arange(tokens) >= t),
        "seq_lens_cpu_upper_bound": Expected(int32(bound)),
    }


def bytes_moved(point: Point, x: Inputs) -> int:
    """Device memory alone: the host's arrays written and read once, old counts of requests that had drafts, outputs."""
    p = x.prev_pos[x.prev_pos >= 0]
    corrected = int((x.prev_drafts[p] > 0).sum())
    rows = len(x.prev_pos)
    entries = 2 * len(x.to_device) + (rows + 1) + 2 * corrected + rows + corrected + point.max_num_seqs
    return 4 * entries + 8 * x.num_tokens


# --- PyTorch-op variants ----------------------------------------------------------------------------------------------


def _bound(x: Inputs, out: Outputs) -> None:
    """The host's half: one add, one fill."""
    rows = len(x.num_scheduled)
    torch.add(x.num_computed_cpu, x.num_scheduled, out=out.seq_lens_cpu_upper_bound[:rows])
    out.seq_lens_cpu_upper_bound[rows:].fill_(0)


def _correct(prev_pos, num_computed_cpu, prev_drafts, before, valid, computed, accepted) -> None:
    """The counts alone, 13 launches. A row that had none before gathers row 0 and discards it."""
    source = prev_pos.clamp(min=0).long()
    old, produced, drafts = before[source], valid[source], prev_drafts[source]
    corrected = (prev_pos >= 0) & (drafts > 0)
    computed.copy_(torch.where(corrected, old + produced, num_computed_cpu))
    accepted.copy_(torch.where(corrected, produced, accepted))


def _lengths(x: Inputs, out: Outputs, arange: Tensor) -> None:
    """Lengths, their tail and positions from the counts."""
    rows, tokens = len(x.num_scheduled), x.num_tokens
    computed, scheduled = out.num_computed[:rows], torch.diff(x.query_start_loc)
    torch.add(computed, scheduled, out=out.seq_lens[:rows])
    out.seq_lens[rows:].fill_(0)
    shift = torch.repeat_interleave(computed - x.query_start_loc[:-1], scheduled, output_size=tokens)
    torch.add(shift, arange[:tokens], out=out.positions[:tokens])


def _device_side(x: Inputs, out: Outputs, uploaded: list[Tensor], arange: Tensor) -> None:
    rows = len(x.num_scheduled)
    _correct(*uploaded, x.prev_num_computed, x.valid, out.num_computed[:rows], out.num_accepted[:rows])
    _lengths(x, out, arange)


def _uploads(x: Inputs, out: Outputs) -> tuple[list[Tensor], Callable[[], None]]:
    """Device buffers of the three host arrays, and a closure that sends each by a copy of its own."""
    host, device = (x.prev_pos, x.num_computed_cpu, x.prev_drafts), out.seq_lens.device
    # One entry at least: row 0 is gathered even where the previous step had no request.
    buffers = [torch.zeros(max(len(source), 1), dtype=torch.int32, device=device) for source in host]
    targets = [buffer[: len(source)] for buffer, source in zip(buffers, host, strict=True)]

    def upload():
        for target, source in zip(targets, host, strict=True):
            target.copy_(source, non_blocking=True)

    return [*targets[:2], buffers[2]], upload


def _arange(out: Outputs) -> Tensor:
    """0 .. capacity - 1: a lookup table must cover every token the buffers can hold (vLLM #39277)."""
    return torch.arange(len(out.positions), dtype=torch.int32, device=out.positions.device)


def _chain(point: Point, x: Inputs, out: Outputs, device_side: Callable) -> Callable[[], None]:
    (uploaded, upload), arange = _uploads(x, out), _arange(out)

    def launch():
        upload()
        device_side(x, out, uploaded, arange)
        _bound(x, out)

    return launch


@variant("seq_lens_update", waives="no_alloc")
def op_chain(point, x, out):
    """The operator chain of vLLM 0.22: three host-to-device copies, 13 launches for the counts, then lengths and
    positions.
    """
    return _chain(point, x, out, _device_side)


@variant("seq_lens_update", waives=("no_alloc", "no_sync", "graph_safe"))
def blocking_copy(point, x, out):
    """Before vLLM #40654: the operator chain, then the exact lengths come back by a copy that waits for the GPU.

    The bound is written besides, for the outputs to be the same.
    """
    chain = op_chain(point, x, out)

    def launch():
        chain()
        out.seq_lens[: len(x.num_scheduled)].cpu()

    return launch


_EXAMPLES = (
    {"batch_size": 24, "num_prev_reqs": 31, "max_num_seqs": 1000},
    {"batch_size": 1},
)


@variant("seq_lens_update", requires=COMPILER, waives="no_alloc")
def compiled_chain(point, x, out):
    """torch.compile (Inductor, dynamic shapes) of the chain's device side; copies and bound as they are."""
    return _chain(point, x, out, compiled(_device_side, _chain, operator, _EXAMPLES, out.seq_lens.device))


# --- historic defects -------------------------------------------------------------------------------------------------


@variant(
    "seq_lens_update",
    defect="the counts are permuted into themselves (the kind of race in vLLM #50432)",
    waives="no_alloc",
)
def permuted_in_place(point, x, out):
    """The race made deterministic: rows are written in order, so one whose source stands above it reads a new count."""

    def correct_rows(x, out, uploaded, arange):
        counts = x.prev_num_computed.clone()
        for b in range(len(x.num_scheduled)):
            row = [tensor[b : b + 1] for tensor in (*uploaded[:2], counts, out.num_accepted)]
            _correct(*row[:2], uploaded[2], counts, x.valid, *row[2:])
        out.num_computed[: len(x.num_scheduled)].copy_(counts[: len(x.num_scheduled)])
        _lengths(x, out, arange)

    return _chain(point, x, out, correct_rows)


@variant("seq_lens_update", defect="the host's bound is taken for the exact length (vLLM #40772)", waives="no_alloc")
def bound_as_exact(point, x, out):
    chain, rows = op_chain(point, x, out), len(x.num_scheduled)

    def launch():
        chain()
        out.seq_lens[:rows].copy_(out.seq_lens_cpu_upper_bound[:rows], non_blocking=True)

    return launch


@variant(
    "seq_lens_update", defect="rows past the batch keep the lengths of a larger step (xllm #1939)", waives="no_alloc"
)
def stale_tail(point, x, out):
    chain, tail = op_chain(point, x, out), out.seq_lens[len(x.num_scheduled) :]

    def launch():
        before = tail.clone()
        chain()
        tail.copy_(before)

    return launch


operator = Operator(
    name="seq_lens_update",
    summary="accepted tokens of the previous step -> computed counts, lengths and positions on the device, a bound on the host",
    axes=steps.AXES,
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    views=views,
    reference=reference,
    bytes_moved=bytes_moved,
    baseline="op_chain",
    hard_points=HARD_POINTS,
    sequences=SEQUENCES,
    rules=steps.RULES,
    redundant=steps.redundant,
)
