"""decode_flatten and decode_step in vLLM's sparse indexer, in place of ``_prepare_decode_tensors`` and, for
decode_step, ``get_paged_mqa_logits_metadata``.

All results lie in persistent buffers of the builder. It copies the schedule into one of them; given that buffer itself
the copy launches nothing. As in ``prologue.py`` a checked arm runs first and the engine's own functions after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import torch

from spec_decode_bench.baselines.decode_flatten import operator as decode_flatten
from spec_decode_bench.baselines.decode_step import operator as decode_step
from spec_decode_bench.engine_plugin.arguments import made, of_indexer, of_schedule
from spec_decode_bench.engine_plugin.session import ENGINE, PACKED, SUITE, Session, is_capturing

MODULE = "vllm.v1.attention.backends.mla.indexer"
OPERATORS = ("decode_step", "decode_flatten")
#: Kept at a time: mixed steps have many numbers of rows and tokens.
MOST_LAUNCHES = 4096


class Engine(Protocol):
    """What a version does by itself. remainder: of its schedules, as the axis of decode_step."""

    remainder: str

    def covers(self, builder: Any, given: Mapping[str, Any]) -> bool: ...

    def packed(self, builder: Any, given: Mapping[str, Any], tokens: int) -> Callable[[], Any]: ...


class Indexer:
    """For all builders of a process."""

    def __init__(self, session: Session, engine: Engine) -> None:
        self._session, self._engine = session, engine
        self._launches: dict[tuple, Callable[[], Any]] = {}
        self.operator = next((name for name in OPERATORS if name in session.plan.stack), OPERATORS[0])
        #: Of the call that runs: its builder, the buffer whose schedule is made, and what is to be compared.
        self._builder = self._made = None
        self._pending: list[tuple[str, dict[str, torch.Tensor]]] = []
        self._began = 0.0

    def hooks(self) -> dict[str, Callable[[Callable], Callable]]:
        name = "DeepseekV32IndexerMetadataBuilder._prepare_decode_tensors"
        return {f"{MODULE}:{name}": self._tensors, f"{MODULE}:get_paged_mqa_logits_metadata": self._schedule}

    def _tensors(self, original: Callable) -> Callable:
        def prepare(builder: Any, decode_lens: torch.Tensor, **given: Any) -> Any:
            session, operator = self._session, self.operator
            engine = partial(original, builder, **given)
            self._began, self._builder, self._made, self._pending = perf_counter(), builder, None, []
            if is_capturing() or not self._engine.covers(builder, given):
                self._began = 0.0
                return engine(decode_lens=decode_lens)
            session.count()
            session.capture(lambda: of_indexer(builder, given, self._engine.remainder))
            arm, is_checked = session.arm_of(operator), session.is_checked(operator)
            if arm == ENGINE and not is_checked:
                return engine(decode_lens=decode_lens)
            uniform = int(given["decode_lens_cpu"].min()) == given["max_decode_len"]
            if not uniform and arm != SUITE:
                session.leave(operator)
                return engine(decode_lens=decode_lens)
            rows, width = given["num_decodes"], given["max_decode_len"]
            tokens = rows * width if uniform else given["num_decode_tokens"]
            try:
                if is_checked:
                    for checked in session.checked_arms:
                        self._run(checked, builder, given, rows, tokens)
                        results = self._results(builder, tokens)
                        self._pending.append((checked, {name: one.clone() for name, one in results.items()}))
                    return engine(decode_lens=_boundaries(given).diff())
                self._run(arm, builder, given, rows, tokens)
            except Exception as error:
                session.failed(operator, error)
                self._pending = []
                return engine(decode_lens=_boundaries(given).diff())
            if arm == SUITE and operator == "decode_step":
                self._made = builder.scheduler_metadata_buffer
            return (
                builder.decode_seq_lens_buffer[:tokens],
                builder.expanded_block_table_buffer[:tokens],
                builder.decode_lens_buffer[:tokens],
                tokens,
                False,
            )

        return prepare

    def _schedule(self, original: Callable) -> Callable:
        def schedule(context_lens: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
            builder, made, began = self._builder, self._made, self._began
            self._builder = self._made = None
            self._began = 0.0
            result = original(context_lens, *given, **named) if made is None else made
            if began:
                self._session.spent(self.operator, perf_counter() - began)
                self._session.counted(self.operator)
            if builder is None or is_capturing():
                return result
            self._session.capture(lambda: of_schedule(context_lens, builder, self._engine.remainder))
            pending, self._pending = self._pending, []
            try:
                for arm, got in pending:
                    self._compare(arm, builder, context_lens, result, got)
            except Exception as error:
                self._session.failed(self.operator, error)
            return result

        return schedule

    def _run(self, arm: str, builder: Any, given: Mapping[str, Any], rows: int, tokens: int) -> None:
        table = given["block_table"]
        addresses = (one.data_ptr() for one in (given["seq_lens"], table, given["query_start_loc"]))
        key = id(builder), arm, rows, tokens, table.stride(0), *addresses
        if (launch := self._launches.get(key)) is None:
            if len(self._launches) == MOST_LAUNCHES:
                self._launches.clear()
            launch = self._launches[key] = self._make(arm, builder, given, rows, tokens)
        launch()

    def _make(self, arm: str, builder: Any, given: Mapping[str, Any], rows: int, tokens: int) -> Callable[[], Any]:
        if arm == PACKED:
            return self._engine.packed(builder, given, tokens)
        x = made(
            decode_flatten.Inputs,
            seq_lens=given["seq_lens"],
            query_start_loc=_boundaries(given),
            block_table=given["block_table"],
            num_decode_tokens=tokens,
        )
        size, max_num_seqs = builder.kv_cache_spec.block_size, max(256, rows)
        lens, table = builder.decode_seq_lens_buffer, builder.expanded_block_table_buffer
        lens = builder.decode_seq_lens_buffer
        buffers = {"lens": lens, "decode_lens": builder.decode_lens_buffer, "block_table": table}
        module = decode_flatten
        if self.operator == "decode_step":
            module = decode_step
            buffers["schedule"] = builder.scheduler_metadata_buffer
            buffers["tile_scheduler_metadata"] = table.new_zeros(builder.num_sms, 8)
            buffers["num_splits"] = table.new_zeros(max_num_seqs + 1)
        out = made(module.Outputs, **buffers)
        values = {
            "batch_size": rows,
            "next_n": given["next_n"],
            "max_decode_len": given["max_decode_len"],
            "token_padding": max(tokens - rows * given["max_decode_len"], 0),
            "block_size": size,
            "max_model_len": table.shape[1] * size,
            "max_num_batched_tokens": len(lens),
            "max_num_seqs": max_num_seqs,
            "num_sms": builder.num_sms,
            "remainder": self._engine.remainder,
        }
        names = {axis.name for axis in module.operator.axes}
        point = module.operator.complete({name: value for name, value in values.items() if name in names})
        variant = self._session.variants[self.operator]
        if reason := variant.skip(point):
            raise ValueError(f"does not apply here: {reason}")
        return variant.setup(point, x, out)

    def _results(self, builder: Any, tokens: int) -> dict[str, torch.Tensor]:
        results = {
            "lens": builder.decode_seq_lens_buffer,
            "decode_lens": builder.decode_lens_buffer[:tokens],
            "block_table": builder.expanded_block_table_buffer[:tokens],
        }
        return results | ({"schedule": builder.scheduler_metadata_buffer} if self.operator == "decode_step" else {})

    def _compare(
        self, arm: str, builder: Any, context_lens: torch.Tensor, schedule: torch.Tensor, got: Mapping[str, Any]
    ) -> None:
        """Of block tables, the columns that a row's tokens reach. Only the suite makes schedules."""
        tokens, size = len(got["decode_lens"]), builder.kv_cache_spec.block_size
        expected = {**self._results(builder, tokens), "schedule": schedule}
        columns = torch.arange(got["block_table"].shape[1], device=context_lens.device)
        is_read = columns < (expected["lens"][:tokens, None] + size - 1) // size
        pairs = {name: (expected[name], value) for name, value in got.items() if arm == SUITE or name != "schedule"}
        pairs["block_table"] = tuple(torch.where(is_read, one, 0) for one in pairs["block_table"])
        self._session.compare(self.operator, arm, pairs)


def _boundaries(given: Mapping[str, Any]) -> torch.Tensor:
    """query_start_loc with its last entry, int32 [rows + 1]. Its differences are ``decode_lens``, which the engine has
    in a buffer of results: behind a launch that wrote there they are no longer what the engine's own function takes.
    """
    return given["query_start_loc"].as_strided((given["num_decodes"] + 1,), (1,))
