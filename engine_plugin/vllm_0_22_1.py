"""vLLM 0.22.1: which function is which operator, and where its inputs lie.

    V2 runner   prepare_inputs and prepare_attn             step_prologue, and its parts step_inputs,
                                                            gather_block_tables and compute_slot_mappings
                get_num_sampled_and_rejected, post_update   post_update; with the drafter's first inputs step_epilogue
    indexer     _prepare_decode_tensors                     decode_flatten
                and get_paged_mqa_logits_metadata           decode_step
    Mamba       _compute_common_metadata, cache mode all    mamba_spec_metadata

All tensors of the V2 runner have fixed addresses but ``num_blocks`` and ``prefill_len``, each of which alternates
between two buffers of pinned memory, and idx_mapping, cu_num_logits and what is made by logit row, which are new in
each step. Slots are int32. A request of the warm-up has a name that begins with WARM_UP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from spec_decode_bench.engine_plugin.arguments import mamba_hooks
from spec_decode_bench.engine_plugin.hooks import Hooks
from spec_decode_bench.engine_plugin.indexer import Indexer
from spec_decode_bench.engine_plugin.prologue import Buffers, Prologue, Rows
from spec_decode_bench.engine_plugin.session import Session, Step
from spec_decode_bench.harness.launch import fixed_launch

WARM_UP = "_warmup_"
#: Operators that a stack may name.
OPERATORS = ("step_prologue", "decode_step", "decode_flatten")
V2, V1 = "v1/worker/gpu/model_runner.py", "v1/worker/gpu_model_runner.py"
BATCH, TABLES = "v1/worker/gpu/input_batch.py", "v1/worker/gpu/block_table.py"
STATES, BUFFERS = "v1/worker/gpu/states.py", "v1/worker/gpu/buffer_utils.py"
INDEXER, MAMBA = "v1/attention/backends/mla/indexer.py", "v1/attention/backends/mamba_attn.py"
BUILDER = f"{INDEXER}::DeepseekV32IndexerMetadataBuilder"
SCHEDULE = "v1/core/sched/output.py"
#: What is replaced, called or read of the engine.
USED = (
    *(f"{V2}::GPUModelRunner.{name}" for name in ("execute_model", "prepare_inputs", "prepare_attn", "req_states")),
    *(f"{V2}::GPUModelRunner.{name}" for name in ("input_buffers", "num_speculative_steps", "max_num_reqs", "use_dcp")),
    *(f"{V2}::GPUModelRunner.{name}" for name in ("block_tables", "vllm_config")),
    *(f"{V2}::{name}" for name in ("get_num_sampled_and_rejected", "post_update", "expand_idx_mapping")),
    *(f"{V2}::{name}" for name in ("prepare_pos_seq_lens", "combine_sampled_and_draft_tokens")),
    f"{BATCH}::InputBatch",
    *(f"{BATCH}::InputBuffers.{name}" for name in ("input_ids", "positions", "query_start_loc", "seq_lens")),
    *(f"{BATCH}::_{name}_kernel" for name in ("expand_idx_mapping", "prepare_pos_seq_lens")),
    f"{BATCH}::_combine_sampled_and_draft_tokens_kernel",
    *(f"{TABLES}::_{name}_kernel" for name in ("gather_block_tables", "compute_slot_mappings")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("gather_block_tables", "compute_slot_mappings", "block_tables")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("num_kv_cache_groups", "cp_size", "cp_rank", "cp_interleave")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("input_block_tables", "num_blocks", "slot_mappings")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("kernel_block_sizes", "max_num_batched_tokens")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("block_table_ptrs", "input_block_table_ptrs")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("block_table_strides", "block_sizes_tensor")),
    *(f"{STATES}::RequestState.{name}" for name in ("req_id_to_index", "all_token_ids", "prefill_len", "total_len")),
    *(f"{STATES}::RequestState.{name}" for name in ("num_computed_tokens", "num_computed_tokens_np", "draft_tokens")),
    *(f"{STATES}::RequestState.{name}" for name in ("last_sampled_tokens", "next_prefill_tokens", "is_prefilling")),
    *(f"{BUFFERS}::{name}.gpu" for name in ("UvaBackedTensor", "StagedWriteTensor")),
    *(f"{INDEXER}::{name}" for name in ("_prepare_uniform_decode_kernel", "get_paged_mqa_logits_metadata")),
    f"{BUILDER}._prepare_decode_tensors",
    *(f"{BUILDER}.{name}_buffer" for name in ("decode_seq_lens", "decode_lens", "expanded_block_table")),
    *(f"{BUILDER}.{name}" for name in ("scheduler_metadata_buffer", "num_sms", "compress_ratio")),
    f"{MAMBA}::BaseMambaAttentionMetadataBuilder._compute_common_metadata",
    *(f"{MAMBA}::BaseMambaAttentionMetadataBuilder.{name}" for name in ("num_spec_tokens", "decode_cudagraph_max_bs")),
    *(f"{V1}::GPUModelRunner.{name}" for name in ("execute_model", "num_spec_tokens", "vllm_config")),
    *(f"{SCHEDULE}::{name}" for name in ("SchedulerOutput", "CachedRequestData")),
)


def hooks(session: Session) -> Hooks:
    """What takes the place of the engine's functions."""
    return {
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model": steps(session, "num_speculative_steps"),
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model": steps(session, "num_spec_tokens"),
        **PreparedStep(session).hooks("vllm.v1.worker.gpu.model_runner"),
        **Indexer(session, UniformDecode()).hooks(),
        **mamba_hooks(session),
    }


