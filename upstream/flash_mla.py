"""FlashMLA's tile schedule: of the FP8 extension inside vLLM, of the package ``flash_mla`` before 2026, and of SGLang's
``sgl-flash-mla``.

FlashMLA since January 2026 plans inside its attention kernel's first call, so there is nothing to time alone. SGLang's
package keeps the older kernels in a library of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeAlias

import torch

from spec_decode_bench.baselines.mla_tile_schedule.operator import Inputs, Outputs, unbounded_parts
from spec_decode_bench.harness.contract import GPU, Point, consumer, variant
from spec_decode_bench.harness.packages import file_in

EXTENSION = "_flashmla_extension_C.abi3.so"
#: Library and interface of the package flash_mla; SGLang's sgl-flash-mla gives it the same name.
LEGACY, INTERFACE = "_C_legacy.abi3.so", "flash_mla_interface.py"
#: Tokens of a page; sizes of a query and of a value of DeepSeek's latent attention.
PAGE, QUERY, VALUE = 64, 576, 512
#: (lengths, query rows per KV head, KV heads) -> what a release returns.
Plan: TypeAlias = "Callable[[torch.Tensor, int, int], object]"


@cache
def extension() -> Plan:
    """The operator of vLLM's extension, whose library is loaded without vLLM."""
    torch.ops.load_library(str(file_in("vllm", EXTENSION)))
    return torch.ops._flashmla_extension_C.get_mla_decoding_metadata_dense_fp8


@cache
def legacy() -> Plan:
    """The operator of sgl-flash-mla that SGLang calls for fp8 caches, whose library is loaded alone."""
    torch.ops.load_library(str(file_in("flash_mla", LEGACY)))
    return torch.ops.flash_mla_legacy.get_mla_decoding_metadata_dense_fp8


@cache
def package() -> Plan:
    from flash_mla import get_mla_metadata

    return get_mla_metadata


@cache
def convention(plan: Plan) -> str:
    """Read off a request of 128 tokens in the many parts of one query row: "tokens" or "blocks", the unit of int 3,
    where int 2 is the inclusive end request; "new" or "inside" for anything else.
    """
    made = plan(torch.tensor([128], dtype=torch.int32, device="cuda"), 1, 1)
    if not isinstance(made, (tuple, list)) or not isinstance(made[0], torch.Tensor):
        return "inside"
    rows = [row for row in made[0][:, :4].tolist() if row[0] == 0]
    if any(row[2] for row in rows):  # where the new layout has the begin block
        return "new"
    return "tokens" if 128 in {row[3] for row in rows} else "blocks"


def _skip(plan: Callable[[], Plan]) -> Callable[[Point], str | None]:
    def skip(point: Point) -> str | None:
        sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        if point.num_sms != sms:
            return f"it plans for the {sms} SMs of this GPU"
        if point.num_sm_parts != unbounded_parts(point):
            return "it derives the number of parts from SMs and heads"
        if point.overhead != 5:
            return "its overhead is 5"
        found = convention(plan())
        if found == "inside":
            return "this FlashMLA plans inside its attention kernel; there is no call to time"
        if found != "tokens":
            return f"its rows are of the layout {found!r}; those of this operator's old layout count tokens"
        return None if point.layout == "old" else "its rows have the old layout"

    return skip


def _planned(plan: Plan, point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The metadata kernel and the two copies into the persistent buffers, as vLLM runs them (#35175)."""
    rows = point.max_decode_len * point.num_heads_q
    metadata, num_splits = out.tile_scheduler_metadata[: point.num_sm_parts], out.num_splits[: point.batch_size + 1]

    def launch() -> None:
        tiles, splits = plan(x.seq_lens, rows, 1)
        metadata.copy_(tiles)
        num_splits.copy_(splits)

    return launch


@variant("mla_tile_schedule", requires=(f"vllm:{EXTENSION}", GPU), skip=_skip(extension), waives="no_alloc")
def flash_mla_fp8(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """FlashMLA's FP8 extension in vLLM, and the copies into the persistent buffers."""
    return _planned(extension(), point, x, out)


@variant("mla_tile_schedule", requires=(f"flash_mla:{LEGACY}", GPU), skip=_skip(legacy), waives="no_alloc")
def flash_mla_sgl(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """SGLang's sgl-flash-mla, and the copies into the persistent buffers."""
    return _planned(legacy(), point, x, out)


@variant("mla_tile_schedule", requires=(f"flash_mla:{INTERFACE}", GPU), skip=_skip(package), waives="no_alloc")
def flash_mla(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The package flash_mla before 2026, and the copies into the persistent buffers."""
    return _planned(package(), point, x, out)


@consumer("mla_tile_schedule", planner="flash_mla_fp8", requires=(f"vllm:{EXTENSION}", GPU), skip=_skip(extension))
def mla_decode(point: Point, x: Inputs, out: Outputs) -> Mapping[str, torch.Tensor]:
    """FlashMLA's fp8 decode kernel and its combine kernel over a random cache: attention outputs and their LSE."""
    extension()
    requests, tokens, device = point.batch_size, point.max_decode_len, x.seq_lens.device
    blocks = max(-(-int(x.seq_lens.max()) // PAGE), 1)
    pool = min(requests * blocks, 1 << 14)
    cache = torch.randint(0, 0x38, (pool, PAGE, 1, QUERY), dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    q = torch.randn(requests, tokens, point.num_heads_q, QUERY, device=device).to(torch.float8_e4m3fn)
    table = torch.randint(0, pool, (requests, blocks), dtype=torch.int32, device=device)
    one = torch.ones(1, device=device)
    rows, splits = out.tile_scheduler_metadata[: point.num_sm_parts], out.num_splits[: requests + 1]
    decode = torch.ops._flashmla_extension_C.fwd_kvcache_mla_fp8
    attended, lse = decode(q, cache, VALUE, x.seq_lens, table, QUERY**-0.5, True, rows, splits, one, one)
    # Tokens before the first of their request see nothing, and nobody reads what they get.
    seen = x.seq_lens[:, None] - tokens + 1 + torch.arange(tokens, device=device) > 0
    return {
        "out": attended.masked_fill(~seen[:, :, None, None], 0),
        "lse": lse.masked_fill(~seen[:, None, :], 0),
    }
