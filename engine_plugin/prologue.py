"""step_prologue in vLLM's V2 model runner, in place of ``prepare_inputs`` and ``prepare_attn``.

The variants take what changes in each step from buffers at fixed addresses: slots and boundaries are copied there, and
results that the engine has in fresh memory lie in buffers of the plugin. Steps in which every request decodes with all
its drafts, of one KV cache group, are covered; others take the engine's own functions.

In a step that is checked the arms run first, over what the step before left behind, and the engine's own functions
after them, so that their results count: a wrong kernel does no harm there. Nothing is poisoned, since an engine also
reads entries of block tables that its gather has not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.step_prologue.operator import Inputs, Outputs, operator
from spec_decode_bench.engine_plugin.arguments import V2Reader, block_sizes, made
from spec_decode_bench.engine_plugin.session import ENGINE, SUITE, Session, is_capturing
from spec_decode_bench.harness.contract import Point

OPERATOR = "step_prologue"
#: Results by their place: in the batch, as the drafter and the sampler read them, and in buffers, which graphs read.
OF_BATCH = (
    *("idx_mapping", "expanded_idx_mapping", "expanded_local_pos", "query_start_loc", "seq_lens"),
    *("input_ids", "positions", "logits_indices", "cu_num_logits"),
)


@dataclass(frozen=True)
class Rows:
    """What the host knows of a step, in batch order: slots, tokens and drafts of the real requests (numpy).

    padded, padded_tokens: rows and tokens of the graph that is replayed.
    """

    req_ids: list[str]
    slots: np.ndarray
    scheduled: np.ndarray
    drafts: np.ndarray
    is_prefilling: np.ndarray
    padded: int
    tokens: int
    padded_tokens: int


class Buffers:
    """Of a model runner, by capacity: what the engine makes anew in each step."""

    def __init__(self, runner: Any, index_dtype: torch.dtype) -> None:
        states, tables, k = runner.req_states, runner.block_tables, runner.num_speculative_steps
        capacity, device = tables.block_tables[0].gpu.shape[0], tables.block_tables[0].gpu.device
        by_logit = capacity * (k + 1)
        zeros = lambda count, dtype: torch.zeros(count, dtype=dtype, device=device)  # noqa: E731
        self.slots, self.cu_num_logits = zeros(capacity, index_dtype), zeros(capacity + 1, torch.int32)
        self.logits_indices = zeros(by_logit, torch.int64)
        self.expanded_idx_mapping = zeros(by_logit, index_dtype)
        self.expanded_local_pos = zeros(by_logit, torch.int32)
        self.draft_sampled = zeros(by_logit, torch.int32)
        self.logit_positions = zeros(by_logit, torch.int64)
        self.starts, self.reach = zeros(1, torch.int64), zeros(1, torch.int32)
        self.widths = torch.full((1,), tables.block_tables[0].gpu.shape[1], dtype=torch.int64, device=device)
        self.block_sizes = torch.tensor(block_sizes(tables), dtype=torch.int32, device=device)
        self.enabled, self.sharded = (torch.full((1,), value, device=device) for value in (True, False))
        self.next_prefill_tokens = states.next_prefill_tokens.view(-1, capacity)


def point_of(runner: Any, rows: int, padded: int) -> Point:
    """Of a covered step."""
    table, tables, k = runner.block_tables.block_tables[0].gpu, runner.block_tables, runner.num_speculative_steps
    size = block_sizes(tables)[0]
    return operator.complete(
        {
            "batch_size": padded,
            "padding": (padded - rows) / padded,
            "next_n": k + 1,
            "max_decode_len": k + 1,
            "max_num_seqs": table.shape[0],
            "max_num_batched_tokens": tables.max_num_batched_tokens,
            "block_size": size,
            "max_model_len": table.shape[1] * size,
            "history_len": runner.req_states.all_token_ids.gpu.shape[1],
            "look_ahead": runner.req_states.next_prefill_tokens.numel() // table.shape[0],
        }
    )


def arguments(runner: Any, own: Buffers, rows: int, padded: int) -> tuple[Point, Inputs, Outputs]:
    """Of a variant, at the addresses of the engine."""
    states, tables, buffers = runner.req_states, runner.block_tables, runner.input_buffers
    tokens = rows * (runner.num_speculative_steps + 1)
    x = made(
        Inputs,
        idx_mapping=own.slots[:padded],
        query_start_loc=buffers.query_start_loc,
        cu_num_logits=own.cu_num_logits[: padded + 1],
        num_computed_tokens=states.num_computed_tokens.gpu,
        last_sampled_tokens=states.last_sampled_tokens.view(-1),
        draft_tokens=states.draft_tokens,
        prompt_lens_device=states.prefill_len.gpu,
        all_token_ids_device=states.all_token_ids.gpu,
        tables=tables.block_tables[0].gpu.view(-1),
        starts=own.starts,
        widths=own.widths,
        block_sizes=own.block_sizes,
        reach=own.reach,
        enabled=own.enabled,
        sharded=own.sharded,
        num_blocks_device=tables.num_blocks.gpu,
        num_tokens=tokens,
        num_logits=tokens,
    )
    out = made(
        Outputs,
        seq_lens=buffers.seq_lens,
        positions=buffers.positions,
        input_ids=buffers.input_ids,
        next_prefill_tokens=own.next_prefill_tokens,
        logits_indices=own.logits_indices,
        expanded_idx_mapping=own.expanded_idx_mapping,
        expanded_local_pos=own.expanded_local_pos,
        draft_sampled=own.draft_sampled,
        logit_positions=own.logit_positions,
        block_tables=tables.input_block_tables[0].view(-1),
        slot_mappings=tables.slot_mappings,
    )
    return point_of(runner, rows, padded), x, out


class Prologue:
    """Of one model runner at a time. Subclasses know the engine's version:

    index_dtype: of slots.
    rows:        (runner, arguments of prepare_inputs) -> Rows, or None where it is no step of decodes.
    batch:       (runner, those arguments, rows, buffers) -> InputBatch.
    packed:      (runner, buffers, rows, padded) -> launches of the engine's kernels, in order.
    """

    index_dtype: torch.dtype

    def __init__(self, session: Session) -> None:
        self._session, self._reader = session, V2Reader(session)
        self._runner = self._own = self._launches = None
        self._began, self._prepared, self._pending = 0.0, None, []

    def rows(self, runner: Any, given: tuple) -> Rows | None:
        raise NotImplementedError

    def batch(self, runner: Any, given: tuple, rows: Rows, own: Buffers) -> Any:
        raise NotImplementedError

    def packed(self, runner: Any, own: Buffers, rows: int, padded: int) -> list[Callable[[], Any]]:
        raise NotImplementedError

    def hooks(self, module: str, sampled: Sequence[str] = ()) -> dict[str, Callable[[Callable], Callable]]:
        """module: of the runner. sampled: those that call ``get_num_sampled_and_rejected``, where it is another one."""
        places = [f"{one}:get_num_sampled_and_rejected" for one in sampled or (module,)]
        replaced = {"prepare_inputs": self.inputs, "prepare_attn": self.attention}
        wrap = lambda function: lambda original: lambda *given, **named: function(original, *given, **named)  # noqa: E731
        own = {f"{module}:GPUModelRunner.{name}": wrap(function) for name, function in replaced.items()}
        return own | self._reader.hooks(places, f"{module}:post_update")

    def inputs(self, original: Callable, runner: Any, *given: Any) -> Any:
        """In place of ``prepare_inputs``."""
        session = self._session
        session.count()
        self._began, self._prepared, self._pending = perf_counter(), None, []
        arm, is_checked = session.arm_of(OPERATOR), session.is_checked(OPERATOR)
        if (arm == ENGINE and not is_checked) or is_capturing():
            return original(runner, *given)
        rows = self.rows(runner, given)
        if rows is None:
            session.leave(OPERATOR)
            return original(runner, *given)
        try:
            if is_checked:
                for checked in session.checked_arms:
                    results = self._results(runner, self._prepare(checked, runner, given, rows))
                    self._pending.append((checked, {name: one.clone() for name, one in results.items()}))
                return original(runner, *given)
            self._prepared = self._prepare(arm, runner, given, rows)
            return self._prepared
        except Exception as error:
            session.failed(OPERATOR, error)
            self._prepared, self._pending = None, []
            return original(runner, *given)

    def attention(self, original: Callable, runner: Any, batch: Any) -> Any:
        """In place of ``prepare_attn``."""
        tables = runner.block_tables
        if batch is not None and batch is self._prepared:
            result = (
                tuple(table[: batch.num_reqs_after_padding] for table in tables.input_block_tables),
                tables.slot_mappings[:, : batch.num_tokens_after_padding],
            )
        else:
            result = original(runner, batch)
        self._session.spent(OPERATOR, perf_counter() - self._began)
        self._session.counted(OPERATOR)
        self._reader.before_forward(runner, batch)
        try:
            for arm, got in self._pending:
                self._compare(arm, self._results(runner, batch), got, block_sizes(tables)[0])
        except Exception as error:
            self._session.failed(OPERATOR, error)
        return result

    def _prepare(self, arm: str, runner: Any, given: tuple, rows: Rows) -> Any:
        """Upload and launch; the batch."""
        if runner is not self._runner:
            self._runner, self._own, self._launches = runner, Buffers(runner, self.index_dtype), {}
        own, k, real = self._own, runner.num_speculative_steps + 1, len(rows.req_ids)
        states, tables = runner.req_states, runner.block_tables
        slots = np.full(rows.padded, -1, dtype=np.int64 if self.index_dtype == torch.int64 else np.int32)
        slots[:real] = rows.slots
        starts = np.minimum(np.arange(len(runner.input_buffers.query_start_loc), dtype=np.int32), real) * k
        upload(slots, own.slots[: rows.padded])
        upload(starts[: rows.padded + 1], own.cu_num_logits[: rows.padded + 1])
        upload(starts, runner.input_buffers.query_start_loc)
        # Each of these alternates between two addresses.
        key = arm, real, rows.padded, tables.num_blocks.gpu.data_ptr(), states.prefill_len.gpu.data_ptr()
        if (launches := self._launches.get(key)) is None:
            launches = self._launches[key] = self._make(arm, runner, real, rows)
        for launch in launches:
            launch()
        self.done(runner, rows)
        return self.batch(runner, given, rows, own)

    def _make(self, arm: str, runner: Any, real: int, rows: Rows) -> list[Callable[[], Any]]:
        if arm != SUITE:
            return self.packed(runner, self._own, real, rows.padded)
        point, x, out = arguments(runner, self._own, real, rows.padded)
        variant = self._session.variants[OPERATOR]
        if reason := variant.skip(point):
            raise ValueError(f"does not apply here: {reason}")
        return [variant.setup(point, x, out)]

    def done(self, runner: Any, rows: Rows) -> None:
        """Keeps attributes true that the engine's own functions would have changed."""

    def _results(self, runner: Any, batch: Any) -> dict[str, torch.Tensor]:
        tables = runner.block_tables
        return {
            **{name: getattr(batch, name)[: self._length(batch, name)] for name in OF_BATCH},
            "all seq_lens": runner.input_buffers.seq_lens,
            "all query_start_loc": runner.input_buffers.query_start_loc,
            "slot_mappings": tables.slot_mappings,
            "block_table": tables.input_block_tables[0][: batch.num_reqs_after_padding],
        }

    @staticmethod
    def _length(batch: Any, name: str) -> int | None:
        """Tokens from num_tokens on keep what they held."""
        return batch.num_tokens if name in ("input_ids", "positions") else None

    def _compare(
        self, arm: str, expected: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor], block_size: int
    ) -> None:
        """Of block tables, the columns that a request owns, and whole rows behind the requests."""
        lens = expected["seq_lens"]
        columns = torch.arange(expected["block_table"].shape[1], device=lens.device)
        is_read = (columns < (lens[:, None] + block_size - 1) // block_size) | (lens[:, None] == 0)
        pairs = {name: (value, got[name]) for name, value in expected.items()}
        pairs["block_table"] = tuple(torch.where(is_read, table, 0) for table in pairs["block_table"])
        self._session.compare(OPERATOR, arm, pairs)


def upload(array: np.ndarray, target: torch.Tensor) -> None:
    target.copy_(torch.from_numpy(array), non_blocking=True)
