"""decode_step of vLLM 0.33: what the builder of the sparse indexer (DeepSeek-V3.2) does for decodes on Hopper.

There is a kernel for the flattened rows of a uniform step; the rest is PyTorch, in methods of the builder. The schedule
is DeepGEMM's (paged_mqa_schedule/deep_gemm), and FlashMLA plans its tiles inside the attention kernel: kernels of the
suite, which are not timed, make these two tables. vLLM's copy of the schedule is timed. On one of several
context-parallel ranks the builder replaces the expanded lengths by local ones before the schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from spec_decode_bench.baselines.dcp_lengths.operator import ranks_of
from spec_decode_bench.baselines.decode_step.operator import Inputs, Outputs, on_rank, schedule_part, tile_part
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.kernels.dcp_lengths import triton as local_kernel
from spec_decode_bench.kernels.mla_tile_schedule import triton as tile_kernel
from spec_decode_bench.kernels.paged_mqa_schedule import triton as schedule_kernel
from spec_decode_bench.upstream._vllm import Definitions, needs
from spec_decode_bench.upstream.vllm import CLAMPING, COLUMNS, FLATTEN_LIMITS, INDEXER, LOCAL, table_columns

SPLIT = "v1/attention/backends/utils.py"
BUILDER = "DeepseekV32IndexerMetadataBuilder"
UNIFORM = Definitions(INDEXER, CLAMPING, given=lambda: {"dataclass": dataclass})
DECODES = Definitions(SPLIT, "split_decodes_and_prefills")
BUILD = Definitions(
    INDEXER,
    "DeepSeekV32IndexerDecodeMetadata",
    "DeepseekV32IndexerMetadata",
    f"{BUILDER}.build",
    f"{BUILDER}._prepare_decode_tensors",
    f"{BUILDER}._prepare_global_decode_seq_lens",
    f"{BUILDER}._dcp_localize_decode_seq_lens",
    given=lambda: _used_by_builder(),
)
NEEDS = needs(UNIFORM, DECODES, BUILD, LOCAL)
IDLE = {"*all requests are padding*, native": "vLLM builds no metadata for a step without tokens"}
#: Tokens of a page of the index cache on Hopper.
BLOCK_KV = 64


def skip(point: Point) -> str | None:
    if point.next_n == 1:
        return "vLLM hands on its lengths where requests have one token"
    if point.decode_path == "native" and point.decode_len != "uniform":
        return "vLLM counts rows of another length as prefills on this path"
    if point.decode_path == "flatten" and point.host_lens == "stale":
        return "reads query lengths from the CPU copy, which is stale here"
    return None


def _fails_on(point: Point, x: Inputs) -> bool:
    """The source is narrower or wider than the table that its rows are copied to, or there are fewer tokens than
    requests, of which each gets a decode length.
    """
    other_columns = x.block_table.shape[1] != table_columns(point)
    return point.decode_path == "flatten" and (other_columns or x.num_decode_tokens < point.batch_size)


def _made_by_the_suite(point: Point, x: Inputs, out: Outputs) -> list[Callable[[], None]]:
    """The schedule, and the tiles with the lengths that they are over."""
    local, localize = on_rank(point, x, local_kernel.triton_fused)
    schedule = schedule_kernel.triton_fused(*schedule_part(point, out))
    return [own(one) for one in (schedule, *localize, tile_kernel.triton_fused(*tile_part(point, local, out)))]


@cache
def _fresh(num_sms: int, device: torch.device) -> torch.Tensor:
    """Where DeepGEMM would leave its schedule."""
    return torch.zeros(num_sms + 1, 2, dtype=torch.int32, device=device)


def _used_by_builder() -> dict[str, Any]:
    """By the builder's methods. The launcher of the uniform kernel, which also warms it up, is not loaded: it takes the
    engine's configuration.
    """
    kernel = UNIFORM().kernel

    def uniform(lens: Any, flat_lens: Any, table: Any, flat_table: Any, ones: Any, tokens: int, width: int) -> None:
        tables = table, table.stride(0), flat_table, flat_table.stride(0)
        kernel[(tokens,)](lens, flat_lens, *tables, ones, width, BLOCK_SIZE=COLUMNS)

    return {
        "dataclass": dataclass,
        "split_decodes_and_prefills": DECODES().split_decodes_and_prefills,
        "get_dcp_local_seq_lens": LOCAL().get_dcp_local_seq_lens,
        "current_platform": SimpleNamespace(is_cuda=lambda: True),
        "has_deep_gemm": lambda: True,
        "get_paged_mqa_logits_metadata": lambda lens, block_size, num_sms, indices: _fresh(num_sms, lens.device),
        "_supports_native_decode": lambda next_n: True,
        "_PREPARE_UNIFORM_DECODE_KERNEL": uniform,
    }


def _builder(point: Point, out: Outputs) -> SimpleNamespace:
    """With the attributes that the methods read."""
    tokens, device = out.lens.numel(), out.lens.device
    (size, rank, interleave), calls = ranks_of(point), BUILD()
    builder = SimpleNamespace(
        vllm_config=SimpleNamespace(speculative_config=None),
        use_flattening=point.decode_path == "flatten",
        supports_varlen=False,
        use_pcp=False,
        pcp_world_size=1,
        compress_ratio=1,
        decode_threshold=point.next_n,
        num_speculative_tokens=point.next_n - 1,
        num_sms=point.num_sms,
        kv_cache_spec=SimpleNamespace(num_states=BLOCK_KV),
        decode_lens_buffer=out.decode_lens,
        per_req_decode_lens_buffer=torch.empty_like(out.decode_lens),
        decode_seq_lens_buffer=out.lens,
        global_decode_seq_lens_buffer=torch.empty_like(out.lens),
        expanded_block_table_buffer=out.block_table,
        scheduler_metadata_buffer=out.schedule[: point.num_sms + 1],
        offsets_buffer=torch.arange(point.next_n, dtype=torch.int32, device=device),
        arange_buffer=torch.arange(tokens, dtype=torch.int32, device=device),
        dcp_world_size=size,
        dcp_rank_tensor=torch.tensor(rank, dtype=torch.int32, device=device),
        cp_kv_cache_interleave_size=interleave,
    )
    for name in ("_prepare_decode_tensors", "_prepare_global_decode_seq_lens", "_dcp_localize_decode_seq_lens"):
        setattr(builder, name, partial(getattr(calls, name), builder))
    return builder


@variant(
    "decode_step",
    requires=NEEDS,
    skip=skip,
    waives="no_alloc",
    known_failures=FLATTEN_LIMITS,
    fails_on=_fails_on,
)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's launches for these tables: lengths and rows of the indexer, and the copy of the schedule."""
    builder, rows, width = _builder(point, out), point.batch_size, point.max_decode_len
    decode_lens = out.decode_lens[:rows]

    def lengths() -> None:
        torch.diff(x.query_start_loc[: rows + 1], out=decode_lens)
        lens, *_ = builder._prepare_decode_tensors(
            seq_lens=x.seq_lens,
            block_table=x.block_table,
            decode_lens=decode_lens,
            decode_lens_cpu=torch.diff(x.query_start_loc_cpu[: rows + 1]),
            query_start_loc=x.query_start_loc[:rows],
            num_decodes=rows,
            num_decode_tokens=x.num_decode_tokens,
            use_native=point.decode_path == "native",
            next_n=point.next_n,
            max_decode_len=width,
        )
        if point.cp_size > 1:
            builder._dcp_localize_decode_seq_lens(lens, rows, True)

    fresh, schedule = _fresh(point.num_sms, out.lens.device), out.schedule[: point.num_sms + 1]
    return EngineLaunch(lengths, lambda: schedule.copy_(fresh), *_made_by_the_suite(point, x, out))


@variant(
    "decode_step",
    requires=NEEDS,
    skip=skip,
    waives="no_alloc",
    known_failures=FLATTEN_LIMITS | IDLE,
    fails_on=lambda point, x: _fails_on(point, x) or not int(x.query_start_loc_cpu[-1]),
)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The builder's build(), which also fills the rows per request."""
    builder, build, tokens = _builder(point, out), BUILD().build, x.num_decode_tokens
    if point.decode_path == "native":
        tokens = point.batch_size * point.max_decode_len
    metadata = SimpleNamespace(
        num_reqs=point.batch_size,
        num_actual_tokens=tokens,
        query_start_loc=x.query_start_loc,
        query_start_loc_cpu=x.query_start_loc_cpu,
        seq_lens=x.seq_lens,
        max_query_len=point.max_decode_len,
        max_seq_len=point.max_model_len,
        slot_mapping=None,
        block_table_tensor=x.block_table,
        dcp_local_seq_lens=None if point.cp_size == 1 else x.seq_lens,  # only asked for whether it is there
    )
    return EngineLaunch(lambda: build(builder, 0, metadata), *_made_by_the_suite(point, x, out))
