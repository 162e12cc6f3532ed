"""A historic defect of decode_flatten that is about where the query boundaries come from."""

from __future__ import annotations

import torch

from baselines._batches import NULL_BLOCK_ID
from harness.contract import variant


@variant(
    "decode_flatten", defect="the CPU's query boundaries are taken for the device's (vLLM #52795, #56562)",
    waives=("no_alloc", "no_sync", "graph_safe"),
)  # fmt: skip
def host_boundaries_trusted(point, x, out):
    """Right where the host knows; after adaptive verification its boundaries are those of the drafts, not of what was kept."""
    arange = torch.arange(out.lens.numel(), dtype=torch.int32, device=out.lens.device)
    columns = min(x.block_table.shape[1], out.block_table.shape[1])

    def launch():
        actual, start = int(x.query_start_loc_cpu[-1]), x.query_start_loc_cpu.to(out.lens.device)
        decode_lens = torch.diff(start)
        offsets = torch.repeat_interleave(x.seq_lens - decode_lens - start[:-1], decode_lens, output_size=actual)
        out.lens[:actual].copy_((offsets + arange[:actual] + 1).clamp_(min=0))
        out.lens[actual:].fill_(0)
        rows = torch.repeat_interleave(x.block_table[:, :columns], decode_lens, dim=0, output_size=actual)
        out.block_table[:actual, :columns].copy_(rows)
        out.block_table[actual : x.num_decode_tokens, 0].fill_(NULL_BLOCK_ID)
        out.decode_lens[: x.num_decode_tokens].fill_(1)

    return launch