def steps(session: Session, drafts: str) -> Callable[[Callable], Callable]:
    """drafts: attribute of the runner, how many a step has."""

    def wrap(original: Callable) -> Callable:
        def execute_model(self: Any, scheduler_output: Any, *given: Any, **named: Any) -> Any:
            is_dummy = named.get("dummy_run") or (len(given) > 1 and given[1])
            if not is_dummy and (step := step_of(scheduler_output, getattr(self, drafts))) is not None:
                session.begin(step, lambda: model_of(self.vllm_config))
            return original(self, scheduler_output, *given, **named)

        return execute_model

    return wrap


def step_of(output: Any, num_drafts: int) -> Step | None:
    """None where no request is scheduled, and in the engine's warm-up."""
    tokens = output.num_scheduled_tokens
    if not tokens or next(iter(tokens)).startswith(WARM_UP):
        return None
    rows = len(tokens)
    decodes = len(output.scheduled_spec_decode_tokens) == rows
    decodes = decodes and output.total_num_scheduled_tokens == rows * (num_drafts + 1)
    cached = output.scheduled_cached_reqs
    return Step(rows, decodes, lambda: dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True)))


def model_of(config: Any) -> dict[str, Any]:
    """What a record says of the model: its name without its folder, and how drafts are made."""
    model, speculative = config.model_config, config.speculative_config
    return {
        "model": str(model.model).rstrip("/").rpartition("/")[2],
        "layers": model.hf_text_config.num_hidden_layers,
        "method": speculative.method if speculative else "",
        "num_drafts": speculative.num_speculative_tokens if speculative else 0,
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "max_model_len": model.max_model_len,
    }


class PreparedStep(Prologue):
    """step_prologue in this version."""

    index_dtype = torch.int32

    def rows(self, runner: Any, given: tuple) -> Rows | None:
        output, described = given
        tokens, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
        count, k, tables = len(tokens), runner.num_speculative_steps, runner.block_tables
        if not k or len(drafts) != count or output.total_num_scheduled_tokens != count * (k + 1):
            return None
        if any(len(one) != k for one in drafts.values()) or runner.use_dcp or tables.num_kv_cache_groups != 1:
            return None
        req_ids = sorted(tokens, key=tokens.get)
        slots = np.fromiter(map(runner.req_states.req_id_to_index.get, req_ids), dtype=np.int32, count=count)
        is_prefilling = runner.req_states.is_prefilling(slots)
        if is_prefilling.any():
            return None
        return Rows(
            req_ids=req_ids,
            slots=slots,
            scheduled=np.full(count, k + 1, dtype=np.int32),
            drafts=np.full(count, k, dtype=np.int32),
            is_prefilling=is_prefilling,
            padded=described.num_reqs or count,
            tokens=count * (k + 1),
            padded_tokens=described.num_tokens,
        )

    def batch(self, runner: Any, given: tuple, rows: Rows, own: Buffers) -> Any:
        from vllm.v1.worker.gpu.input_batch import InputBatch

        count, tokens, buffers = len(rows.req_ids), rows.tokens, runner.input_buffers
        starts = np.minimum(np.arange(rows.padded + 1, dtype=np.int32), count) * (runner.num_speculative_steps + 1)
        bound = np.zeros(rows.padded, dtype=np.int32)
        np.add(runner.req_states.num_computed_tokens_np[rows.slots], rows.scheduled, out=bound[:count])
        return InputBatch(
            req_ids=rows.req_ids,
            num_reqs=count,
            num_reqs_after_padding=rows.padded,
            idx_mapping=own.slots[:count],
            idx_mapping_np=rows.slots,
            expanded_idx_mapping=own.expanded_idx_mapping[:tokens],
            expanded_local_pos=own.expanded_local_pos[:tokens],
            num_scheduled_tokens=rows.scheduled,
            num_tokens=tokens,
            num_tokens_after_padding=rows.padded_tokens,
            num_draft_tokens=tokens - count,
            num_draft_tokens_per_req=rows.drafts,
            query_start_loc=buffers.query_start_loc[: rows.padded + 1],
            query_start_loc_np=starts,
            seq_lens=buffers.seq_lens[: rows.padded],
            seq_lens_cpu_upper_bound=torch.from_numpy(bound),
            dcp_local_seq_lens=None,
            is_prefilling_np=rows.is_prefilling,
            input_ids=buffers.input_ids[: rows.padded_tokens],
            positions=buffers.positions[: rows.padded_tokens],
            logits_indices=own.logits_indices[:tokens],
            cu_num_logits=own.cu_num_logits[: count + 1],
            cu_num_logits_np=starts[: count + 1],
            has_structured_output_reqs=given[0].has_structured_output_requests,
        )

    def packed(self, runner: Any, own: Buffers, rows: int, padded: int) -> list[Callable[[], Any]]:
        from vllm.v1.worker.gpu import block_table

        tables, starts, slots = runner.block_tables, runner.input_buffers.query_start_loc, own.slots[:rows]
        return [
            *packed_inputs(runner, own, rows),
            fixed_launch(
                block_table._gather_block_tables_kernel,
                (1, padded),
                *(slots, tables.block_table_ptrs, tables.input_block_table_ptrs, tables.block_table_strides),
                *(tables.num_blocks.gpu, tables.num_blocks.gpu.stride(0), rows, tables.input_block_tables[0].shape[1]),
                BLOCK_SIZE=1024,
            ),
            fixed_launch(
                block_table._compute_slot_mappings_kernel,
                (1, rows + 1),
                *(tables.max_num_batched_tokens, slots, starts, runner.input_buffers.positions),
                *(tables.block_table_ptrs, tables.block_table_strides, tables.block_sizes_tensor),
                *(tables.slot_mappings, tables.slot_mappings.stride(0), tables.cp_rank),
                CP_SIZE=tables.cp_size,
                CP_INTERLEAVE=tables.cp_interleave,
                PAD_ID=-1,
                TRITON_BLOCK_SIZE=1024,
            ),
        ]


