"""Inputs of operators, read from the state of vLLM's runners in a step that is captured.

A step is captured where a point of the operator describes it: decodes with all their drafts, then prefill chunks of one
length. Slots, blocks and tokens that the step does not use are left out of the file. Token ids stay in the engine
unless the plan asks for them: numbers stand in their place, since no kernel looks at their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import ModuleType
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.compute_slot_mappings import operator as compute_slot_mappings
from spec_decode_bench.baselines.decode_flatten import operator as decode_flatten
from spec_decode_bench.baselines.decode_step import operator as decode_step
from spec_decode_bench.baselines.draft_inputs import operator as draft_inputs
from spec_decode_bench.baselines.gather_block_tables import operator as gather_block_tables
from spec_decode_bench.baselines.mamba_spec_metadata import operator as mamba_spec_metadata
from spec_decode_bench.baselines.paged_mqa_schedule import operator as paged_mqa_schedule
from spec_decode_bench.baselines.post_update import operator as post_update
from spec_decode_bench.baselines.step_epilogue import operator as step_epilogue
from spec_decode_bench.baselines.step_inputs import operator as step_inputs
from spec_decode_bench.baselines.step_prologue import operator as step_prologue
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import UNUSED
from spec_decode_bench.engine_plugin.session import Entry, Session
from spec_decode_bench.harness.captures import Omitted, Used

CHUNKS = "prefill chunks of several lengths, or decodes without all their drafts"


def entry(module: ModuleType, axes: Mapping[str, Any], values: Mapping[str, Any]) -> Entry:
    """The axes and inputs that the operator of a module has, of all that is known; other inputs are None."""
    names = {axis.name for axis in module.operator.axes}
    tensors = {name: values.get(name) for name in module.Inputs.__dataclass_fields__}
    return Entry(module.operator.name, {name: value for name, value in axes.items() if name in names}, tensors)


def made(record: type, **given: Any) -> Any:
    """An Inputs or Outputs whose other fields are None: of what the engine's step does not have."""
    return record(**(dict.fromkeys(field.name for field in fields(record)) | given))


def block_sizes(tables: Any) -> list[int]:
    """Tokens of a block as kernels address it, by group. Version 0.33 has no other blocks."""
    return list(tables.kernel_block_sizes if hasattr(tables, "kernel_block_sizes") else tables.block_sizes)


def host(tensor: torch.Tensor) -> np.ndarray:
    """A copy, as of the work that is queued now."""
    return tensor.detach().cpu().numpy().copy()


