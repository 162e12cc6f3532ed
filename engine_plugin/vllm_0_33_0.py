"""vLLM 0.33.0: what differs from 0.22.1 (``vllm_0_22_1.py``). It needs torch 2.14.

    prepare_inputs      takes the state of the batch that the scheduler made; idx_mapping is int64; a batch has the
                        arrays of that state and ``is_padding``
    gather_block_tables clears the rows of a larger batch before, which ``_num_dirty_rows`` counts
    get_num_sampled...  is called by the sampler and the rejection sampler
    indexer             flattens single tokens too; one kernel object; DeepGEMM's newer schedules

Steps with context parallelism, adaptive verification, fast prefill, windowed groups or tokens padded behind the
requests are left to the engine. Mamba's metadata has no anchors here, so that nothing of it is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from spec_decode_bench.engine_plugin import vllm_0_22_1 as before
from spec_decode_bench.engine_plugin.hooks import Hooks
from spec_decode_bench.engine_plugin.indexer import Indexer
from spec_decode_bench.engine_plugin.prologue import Buffers, Prologue, Rows
from spec_decode_bench.engine_plugin.session import Session
from spec_decode_bench.harness.launch import fixed_launch

OPERATORS = before.OPERATORS
V2, BATCH, TABLES, INDEXER = before.V2, before.BATCH, before.TABLES, before.INDEXER
STATES, BUILDER = before.STATES, before.BUILDER
#: Those that call ``get_num_sampled_and_rejected``.
SAMPLERS = ("v1/worker/gpu/sample/sampler.py", "v1/worker/gpu/spec_decode/rejection_sampler.py")
#: What is replaced, called or read of the engine.
USED = (
    *(f"{V2}::GPUModelRunner.{name}" for name in ("execute_model", "prepare_inputs", "prepare_attn", "req_states")),
    *(f"{V2}::GPUModelRunner.{name}" for name in ("input_buffers", "num_speculative_steps", "max_num_reqs")),
    *(f"{V2}::GPUModelRunner.{name}" for name in ("block_tables", "vllm_config", "model_config", "model_state")),
    *(f"{V2}::GPUModelRunner.{name}" for name in ("adaptive_verification", "fast_prefill", "pcp_manager")),
    *(f"{V2}::{name}" for name in ("post_update", "BatchReqState")),
    *(f"{file}::get_num_sampled_and_rejected" for file in SAMPLERS),
    f"{BATCH}::InputBatch",
    *(f"{BATCH}::InputBuffers.{name}" for name in ("input_ids", "positions", "query_start_loc", "seq_lens")),
    f"{BATCH}::InputBuffers.is_padding",
    *(f"{BATCH}::_{name}_kernel" for name in ("expand_idx_mapping", "prepare_pos_seq_lens")),
    f"{BATCH}::_combine_sampled_and_draft_tokens_kernel",
    *(f"{TABLES}::_{name}_kernel" for name in ("gather_block_tables", "compute_slot_mappings")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("gather_block_tables", "compute_slot_mappings", "block_tables")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("num_kv_cache_groups", "cp_size", "cp_rank", "cp_interleave")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("input_block_tables", "num_blocks", "slot_mappings")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("block_sizes", "max_num_batched_tokens", "_num_dirty_rows")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("block_table_ptrs", "input_block_table_ptrs")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("block_table_strides", "block_sizes_tensor", "dcp_sharded")),
    *(f"{TABLES}::BlockTables.{name}" for name in ("slot_mapping_enabled", "has_sliding_window_groups")),
    f"{TABLES}::BlockTables.sliding_window_reach",
    *(f"{STATES}::RequestState.{name}" for name in ("req_id_to_index", "all_token_ids", "prefill_len", "total_len")),
    *(f"{STATES}::RequestState.{name}" for name in ("num_computed_tokens", "num_computed_tokens_np", "draft_tokens")),
    *(f"{STATES}::RequestState.{name}" for name in ("last_sampled_tokens", "next_prefill_tokens")),
    *(f"{before.BUFFERS}::{name}.gpu" for name in ("UvaBackedTensor", "StagedWriteTensor")),
    *(f"{INDEXER}::{name}" for name in ("PrepareUniformDecodeKernel.kernel", "get_paged_mqa_logits_metadata")),
    f"{INDEXER}::_PREPARE_UNIFORM_DECODE_KERNEL",
    f"{BUILDER}._prepare_decode_tensors",
    *(f"{BUILDER}.{name}_buffer" for name in ("decode_seq_lens", "decode_lens", "expanded_block_table")),
    *(f"{BUILDER}.{name}" for name in ("scheduler_metadata_buffer", "num_sms", "compress_ratio", "dcp_world_size")),
    *(f"{before.SCHEDULE}::{name}" for name in ("SchedulerOutput", "CachedRequestData")),
)


def hooks(session: Session) -> Hooks:
    """What takes the place of the engine's functions."""
    runner = "vllm.v1.worker.gpu.model_runner"
    samplers = [f"vllm.{file.removesuffix('.py').replace('/', '.')}" for file in SAMPLERS]
    return {
        f"{runner}:GPUModelRunner.execute_model": before.steps(session, "num_speculative_steps"),
        **PreparedStep(session).hooks(runner, samplers),
        **Indexer(session, UniformDecode()).hooks(),
    }


