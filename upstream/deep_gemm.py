"""DeepGEMM's ``get_paged_mqa_logits_metadata``, of the package ``deep_gemm`` or of the copy inside vLLM.

Releases differ in which SMs get one unit more and in the query tokens of an atom, and tables of one are wrong for
another. Both are read off the output of two small batches; points of the other convention are skipped.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType

import torch

from spec_decode_bench.baselines.paged_mqa_schedule.operator import SEGMENT, Inputs, Outputs, with_indices
from spec_decode_bench.harness.contract import GPU, Point, consumer, variant
from spec_decode_bench.harness.packages import file_in

#: Tokens of a page of the index cache on Hopper.
BLOCK_KV = 64
#: Heads and their size of DeepSeek-V3.2's indexer.
HEADS, HEAD_DIM = 64, 128
IN_VLLM = "third_party/deep_gemm/__init__.py"
REQUIRES = (f"deep_gemm|vllm:{IN_VLLM}", GPU)


@cache
def library() -> ModuleType:
    """The module. vLLM's copy is loaded from its folder, without vLLM."""
    if importlib.util.find_spec("deep_gemm") is not None:
        import deep_gemm

        return deep_gemm
    path = file_in("vllm", IN_VLLM)
    name = "vllm.third_party.deep_gemm"
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(path.parent)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _schedule(lens: list[int], next_n: int, num_sms: int) -> list[list[int]]:
    """Rows of the table for requests of these lengths."""
    context_lens = torch.tensor(lens, dtype=torch.int32, device="cuda")[:, None].expand(-1, next_n).contiguous()
    return library().get_paged_mqa_logits_metadata(context_lens, BLOCK_KV, num_sms).tolist()


@cache
def atoms_of(next_n: int) -> int:
    """Query atoms of a request: the last row of a table is (requests x atoms, 0)."""
    return _schedule([SEGMENT, SEGMENT], next_n, 4 * next_n)[-1][0] // 2


@cache
def remainder() -> str:
    """Eight segments over seven SMs: row 1 is unit 2 where the first SM has two of them, else unit 1."""
    return "front" if _schedule([8 * SEGMENT], 1, 7)[1] == [0, 2] else "back"


def _skip(point: Point) -> str | None:
    if with_indices(point):
        return "DeepGEMM takes indices on SM100 only, and schedules runs of them since June 2026"
    if point.remainder != remainder():
        return f"this DeepGEMM gives the unit more to the {remainder()} SMs"
    tokens = point.max_decode_len if point.lens_layout == "2d" else 1
    if point.atoms != atoms_of(tokens):
        return f"this DeepGEMM makes {atoms_of(tokens)} atoms of {tokens} query tokens"
    return None


@variant(
    "paged_mqa_schedule",
    requires=REQUIRES,
    skip=_skip,
    waives="no_alloc",
    known_failures={
        "*negative lengths in padding rows*": "lengths are read as uint32; engines clamp them (vLLM #51538)"
    },
    fails_on=lambda point, x: bool((x.context_lens < 0).any()),
)
def deep_gemm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """DeepGEMM's metadata kernel, and the copy into the persistent table, as vLLM runs both."""
    context_lens = x.context_lens if x.context_lens.dim() == 2 else x.context_lens[:, None]
    plan, schedule = library().get_paged_mqa_logits_metadata, out.schedule[: point.num_sms + 1]

    def launch() -> None:
        schedule.copy_(plan(context_lens, BLOCK_KV, point.num_sms))

    return launch


def _skip_logits(point: Point) -> str | None:
    if with_indices(point):
        return "DeepGEMM's kernel takes indices on SM100 only"
    if point.lens_layout == "2d" and point.max_decode_len > 2:
        return "DeepGEMM's kernel takes one or two query tokens"
    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return None if point.num_sms == sms else f"the kernel runs on the {sms} SMs of this GPU"


@consumer("paged_mqa_schedule", planner="deep_gemm", requires=REQUIRES, skip=_skip_logits)
def paged_mqa_logits(point: Point, x: Inputs, out: Outputs) -> Mapping[str, torch.Tensor]:
    """DeepGEMM's fp8_paged_mqa_logits over a random fp8 cache: the logits of all tokens within a context."""
    lens = x.context_lens if x.context_lens.dim() == 2 else x.context_lens[:, None]
    requests, tokens, device = *lens.shape, lens.device
    longest = max(int(lens.max()), 1)
    blocks = -(-longest // BLOCK_KV)
    pool = min(requests * blocks, 1 << 14)
    # Per block: values of all tokens, then their scales. Bytes below 0x78 are finite positive fp8 numbers.
    cache = torch.randint(0, 0x38, (pool, BLOCK_KV * (HEAD_DIM + 4)), dtype=torch.uint8, device=device)
    cache[:, BLOCK_KV * HEAD_DIM :].view(torch.float32).uniform_(0.5, 1)
    q = torch.randn(requests, tokens, HEADS, HEAD_DIM, device=device).to(torch.float8_e4m3fn)
    weights = torch.randn(requests * tokens, HEADS, device=device)
    table = torch.randint(0, pool, (requests, blocks), dtype=torch.int32, device=device)
    schedule = out.schedule[: point.num_sms + 1]
    cache = cache.view(pool, BLOCK_KV, 1, HEAD_DIM + 4)
    logits = library().fp8_paged_mqa_logits(q, cache, weights, lens, table, schedule, blocks * BLOCK_KV, False)
    within = torch.arange(logits.shape[1], device=device) < lens.reshape(-1, 1)  # the rest is never written
    return {"logits": logits.masked_fill(~within, 0)}