class V2Step:
    """A step of the V2 runner, read behind ``prepare_attn``, and what its sampled tokens change.

    runner, batch: of the engine. token_ids: whether they are read.
    """

    def __init__(self, runner: Any, batch: Any, token_ids: bool) -> None:
        self._runner, self._batch, self._token_ids = runner, batch, token_ids
        states, tables, k = runner.req_states, runner.block_tables, runner.num_speculative_steps
        self.real, self.rows, self.tokens = batch.num_reqs, batch.num_reqs_after_padding, batch.num_tokens
        self.capacity = capacity = tables.block_tables[0].gpu.shape[0]
        self.slots = np.asarray(batch.idx_mapping_np, dtype=np.int64)
        query, chunks = np.asarray(batch.num_scheduled_tokens), np.asarray(batch.is_prefilling_np)
        self.lens = host(batch.seq_lens)
        self.of_batch = np.isin(np.arange(capacity), self.slots)
        decodes = int((~chunks).sum())
        ordered = not chunks[:decodes].any() and (query[:decodes] == k + 1).all()
        self.is_described = bool(ordered and len(set(query[decodes:].tolist())) < 2)
        widths = [table.gpu.shape[1] for table in tables.block_tables]
        sizes = block_sizes(tables)
        self.is_described &= len(set(sizes)) == len(set(widths)) == 1 and tables.cp_size == 1
        self.history_len = states.all_token_ids.gpu.shape[1]
        self.axes = {
            "batch_size": self.rows,
            "padding": (self.rows - self.real) / self.rows,
            "next_n": k + 1,
            "max_decode_len": k + 1,
            "context_len": int(self.lens.max()),
            "max_model_len": widths[0] * sizes[0],
            "prefills": self.real - decodes,
            "prefill_len": int(query[-1]) if decodes < self.real else 1,
            "prompt_rows": "some" if decodes < self.real else "none",
            "max_num_seqs": capacity,
            "block_size": sizes[0],
            "num_groups": len(sizes),
            "max_num_batched_tokens": tables.max_num_batched_tokens,
            "history_len": self.history_len,
            "look_ahead": states.next_prefill_tokens.numel() // capacity,
            "memory": "uva",
        }
        self._values = self._read(widths, sizes)

    def _by_slot(self, tensor: torch.Tensor) -> Used:
        return Used(host(tensor), np.broadcast_to(self.of_batch, tuple(tensor.shape)), UNUSED)

    def _ids(self, tensor: torch.Tensor) -> np.ndarray:
        """Token ids, or numbers in their place."""
        if self._token_ids:
            return host(tensor)
        numbers = np.arange(tensor.numel()).reshape(tuple(tensor.shape)) % 1000
        return numbers.astype(str(tensor.dtype).removeprefix("torch."))

    def _read(self, widths: list[int], sizes: list[int]) -> dict[str, Any]:
        runner, batch, capacity = self._runner, self._batch, self.capacity
        states, tables = runner.req_states, runner.block_tables
        counts = host(tables.num_blocks.gpu)
        owned = [(np.arange(width) < counts[g][:, None]) & self.of_batch[:, None] for g, width in enumerate(widths)]
        flat = np.concatenate([host(table.gpu).ravel() for table in tables.block_tables])
        idx_mapping = np.full(self.rows, -1, dtype=np.int64)
        idx_mapping[: self.real] = self.slots
        cu_num_logits = np.pad(host(batch.cu_num_logits), (0, self.rows - self.real), mode="edge")
        history = Omitted((capacity, self.history_len), "int32")
        if self._token_ids:
            lens = host(states.total_len.gpu)
            known = (np.arange(self.history_len) < lens[:, None]) & self.of_batch[:, None]
            history = Used(host(states.all_token_ids.gpu), known, UNUSED)
        groups = len(sizes)
        return {
            "idx_mapping": idx_mapping,
            "query_start_loc": host(runner.input_buffers.query_start_loc),
            "query_start_loc_cpu": np.asarray(batch.query_start_loc_np[: self.rows + 1]).copy(),
            "cu_num_logits": cu_num_logits,
            "num_computed_tokens": self._by_slot(states.num_computed_tokens.gpu),
            "last_sampled_tokens": self._ids(states.last_sampled_tokens.view(-1)),
            "draft_tokens": self._ids(states.draft_tokens),
            "prompt_lens_host": self._by_slot(states.prefill_len.gpu),
            "all_token_ids_host": history,
            "tables": Used(flat, np.concatenate([mask.ravel() for mask in owned]), UNUSED),
            "starts": np.cumsum([0, *(capacity * width for width in widths[:-1])], dtype=np.int64),
            "widths": np.array(widths, dtype=np.int64),
            "block_sizes": np.array(sizes, dtype=np.int32),
            "reach": np.zeros(groups, dtype=np.int32),
            "enabled": np.ones(groups, dtype=bool),
            "sharded": np.zeros(groups, dtype=bool),
            "num_blocks_host": self._by_slot(tables.num_blocks.gpu),
            "num_tokens": int(self.tokens),
            "num_logits": int(cu_num_logits[-1]),
            "positions": self._by_token(runner.input_buffers.positions),
        }

    def _by_token(self, tensor: torch.Tensor) -> Used:
        return Used(host(tensor), np.arange(len(tensor)) < self.tokens, UNUSED)

    def _real(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Axes and inputs of an operator whose rows are all real."""
        rows = {"idx_mapping": self.real, "cu_num_logits": self.real + 1}
        cut = {name: values[name][:count] for name, count in rows.items()}
        return {**self.axes, "batch_size": self.real, "padding": 0.0}, {**values, **cut}

    def before_forward(self) -> Iterator[Entry | str]:
        """Of what ``prepare_inputs`` and ``prepare_attn`` have launched."""
        if not self.is_described:
            yield CHUNKS
            return
        values = self._values
        yield entry(step_prologue, self.axes, values)
        yield entry(step_inputs, *self._real(values))
        gathered = {**values, "idx_mapping": values["idx_mapping"][: self.real]}
        yield entry(gather_block_tables, self.axes, gathered)
        yield entry(compute_slot_mappings, self.axes, values)

    def after_sampling(
        self, num_sampled: torch.Tensor, num_rejected: torch.Tensor, sampled_tokens: torch.Tensor, raw: np.ndarray
    ) -> Iterator[Entry]:
        """Of what is launched from ``get_num_sampled_and_rejected`` to the drafter's first pass.

        num_sampled, num_rejected: as that function left them. raw: num_sampled before it.
        """
        if not self.is_described:
            return
        runner, next_n = self._runner, self.axes["next_n"]
        states, columns = runner.req_states, sampled_tokens.shape[1]
        ids = np.pad(self._ids(sampled_tokens), ((0, 0), (0, next_n - columns)))
        following = states.next_prefill_tokens.view(-1, self.capacity)[0]
        values = {
            **self._values,
            "seq_lens": self.lens[: self.real],
            "num_sampled": raw,
            "sampled_tokens": ids.astype(np.int64),
            "total_len": self._by_slot(states.total_len.gpu),
            "target_input_ids": Used(self._ids(runner.input_buffers.input_ids), self._values["positions"].mask, UNUSED),
            "target_positions": self._values["positions"],
            "next_prefill_tokens": self._ids(following),
        }
        axes, values = self._real(values)
        axes |= {"vocab_size": max(32768, int(ids.max()) + 1)}
        yield entry(post_update, axes, values)
        yield entry(step_epilogue, axes, values)
        drafter = {
            **values,
            "draft_tokens": None,
            "num_sampled": host(num_sampled),
            "num_rejected": host(num_rejected),
            "current_draft_step": np.ones(1, dtype=np.int64),
        }
        yield entry(draft_inputs, {**axes, "draft_pass": "first"}, drafter)


class V2Reader:
    """Captures the steps of a V2 runner from the hooks on its functions."""

    def __init__(self, session: Session) -> None:
        self._session, self._step, self._raw = session, None, None

    def before_forward(self, runner: Any, batch: Any) -> None:
        def read() -> Iterator[Entry | str]:
            self._step = V2Step(runner, batch, self._session.plan.token_ids)
            yield from self._step.before_forward()

        self._step = None
        self._session.capture(read)

    def hooks(self, num_sampled: Sequence[str], post: str) -> dict[str, Callable[[Callable], Callable]]:
        """num_sampled: places of ``get_num_sampled_and_rejected``; post: that of ``post_update``."""
        return {**dict.fromkeys(num_sampled, self._sampled), post: self._updated}

    def _sampled(self, original: Callable) -> Callable:
        def get_num_sampled_and_rejected(num_sampled: torch.Tensor, *given: Any, **named: Any) -> Any:
            if self._session.capturing and self._step is not None:
                self._raw = host(num_sampled)
            return original(num_sampled, *given, **named)

        return get_num_sampled_and_rejected

    def _updated(self, original: Callable) -> Callable:
        def update(*given: Any, **named: Any) -> Any:
            step, self._step = self._step, None
            if step is not None and self._raw is not None:
                sampled_tokens, num_sampled, num_rejected = given[4:7]
                self._session.capture(lambda: step.after_sampling(num_sampled, num_rejected, sampled_tokens, self._raw))
            return original(*given, **named)

        return update


# --- the indexer ------------------------------------------------------------------------------------------------------


def of_indexer(builder: Any, given: Mapping[str, Any], remainder: str) -> Iterator[Entry | str]:
    """decode_flatten and decode_step, from the arguments of ``_prepare_decode_tensors``."""
    table, lens = given["block_table"], host(given["seq_lens"])
    query, width = np.asarray(given["decode_lens_cpu"]), given["max_decode_len"]
    rows, size = given["num_decodes"], builder.kv_cache_spec.block_size
    real = int((query > 0).sum())
    if not (query[:real] == width).all() or (query[real:] > 0).any():
        yield "rows of several lengths in the indexer"
        return
    starts = np.concatenate([[0], query.cumsum()]).astype(np.int32)
    axes = {
        "batch_size": rows,
        "padding": (rows - real) / rows,
        "next_n": given["next_n"],
        "max_decode_len": width,
        "context_len": int(lens.max()),
        "max_model_len": table.shape[1] * size,
        "block_size": size,
        "token_padding": max(given["num_decode_tokens"], real * width) - real * width,
        "max_num_batched_tokens": len(builder.decode_seq_lens_buffer),
        "max_num_seqs": max(256, rows),
        "num_sms": builder.num_sms,
        "remainder": remainder,
        "decode_path": "flatten",
    }
    values = {
        "seq_lens": lens,
        "query_start_loc": starts,
        "query_start_loc_cpu": starts,
        "block_table": Used(host(table), np.arange(table.shape[1]) < cdiv(lens, size)[:, None], UNUSED),
        "num_decode_tokens": int(starts[-1]) + axes["token_padding"],
    }
    yield entry(decode_flatten, axes, values)
    yield entry(decode_step, axes, values)


def of_schedule(context_lens: torch.Tensor, builder: Any, remainder: str) -> Iterator[Entry]:
    """paged_mqa_schedule, from the lengths that ``get_paged_mqa_logits_metadata`` takes."""
    lens, size = host(context_lens), builder.kv_cache_spec.block_size
    lens = lens.reshape(len(lens), -1)
    axes = {
        "batch_size": len(lens),
        "next_n": lens.shape[1],
        "max_decode_len": lens.shape[1],
        "context_len": int(max(lens.max(), 1)),
        "max_model_len": builder.expanded_block_table_buffer.shape[1] * size,
        "num_sms": builder.num_sms,
        "remainder": remainder,
    }
    yield entry(paged_mqa_schedule, axes, {"context_lens": lens})


# --- Mamba ------------------------------------------------------------------------------------------------------------


def of_mamba(builder: Any, common: Any, accepted: torch.Tensor, anchors: torch.Tensor) -> Iterator[Entry | str]:
    """mamba_spec_metadata in mode ``all``, from the arguments of ``_compute_common_metadata``. Row b keeps its anchor
    in slot b + 1.
    """
    rows, k, size = common.num_reqs, builder.num_spec_tokens, builder.kv_cache_spec.block_size
    lens, starts, before = host(common.seq_lens[:rows]), host(common.query_start_loc[: rows + 1]), host(anchors[:rows])
    query, live = np.diff(starts), lens > 0
    real = int(live.sum())
    if not live[:real].all() or not (query[:real] == k + 1).all():
        yield CHUNKS
        return
    table = host(common.block_table_tensor[:rows])
    capacity = max(builder.decode_cudagraph_max_bs, rows)
    slots = np.where(live, 1 + np.arange(rows), 0).astype(np.int32)
    by_slot = np.full(capacity + 1, -1, dtype=np.int32)
    by_slot[slots[:real]] = before[:real]
    columns = max(int(cdiv(int(lens.max()), size)), int(before.max()) + 1)
    axes = {
        "batch_size": rows,
        "num_speculative_blocks": k,
        "max_decode_len": k + 1,
        "context_len": int(lens.max()),
        "max_model_len": (table.shape[1] - k) * size,
        "padding": (rows - real) / rows,
        "mamba_block_size": size,
        "cache_mode": "all",
        "max_num_seqs": capacity,
    }
    values = {
        "seq_lens": lens,
        "query_start_loc": starts,
        "num_accepted_tokens": host(accepted[:rows]),
        "request_slots": slots,
        "fresh": live & (before < 0),
        "anchors": by_slot,
        "block_table": Used(table, np.broadcast_to(np.arange(table.shape[1]) < columns + k, table.shape), UNUSED),
        "num_decodes": real,
    }
    yield entry(mamba_spec_metadata, axes, values)


def mamba_hooks(session: Session) -> dict[str, Callable[[Callable], Callable]]:
    """Captures what the builders of Mamba's metadata get."""

    def wrap(original: Callable) -> Callable:
        def compute(self: Any, common: Any, **named: Any) -> Any:
            accepted, anchors = named.get("num_accepted_tokens"), named.get("prev_last_scheduled_idx")
            if session.capturing and accepted is not None and anchors is not None:
                session.capture(lambda: of_mamba(self, common, accepted, anchors))
            return original(self, common, **named)

        return compute

    name = "BaseMambaAttentionMetadataBuilder._compute_common_metadata"
    return {f"vllm.v1.attention.backends.mamba_attn:{name}": wrap}
