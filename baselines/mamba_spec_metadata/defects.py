"""Historic bugs of mamba_spec_metadata, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.mamba_spec_metadata.chains import (
    all_states_chain,
    known_anchor,
    op_chain,
    window_chain,
)
from spec_decode_bench.baselines.mamba_spec_metadata.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.broken import keeping
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.baselines.workloads.decode_batch import NULL_BLOCK_ID
from spec_decode_bench.baselines.workloads.mamba_steps import slots_per_step, table_columns
from spec_decode_bench.harness.contract import Point, variant


def _mode_all(point: Point) -> str | None:
    return "mode all only" if point.cache_mode != "all" else None


@variant(
    "mamba_spec_metadata",
    defect="the table lacks the last num_speculative_blocks columns (vLLM #39809)",
    skip=_mode_all,
)
def table_without_speculative_blocks(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Columns missing from the persistent copy read as zero here; upstream's gather read past the row."""
    return all_states_chain(point, x, out, columns=table_columns(point) - point.num_speculative_blocks)


@variant("mamba_spec_metadata", defect="views and pads are sized by tokens, not by requests (vLLM #39809)")
def padded_by_tokens(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    padding = slice(x.num_decodes, min(point.batch_size * slots_per_step(point), point.max_num_seqs))
    return in_sequence(
        op_chain(point, x, out),
        lambda: out.input_slots[padding].fill_(NULL_BLOCK_ID),
        lambda: out.num_accepted_tokens[padding].fill_(1),
    )


@variant("mamba_spec_metadata", defect="the anchor is guessed from the computed tokens (vLLM #43955)", skip=_mode_all)
def fallback_anchor(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return all_states_chain(point, x, out, anchor=lambda x: torch.full_like(x.request_slots[: x.num_decodes], -1))


@variant(
    "mamba_spec_metadata",
    defect="a resumed request uses the anchor that an earlier request left in its slot",
    skip=_mode_all,
)
def anchor_outlives_its_request(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def unmasked(x: Inputs) -> torch.Tensor:
        return x.anchors.index_select(0, x.request_slots[: x.num_decodes])

    return all_states_chain(point, x, out, anchor=unmasked)


@variant("mamba_spec_metadata", defect="conv reads the last computed column (vLLM 0.22)", skip=_mode_all)
def conv_reads_computed_column(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    n = x.num_decodes

    def read() -> None:
        columns = out.block_idx_last_computed_token[:n, None].long()
        out.conv_input_slot[:n] = torch.gather(x.block_table[:n], 1, columns)[:, 0]

    return in_sequence(op_chain(point, x, out), read)


@variant("mamba_spec_metadata", defect="conv reads the current column (review of vLLM #42792)", skip=_mode_all)
def conv_reads_current_column(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Where this step crosses a boundary, the previous step wrote the slot of another block."""
    read, written = (slots[: x.num_decodes] for slots in (out.conv_input_slot, out.conv_output_slot))
    return in_sequence(op_chain(point, x, out), lambda: read.copy_(written))


@variant("mamba_spec_metadata", defect="padding rows keep the slots of a larger step (xllm #1939)")
def padding_rows_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    chain = all_states_chain if point.cache_mode == "all" else window_chain
    return chain(point, x, out, num_reqs=x.num_decodes)


@variant("mamba_spec_metadata", defect="the anchor of the step is never stored (review of vLLM #43955)", skip=_mode_all)
def anchor_never_stored(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.next_anchors)


@variant(
    "mamba_spec_metadata",
    defect="an unknown anchor is counted in the scheduler's blocks, not in Mamba's (vLLM #53142, #55507)",
    skip=_mode_all,
)
def anchor_in_scheduler_blocks(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The scheduler's blocks are twice as long here, so the column is too low but inside the row."""
    scheduler_block_size = 2 * point.mamba_block_size

    def anchor(x: Inputs) -> torch.Tensor:
        known, rows = known_anchor(x), slice(x.num_decodes)
        computed = x.seq_lens[rows] - torch.diff(x.query_start_loc)[rows]
        return torch.where(known >= 0, known, ((computed - 1) // scheduler_block_size).clamp(min=0))

    return all_states_chain(point, x, out, anchor=anchor)