class PreparedStep(Prologue):
    """step_prologue in this version."""

    index_dtype = torch.int64

    def rows(self, runner: Any, given: tuple) -> Rows | None:
        output, state, described, _ = given
        count, k, tables = len(state.req_ids), runner.num_speculative_steps, runner.block_tables
        drafts, padded = state.num_draft_tokens_np, described.num_reqs or len(state.req_ids)
        if not k or state.has_prefill or drafts is None or not output.scheduled_spec_decode_tokens:
            return None
        if (drafts != k).any() or (state.num_scheduled_tokens != k + 1).any() or state.num_tokens != count * (k + 1):
            return None
        if tables.num_kv_cache_groups != 1 or tables.cp_size != 1 or tables.has_sliding_window_groups:
            return None
        if tables._num_dirty_rows > padded or runner.model_state.num_new_sampled_tokens_per_step != 1:
            return None
        others = runner.adaptive_verification, runner.fast_prefill, runner.pcp_manager, runner.model_config.rswa_window
        if any(one is not None for one in others):
            return None
        return Rows(
            req_ids=state.req_ids,
            slots=state.idx_mapping_np,
            scheduled=state.num_scheduled_tokens,
            drafts=drafts,
            is_prefilling=state.is_prefilling_np,
            padded=padded,
            tokens=state.num_tokens,
            padded_tokens=max(state.num_tokens, described.num_tokens),
        )

    def batch(self, runner: Any, given: tuple, rows: Rows, own: Buffers) -> Any:
        from vllm import envs
        from vllm.v1.worker.gpu.input_batch import InputBatch

        count, tokens, buffers, (output, state, _, _) = len(rows.req_ids), rows.tokens, runner.input_buffers, given
        starts = np.minimum(np.arange(rows.padded + 1, dtype=np.int32), count) * (runner.num_speculative_steps + 1)
        computed, bound = runner.req_states.num_computed_tokens_np[rows.slots], np.zeros(rows.padded, dtype=np.int32)
        np.add(computed, rows.scheduled, out=bound[:count])
        is_padding = buffers.is_padding[: rows.padded_tokens]
        if envs.VLLM_MOE_SKIP_PADDING:
            is_padding[:tokens].fill_(False)
            is_padding[tokens:].fill_(True)
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
            num_admitted_draft_tokens=None,
            query_start_loc=buffers.query_start_loc[: rows.padded + 1],
            query_start_loc_np=starts,
            seq_lens=buffers.seq_lens[: rows.padded],
            seq_lens_cpu_upper_bound=torch.from_numpy(bound),
            dcp_local_seq_lens=None,
            num_computed_tokens_np=computed,
            prefill_len_np=state.prefill_len_np,
            num_computed_prefill_tokens_np=state.num_computed_prefill_tokens_np,
            is_prefilling_np=state.is_prefilling_np,
            has_prefill=state.has_prefill,
            prefill_runs_as_decode_np=state.prefill_runs_as_decode_np,
            decode_graph_eligible=state.decode_graph_eligible,
            max_seq_len_np=state.max_seq_len_np,
            input_ids=buffers.input_ids[: rows.padded_tokens],
            positions=buffers.positions[: rows.padded_tokens],
            is_padding=is_padding,
            logits_indices=own.logits_indices[:tokens],
            cu_num_logits=own.cu_num_logits[: count + 1],
            cu_num_logits_np=starts[: count + 1],
            has_structured_output_reqs=output.has_structured_output_requests,
            prompt_lens=None,
            fast_prefill=None,
            max_query_len=None,
        )

    def done(self, runner: Any, rows: Rows) -> None:
        runner.block_tables._num_dirty_rows = len(rows.req_ids)

    def packed(self, runner: Any, own: Buffers, rows: int, padded: int) -> list[Callable[[], Any]]:
        from vllm.v1.worker.gpu import block_table

        tables, starts = runner.block_tables, runner.input_buffers.query_start_loc
        slots, reach = own.slots[:rows], tables.sliding_window_reach
        return [
            *before.packed_inputs(runner, own, rows),
            fixed_launch(
                block_table._gather_block_tables_kernel,
                (1, padded),
                *(slots, tables.block_table_ptrs, tables.input_block_table_ptrs, tables.block_table_strides),
                *(tables.num_blocks.gpu, tables.num_blocks.gpu.stride(0), rows, reach, reach),
                tables.block_sizes_tensor,
                MASK_SLIDING_WINDOW=False,
                BLOCK_SIZE=1024,
            ),
            fixed_launch(
                block_table._compute_slot_mappings_kernel,
                (1, rows + 1),
                *(tables.slot_mappings.shape[1], slots, starts, runner.input_buffers.positions),
                *(tables.block_table_ptrs, tables.block_table_strides, tables.block_sizes_tensor),
                *(tables.slot_mapping_enabled, tables.dcp_sharded, tables.slot_mappings),
                *(tables.slot_mappings.stride(0), tables.cp_rank),
                CP_SIZE=tables.cp_size,
                CP_INTERLEAVE=tables.cp_interleave,
                PAD_ID=-1,
                TRITON_BLOCK_SIZE=1024,
            ),
        ]


class UniformDecode(before.UniformDecode):
    """The indexer in this version."""

    remainder = "back"

    def covers(self, builder: Any, given: Mapping[str, Any]) -> bool:
        """Also where every request brings one token."""
        return not given["use_native"] and builder.compress_ratio == 1 and builder.dcp_world_size == 1

    def kernel(self) -> Any:
        from vllm.v1.attention.backends.mla import indexer

        return indexer.PrepareUniformDecodeKernel.kernel
