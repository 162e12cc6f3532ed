"""window_tables of vLLM 0.33: the launches of the metadata builders of windows, C4A and C128A in a step of decodes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.window_tables.operator import Inputs, Outputs, list_width
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.upstream._vllm import Definitions, needs
from spec_decode_bench.upstream.vllm_token_requests import CODE as REQUESTS
from spec_decode_bench.upstream.vllm_token_requests import TOKENS

WINDOWS = Definitions("v1/attention/backends/mla/sparse_swa.py", "_compute_swa_indices_and_lens_kernel")
COMPRESSED = Definitions("v1/attention/backends/mla/compressor_utils.py", "CompressedSlotMappingKernel.kernel")
LISTS = Definitions("models/deepseek_v4/sparse_mla.py", "BuildC128ATopkMetadataKernel.kernel")
#: Elements of a program, as vLLM launches its kernels.
BLOCK = 1024


@variant(
    "window_tables",
    requires=needs(REQUESTS, WINDOWS, COMPRESSED, LISTS),
    skip=lambda p: None if p.host_lens == "exact" else "vLLM's host knows the number of tokens",
)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's four kernels, one of them twice, and its comparison, clamps and fills: 11 launches."""
    requests, windows = REQUESTS()._token_request_mapping_kernel, WINDOWS()._compute_swa_indices_and_lens_kernel
    compressed, lists = COMPRESSED().kernel, LISTS().kernel
    rows, tokens, states, mapped = point.batch_size, x.num_tokens, point.c128_block, x.query_start_loc_cpu
    window_slots, c4_slots, c128_slots = (slots[:tokens] for slots in x.slot_mappings)
    is_valid, tail, width = out.is_valid_token[:tokens], out.swa_lens[tokens:], list_width(point)
    no_replay = torch.zeros_like(x.seq_lens)

    def launch() -> None:
        requests[(cdiv(tokens, TOKENS),)](x.query_start_loc, out.requests, rows, int(mapped[-1]), tokens, num_warps=4)
        torch.ge(window_slots, 0, out=is_valid)
        tail.zero_()
        windows[(tokens,)](
            out.swa_indices,
            out.swa_indices.stride(0),
            out.swa_lens,
            point.window_size,
            point.window_size,
            out.swa_lens,
            out.swa_lens,
            x.query_start_loc,
            x.seq_lens,
            out.requests,
            is_valid,
            x.window_table,
            x.window_table.stride(0),
            point.window_block,
            no_replay,
            0,
            HAS_IMAGE=False,
            TRITON_BLOCK_SIZE=BLOCK,
        )
        for target, slots, table, ratio in (
            (out.c4_slots, c4_slots, x.c4_table, 4),
            (out.c128_slots, c128_slots, x.c128_table, 128),
        ):
            table.clamp_(min=0)
            target.fill_(-1)
            compressed[(rows,)](
                target,
                slots,
                x.query_start_loc,
                x.seq_lens,
                table,
                table.stride(0),
                128 * states // ratio,
                1,
                1,
                COMPRESS_RATIO=ratio,
                PAD_ID=-1,
                TRITON_BLOCK_SIZE=BLOCK,
            )
        lists[(tokens,)](
            out.c128_indices,
            out.c128_indices.stride(0),
            out.c128_lens,
            out.c128_indices,
            out.c128_indices.stride(0),
            x.positions,
            128,
            width,
            tokens,
            out.requests,
            x.c128_table,
            x.c128_table.stride(0),
            states,
            c128_slots,
            BLOCK_SIZE=BLOCK,
        )

    return launch