def packed_inputs(runner: Any, own: Buffers, rows: int) -> list[Callable[[], Any]]:
    """The kernels of ``prepare_inputs``, which are the same in 0.33.0."""
    from vllm.v1.worker.gpu import input_batch

    states, buffers, slots = runner.req_states, runner.input_buffers, own.slots[:rows]
    lanes, starts = 1 << runner.num_speculative_steps.bit_length(), buffers.query_start_loc
    expanded = own.expanded_idx_mapping, own.expanded_local_pos
    return [
        fixed_launch(
            input_batch._expand_idx_mapping_kernel, (rows,), slots, *expanded, own.cu_num_logits, BLOCK_SIZE=lanes
        ),
        fixed_launch(
            input_batch._prepare_pos_seq_lens_kernel,
            (rows + 1,),
            *(buffers.positions, buffers.seq_lens, slots, starts, states.num_computed_tokens.gpu),
            len(buffers.seq_lens),
            BLOCK_SIZE=1024,
        ),
        fixed_launch(
            input_batch._combine_sampled_and_draft_tokens_kernel,
            (rows,),
            *(buffers.input_ids, slots, states.last_sampled_tokens, starts, buffers.seq_lens),
            *(states.prefill_len.gpu, states.draft_tokens, states.draft_tokens.stride(0)),
            *(own.cu_num_logits, own.logits_indices),
            BLOCK_SIZE=lanes,
        ),
    ]


class UniformDecode:
    """The engine's own kernel of the indexer's flattened rows, by a packed launch."""

    #: Which SMs get a unit more in the schedules of the DeepGEMM that the wheel carries.
    remainder = "front"

    def covers(self, builder: Any, given: Mapping[str, Any]) -> bool:
        """Whether every request brings the same number of tokens, more than one of them."""
        return not given["use_native"] and given["max_decode_len"] > 1 and builder.compress_ratio == 1

    def packed(self, builder: Any, given: Mapping[str, Any], tokens: int) -> Callable[[], Any]:
        table, expanded = given["block_table"], builder.expanded_block_table_buffer
        launch = fixed_launch(
            self.kernel(),
            (tokens,),
            *(given["seq_lens"], builder.decode_seq_lens_buffer, table, table.stride(0)),
            *(expanded, expanded.stride(0), builder.decode_lens_buffer, given["max_decode_len"]),
            BLOCK_SIZE=1024,
        )
        tail = builder.decode_seq_lens_buffer[tokens:]

        def both() -> None:
            launch()
            tail.zero_()

        return both

    def kernel(self) -> Any:
        from vllm.v1.attention.backends.mla import indexer

        return indexer._prepare_uniform_decode_kernel
