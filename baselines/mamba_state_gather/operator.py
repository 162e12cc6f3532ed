"""mamba_state_gather: the state slots a Mamba layer reads and writes, gathered from the rows that the metadata left (mode all).

    input_slots[b, j]  = state_indices[b, prev_step[b] + j]         j = 0 .. k
    output_slots[b, j] = state_indices[b, last_scheduled[b] + j]

vLLM 0.22 does this in every layer (40 in Nemotron-3 Super), although it comes out the same in all of them: the baseline
here runs once per layer, the others once per step. The two are different tensors even where they hold the same: the
layer reads slot num_accepted - 1 of the one and writes all of the other. Rows of padding requests are NULL, their
anchors 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baselines.workloads import axes
from baselines.workloads import mamba_steps as mamba
from baselines.workloads.torch_compile import compiled
from harness.contract import COMPILER, Axis, Expected, HardPoint, Operator, Point, variant

NUM_LAYERS = Axis(
    "num_layers", axes.whole(1), 40, "Mamba layers of one KV cache group; a variant that runs once per step ignores it"
)


@dataclass(frozen=True)
class Inputs:
    state_indices: Tensor  # [B, W] int32, stride(0) >= W
    block_idx_last_scheduled_token: Tensor  # [B] int32
    block_idx_last_scheduled_token_prev_step: Tensor  # [B] int32
    block_idx_last_computed_token: Tensor  # [B] int32; the right anchor only where the step before did not fall back


@dataclass(frozen=True)
class Outputs:
    input_slots: Tensor  # [max_num_seqs, 1 + k] int32
    output_slots: Tensor  # [max_num_seqs, 1 + k] int32


def make_inputs(point: Point, seed: int) -> Inputs:
    step = mamba.make_step(point, seed)
    computed = (step.seq_lens - torch.diff(step.query_start_loc)).tolist()
    last_computed = [mamba.last_block(tokens, point.mamba_block_size) for tokens in computed]
    anchors = [
        anchor if anchor >= 0 else last for anchor, last in zip(step.anchors.tolist(), last_computed, strict=True)
    ]
    return Inputs(
        state_indices=mamba.make_state_table(point, step, seed),
        block_idx_last_scheduled_token=mamba.int32(
            [mamba.last_block(n, point.mamba_block_size) for n in step.seq_lens.tolist()]
        ),
        block_idx_last_scheduled_token_prev_step=mamba.int32(anchors),
        block_idx_last_computed_token=mamba.int32(last_computed),
    )


def make_outputs(point: Point) -> Outputs:
    shape = (point.max_num_seqs, 1 + point.num_speculative_blocks)
    return Outputs(torch.empty(shape, dtype=torch.int32), torch.empty(shape, dtype=torch.int32))


def views(point: Point, out: Outputs) -> Mapping[str, Tensor]:
    return {"input_slots": out.input_slots[: point.batch_size], "output_slots": out.output_slots[: point.batch_size]}


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    slots, capacity = 1 + point.num_speculative_blocks, point.max_num_seqs
    untouched = (torch.arange(capacity) >= point.batch_size)[:, None].expand(capacity, slots)

    def gathered(first: Tensor) -> Expected:
        value = torch.zeros(capacity, slots, dtype=torch.int32)
        for b, column in enumerate(first.tolist()):
            for j in range(slots):
                value[b, j] = x.state_indices[b, column + j]
        return Expected(value, untouched)

    return {
        "input_slots": gathered(x.block_idx_last_scheduled_token_prev_step),
        "output_slots": gathered(x.block_idx_last_scheduled_token),
    }


def bytes_moved(point: Point, x: Inputs) -> int:
    """Two columns per request, the table entries of two windows of 1 + k, both windows written; once, as no layer
    needs its own.
    """
    slots = 1 + point.num_speculative_blocks
    read = mamba.entries_of_windows(x.block_idx_last_scheduled_token_prev_step, x.block_idx_last_scheduled_token, slots)
    return 4 * (point.batch_size * (2 + 2 * slots) + read)


# --- PyTorch-op variants ----------------------------------------------------------------------------------------------


def _gathers(x: Inputs, reads_from: Tensor, offsets: Tensor, reads: Tensor, writes: Tensor) -> None:
    """Two adds, two gathers, into the rows ``reads`` and ``writes``."""
    # Said for torch.compile, which makes one kernel of both gathers where it knows their sizes to be the same.
    torch._check(len(reads_from) == len(x.block_idx_last_scheduled_token))
    mamba.gather_into(reads, x.state_indices, reads_from[:, None] + offsets)
    mamba.gather_into(writes, x.state_indices, x.block_idx_last_scheduled_token[:, None] + offsets)


def _offsets(point: Point, x: Inputs) -> Tensor:
    # int64: every release of torch takes it for an index, and adding it to an int32 column converts in the same launch.
    return torch.arange(1 + point.num_speculative_blocks, device=x.state_indices.device)


def _repeated(
    point: Point,
    x: Inputs,
    out: Outputs,
    times: int,
    gathers: Callable[..., None] = _gathers,
    reads_from: Tensor | None = None,
) -> Callable[[], None]:
    offsets, rows = _offsets(point, x), views(point, out)
    anchors = x.block_idx_last_scheduled_token_prev_step if reads_from is None else reads_from

    def launch():
        for _ in range(times):
            gathers(x, anchors, offsets, rows["input_slots"], rows["output_slots"])

    return launch


@variant("mamba_state_gather", waives="no_alloc")
def per_layer_chain(point, x, out):
    """Two adds and two gathers in every layer, as vLLM 0.22 runs them."""
    return _repeated(point, x, out, times=point.num_layers)


@variant("mamba_state_gather", waives="no_alloc")
def hoisted_chain(point, x, out):
    """The same four launches once per step."""
    return _repeated(point, x, out, times=1)


def _once(point, x, out, gathers=_gathers):
    return _repeated(point, x, out, times=1, gathers=gathers)


_EXAMPLES = (
    {"batch_size": 24, "table_padding": 3},
    {"batch_size": 1},
)


@variant("mamba_state_gather", requires=COMPILER, waives="no_alloc")
def compiled_chain(point, x, out):
    """torch.compile (Inductor, dynamic shapes) of the hoisted chain."""
    return _once(point, x, out, compiled(_gathers, _once, operator, _EXAMPLES, x.state_indices.device))


# --- historic defects -------------------------------------------------------------------------------------------------


@variant(
    "mamba_state_gather",
    defect="one tensor is handed on as input and as output (first version of vLLM #39809)",
    waives="no_alloc",
)
def same_tensor(point, x, out):
    chain, rows = _repeated(point, x, out, times=1), views(point, out)

    def launch():
        chain()
        return {"input_slots": rows["output_slots"], "output_slots": rows["output_slots"]}

    return launch


@variant(
    "mamba_state_gather",
    defect="states are read from the column of the last computed token (vLLM 0.22)",
    waives="no_alloc",
)
def computed_token_anchor(point, x, out):
    return _repeated(point, x, out, times=1, reads_from=x.block_idx_last_computed_token)


def _fell_back(x) -> None:
    """The step before ran into the next block and was pulled back: it wrote one column further."""
    x.block_idx_last_scheduled_token_prev_step.copy_(x.block_idx_last_computed_token + 1)


def _all_padding(x) -> None:
    for tensor in vars(x).values():
        tensor.zero_()


def _null_slots(x) -> None:
    x.state_indices[::2] = 0


def _one_block_on(x) -> None:
    """The windows overlap: the column written is the one read plus one."""
    x.block_idx_last_scheduled_token_prev_step.copy_(x.block_idx_last_scheduled_token - 1)


_BS16 = {"batch_size": 4, "mamba_block_size": 16, "max_model_len": 256, "num_layers": 2}
_BS1 = {"batch_size": 4, "mamba_block_size": 1, "max_model_len": 64, "num_speculative_blocks": 5, "num_layers": 2}

HARD_POINTS = [
    HardPoint("B=1", {"batch_size": 1, "num_layers": 2}),
    HardPoint("40 layers", {"batch_size": 2}),
    HardPoint("the last column", _BS16 | {"context_len": 256, "acceptance": 0.3}),
    HardPoint("one token at the last column", _BS16 | {"max_decode_len": 1, "context_len": 256, "acceptance": 0.3}),
    HardPoint("both windows the same", _BS16 | {"context_len": 28}),
    HardPoint("windows overlap, one block on", _BS16 | {"context_len": 100}, _one_block_on),
    HardPoint("the step before crossed and fell back", _BS16 | {"context_len": 36}, _fell_back),
    HardPoint("BS = 1, k = 5", _BS1 | {"context_len": {"uniform": [6, 64]}, "acceptance": 0.5}),
    HardPoint("k = 1", {"batch_size": 5, "num_speculative_blocks": 1, "num_layers": 2}),
    HardPoint("k = 31", {"batch_size": 3, "num_speculative_blocks": 31, "num_layers": 2}),
    HardPoint(
        "short step, L < 1 + k", _BS16 | {"batch_size": 6, "max_decode_len": 2, "context_len": 36, "acceptance": 0.4}
    ),
    HardPoint(
        "ragged",
        _BS16 | {"batch_size": 9, "decode_len": "ragged", "acceptance": 0.4, "context_len": {"uniform": [4, 256]}},
    ),
    HardPoint("padding rows", _BS16 | {"batch_size": 7, "padding": 0.4, "context_len": {"uniform": [4, 256]}}),
    HardPoint("all rows padding", _BS16 | {"padding": 0.5, "context_len": 100}, _all_padding),
    HardPoint("rows of NULL slots", _BS16 | {"context_len": 100}, _null_slots),
    HardPoint("row stride > W", _BS16 | {"table_padding": 3, "context_len": 256}),
    HardPoint("B = max_num_seqs", _BS16 | {"batch_size": 33, "max_num_seqs": 33, "context_len": {"uniform": [4, 256]}}),
]

_CAPACITY = {
    "max_num_seqs": 24,
    "mamba_block_size": 16,
    "max_model_len": 256,
    "num_layers": 2,
    "context_len": {"uniform": [4, 256]},
}
_BIG, _SMALL = _CAPACITY | {"batch_size": 20}, _CAPACITY | {"batch_size": 2}
SEQUENCES = {"big-small-big": (_BIG, _SMALL, _BIG), "big-padded-big": (_BIG, _BIG | {"padding": 0.5}, _BIG)}

operator = Operator(
    name="mamba_state_gather",
    summary="state slots of a speculative decode step, gathered in every Mamba layer or once for all of them",
    axes=(*mamba.DECODE_STEP, mamba.MAX_NUM_SEQS, axes.TABLE_PADDING, NUM_LAYERS),
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    views=views,
    reference=reference,
    bytes_moved=bytes_moved,
    baseline="per_layer_chain",
    hard_points=HARD_POINTS,
    sequences=SEQUENCES,
    rules=(*mamba.RULES, mamba.SEQS_FIT),
    redundant=axes.same_batch_elsewhere,
)
