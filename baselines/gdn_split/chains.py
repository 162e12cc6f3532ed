"""gdn_split from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.gdn_split.operator import Inputs, Outputs, num_plain_tokens, operator
from spec_decode_bench.baselines.workloads.decode_batch import NULL_BLOCK_ID
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled, row_of
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def padded(buffer: torch.Tensor, rows: int, values: torch.Tensor, rest: int) -> None:
    """``values`` at the start of the first ``rows`` of a buffer, ``rest`` in the others."""
    if count := len(values):
        buffer[:count].copy_(values)
    if count < rows:
        buffer[count:rows].fill_(rest)


def starts_of(lens: torch.Tensor) -> torch.Tensor:
    starts = torch.zeros(len(lens) + 1, dtype=torch.int32, device=lens.device)
    torch.cumsum(lens, dim=0, out=starts[1:])
    return starts


@variant("gdn_split", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's operators, with an argsort of the device's mask where vLLM uploads row numbers; no sort of one kind."""
    rows, spec, plain, device = point.batch_size, x.num_spec_requests, num_plain_tokens(point), out.spec_mask.device
    none = torch.empty(0, dtype=torch.int32, device=device)

    def put(
        table: torch.Tensor, accepted: torch.Tensor, spec_starts: torch.Tensor, has_state: torch.Tensor,
        slots: torch.Tensor, plain_starts: torch.Tensor,
    ) -> None:  # fmt: skip
        padded(out.spec_state_slots, rows, table, NULL_BLOCK_ID)
        padded(out.spec_accepted, rows, accepted, 1)
        padded(out.spec_query_start_loc, rows + 1, spec_starts, x.num_spec_tokens)
        padded(out.has_initial_state, rows, has_state, False)
        padded(out.plain_state_slots, rows, slots, NULL_BLOCK_ID)
        padded(out.plain_query_start_loc, rows + 1, plain_starts, plain)

    def has_state(lens: torch.Tensor) -> torch.Tensor:
        return x.seq_lens - lens > 0

    def all_plain() -> None:
        out.spec_mask[:rows].copy_(x.num_draft_tokens >= 0)
        lens = torch.diff(x.query_start_loc)
        put(none, none, none, has_state(lens), x.block_table[:, 0], x.query_start_loc)
        if plain:
            torch.arange(plain, out=out.plain_tokens[:plain])

    def all_speculative() -> None:
        """Padding behind them at most."""
        out.spec_mask[:rows].copy_(x.num_draft_tokens >= 0)
        put(
            x.block_table[:spec],
            x.num_accepted_tokens[:spec],
            x.query_start_loc[: spec + 1],
            none,
            none,
            none,
        )
        torch.arange(x.num_spec_tokens, out=out.spec_tokens[: x.num_spec_tokens])

    def mixed() -> None:
        mask, lens = x.num_draft_tokens >= 0, torch.diff(x.query_start_loc)
        out.spec_mask[:rows].copy_(mask)
        of_tokens = torch.repeat_interleave(mask, lens, output_size=x.num_tokens)
        tokens, order = torch.argsort(of_tokens, stable=True), torch.argsort(mask, stable=True)
        out.plain_tokens[:plain].copy_(tokens[:plain])
        out.spec_tokens[: x.num_spec_tokens].copy_(tokens[plain:])
        others, them = order[: rows - spec], order[rows - spec :]
        put(
            x.block_table[them],
            x.num_accepted_tokens[them],
            starts_of(lens[them]),
            has_state(lens)[others],
            x.block_table[others, 0],
            starts_of(lens[others]),
        )

    return all_plain if not spec else mixed if plain else all_speculative


def scatter(
    x: Inputs, out: Outputs, numbers: torch.Tensor, rows: int, spec: int, spec_tokens: int, tokens: int
) -> None:
    """Every request writes a row of both kinds: that of its own, and one behind the last row of the other.

    numbers: int64, 0, 1, 2 ..., as many as there are tokens or requests.
    """
    plain, b, t = tokens - spec_tokens, numbers[:rows], numbers[:tokens]
    mask, lens = x.num_draft_tokens >= 0, torch.diff(x.query_start_loc)
    through, ends = mask.cumsum(0), torch.where(mask, lens, 0).cumsum(0)
    of_spec = torch.where(mask, through - 1, spec + b - through)
    of_plain = torch.where(mask, rows - spec + through - 1, b - through)
    out.spec_mask[:rows].copy_(mask)
    out.spec_state_slots[of_spec] = torch.where(mask[:, None], x.block_table, NULL_BLOCK_ID)
    out.spec_accepted[of_spec] = torch.where(mask, x.num_accepted_tokens, 1)
    out.spec_query_start_loc[:1].zero_()
    out.spec_query_start_loc[of_spec + 1] = torch.where(mask, ends, spec_tokens).int()
    out.plain_state_slots[of_plain] = torch.where(mask, NULL_BLOCK_ID, x.block_table[:, 0])
    out.has_initial_state[of_plain] = ~mask & (x.seq_lens > lens)
    out.plain_query_start_loc[:1].zero_()
    out.plain_query_start_loc[of_plain + 1] = torch.where(mask, plain, x.query_start_loc[1:] - ends).int()
    if tokens:
        request = row_of(x.query_start_loc, t)
        past = x.query_start_loc[1:][request] - t  # tokens of the request from this one on
        place = torch.where(mask[request], plain + ends[request] - past, t - ends[request])
        listed = torch.empty_like(t, dtype=torch.int32)
        listed[place] = t.int()
        out.plain_tokens[:plain].copy_(listed[:plain])
        out.spec_tokens[:spec_tokens].copy_(listed[plain:])


def set_up(point: Point, x: Inputs, out: Outputs, scatter: Callable = scatter) -> Callable[[], None]:
    numbers = torch.arange(max(point.batch_size, x.num_tokens), device=out.spec_mask.device)
    counts = point.batch_size, x.num_spec_requests, x.num_spec_tokens, x.num_tokens
    return lambda: scatter(x, out, numbers, *counts)


@variant("gdn_split", waives="no_alloc")
def scatter_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Prefix sums and scatters instead of sorts."""
    return set_up(point, x, out)


_STEP = {"batch_size": BUSY_BATCH, "max_num_seqs": 270, "next_n": 6, "decode_len": "ragged", "plain": 0.2}
_EXAMPLES = (
    _STEP | {"prefills": 3, "padding": 0.1},
    _STEP | {"table_padding": 3},
    _STEP | {"plain": 1.0},
    _STEP | {"plain": 0.0},
    {"batch_size": 1},
    {"batch_size": 1, "next_n": 1},
)


@variant("gdn_split", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the scatter chain."""
    return set_up(point, x, out, compiled(scatter, set_up, operator, _EXAMPLES, out.spec_mask.device))
