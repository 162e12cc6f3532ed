"""An engine without a GPU: a package with the signatures of a wheel, a runner whose step the references compute, and
the blocks of a server that changes its speed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import make_dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.step_prologue.operator import operator as step_prologue
from spec_decode_bench.engine_plugin import prologue, signatures
from spec_decode_bench.engine_plugin.records import EngineBlock
from spec_decode_bench.engine_plugin.session import Session, Step
from spec_decode_bench.engine_plugin.vllm_0_22_1 import PreparedStep, model_of
from spec_decode_bench.harness.config.load import load
from spec_decode_bench.harness.records.schema import Status


def write_package(folder: Path, version: str) -> Path:
    """Sources in which every function that an adapter uses looks as in the wheel."""
    files: dict[str, dict[str, str]] = {}
    for place, signature in signatures.known(version).items():
        file, name = place.split("::")
        files.setdefault(file, {})[name] = signature
    for file, names in files.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_source(names), encoding="utf-8")
    return folder


def _source(names: dict[str, str]) -> str:
    lines, classes = [], {}
    for name, signature in names.items():
        owner, _, member = name.rpartition(".")
        if not owner and signature.startswith("fields "):
            lines += [
                f"class {name}:",
                *(f"    {one}: object" for one in signature.removeprefix("fields ").split(", ")),
            ]
        elif not owner:
            lines.append(f"def {name}{signature}: ..." if signature.startswith("(") else f"{name} = None")
        else:
            classes.setdefault(owner, []).append((member, signature))
    for owner, members in classes.items():
        lines += [f"class {owner}:", "    def __init__(self):", "        pass"]
        lines += [f"        self.{name} = None" for name, signature in members if not signature.startswith("(")]
        lines += [f"    def {name}{signature}: ..." for name, signature in members if signature.startswith("(")]
    return "\n".join(lines) + "\n"


def make_session(folder: Path, **settings: Any) -> Session:
    """Of a plan; its files lie in ``folder / "out"``."""
    plan = folder / "plan.yaml"
    values = {"out": str(folder / "out"), "stack": {"step_prologue": "triton_fused"}} | settings
    plan.write_text(json.dumps({"name": "fake", "engine_plugin": values}))
    return Session(load(plan), "0.22.1")


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Of the record, without its header."""
    (path,) = (folder / "out").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def put_input_batch(version: str) -> None:
    """The module with the engine's InputBatch: a dataclass with the fields of the wheel's."""
    module = ModuleType("vllm.v1.worker.gpu.input_batch")
    fields = signatures.known(version)["v1/worker/gpu/input_batch.py::InputBatch"].removeprefix("fields ").split(", ")
    typed = [(name, Any, None) if name == "pcp" else (name, Any) for name in fields]
    module.InputBatch = make_dataclass("InputBatch", typed, kw_only=True)
    sys.modules[module.__name__] = module


class Runner:
    """vLLM's V2 runner as far as the adapter reads it: five requests that decode with three drafts, padded to six."""

    rows, padded, k, capacity, block_size, tokens = 5, 6, 3, 8, 16, 512

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        random = lambda low, high, *shape: torch.randint(low, high, shape, generator=generator)  # noqa: E731
        on_gpu = lambda tensor: SimpleNamespace(gpu=tensor)  # noqa: E731
        capacity, width = self.capacity, 64
        self.num_speculative_steps, self.max_num_reqs, self.use_dcp = self.k, capacity, False
        self.req_states = SimpleNamespace(
            num_computed_tokens=on_gpu(random(40, 900, capacity).int()),
            num_computed_tokens_np=np.zeros(capacity, dtype=np.int32),
            last_sampled_tokens=random(0, 99, capacity, 1),
            draft_tokens=random(100, 199, capacity, self.k),
            prefill_len=on_gpu(torch.full((capacity,), 30, dtype=torch.int32)),
            all_token_ids=on_gpu(random(0, 9, capacity, 1024).int()),
            total_len=on_gpu(torch.full((capacity,), 40, dtype=torch.int32)),
            next_prefill_tokens=torch.zeros(capacity, dtype=torch.int32),
            req_id_to_index={f"r{i}": slot for i, slot in enumerate((3, 0, 7, 2, 5))},
            is_prefilling=lambda slots: np.zeros(len(slots), dtype=bool),
        )
        self.block_tables = SimpleNamespace(
            num_kv_cache_groups=1,
            cp_size=1,
            max_num_batched_tokens=self.tokens,
            kernel_block_sizes=[self.block_size],
            block_tables=[on_gpu(random(1, 999, capacity, width).int())],
            input_block_tables=[torch.zeros(capacity, width, dtype=torch.int32)],
            num_blocks=on_gpu(torch.full((1, capacity), width, dtype=torch.int32)),
            slot_mappings=torch.zeros(1, self.tokens, dtype=torch.int64),
        )
        self.input_buffers = SimpleNamespace(
            query_start_loc=torch.zeros(capacity + 1, dtype=torch.int32),
            seq_lens=torch.zeros(capacity, dtype=torch.int32),
            positions=torch.zeros(self.tokens, dtype=torch.int64),
            input_ids=torch.zeros(self.tokens, dtype=torch.int32),
        )
        config = SimpleNamespace(
            model_config=SimpleNamespace(
                model="/models/tiny/", hf_text_config=SimpleNamespace(num_hidden_layers=4), max_model_len=1024
            ),
            speculative_config=SimpleNamespace(method="eagle", num_speculative_tokens=self.k),
            scheduler_config=SimpleNamespace(async_scheduling=True),
        )
        self.vllm_config = config

    def output(self, rows: int = rows, drafts: int = k) -> SimpleNamespace:
        """Of the scheduler."""
        ids = [f"r{i}" for i in range(rows)]
        return SimpleNamespace(
            num_scheduled_tokens=dict.fromkeys(ids, self.k + 1),
            total_num_scheduled_tokens=rows * (self.k + 1),
            scheduled_spec_decode_tokens=dict.fromkeys(ids, [1] * drafts),
            has_structured_output_requests=False,
            scheduled_cached_reqs=SimpleNamespace(req_ids=ids, num_computed_tokens=[100] * rows),
        )


class Engine:
    """Calls the hooks as vLLM calls its functions, whose results the reference of step_prologue computes."""

    def __init__(self, session: Session, runner: Runner) -> None:
        put_input_batch("0.22.1")
        self.session, self.runner = session, runner
        self.adapter = PreparedStep(session)
        self.calls = 0

    def step(self, drafts: int = Runner.k) -> tuple[Any, Any]:
        """(batch, what prepare_attn returned)."""
        output, runner = self.runner.output(drafts=drafts), self.runner
        decodes = drafts == Runner.k
        cached = output.scheduled_cached_reqs
        computed = lambda: dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))  # noqa: E731
        self.session.begin(Step(Runner.rows, decodes, computed), lambda: model_of(runner.vllm_config))
        described = SimpleNamespace(num_reqs=Runner.padded, num_tokens=Runner.padded * (Runner.k + 1))
        batch = self.adapter.inputs(self._inputs, runner, output, described)
        return batch, self.adapter.attention(self._attention, runner, batch)

    def _inputs(self, runner: Runner, output: Any, described: Any) -> Any:
        """The engine's own ``prepare_inputs``, into fresh buffers where it has fresh ones."""
        self.calls += 1
        own = prologue.Buffers(runner, torch.int32)
        given = (output, described)
        rows = self.adapter.rows(runner, given) or self.adapter.rows(runner, (runner.output(), described))
        own.slots[: rows.padded] = torch.tensor([*rows.slots.tolist(), *[-1] * (rows.padded - len(rows.slots))])
        starts = torch.arange(runner.capacity + 1).clamp(max=Runner.rows) * (Runner.k + 1)
        own.cu_num_logits[: rows.padded + 1] = starts[: rows.padded + 1]
        runner.input_buffers.query_start_loc.copy_(starts)
        point, x, out = prologue.arguments(runner, own, Runner.rows, rows.padded)
        for name, expected in step_prologue.reference(point, x).items():
            keeps = [mask for mask in (expected.untouched, expected.may_keep, expected.dont_care) if mask is not None]
            kept = torch.stack(keeps).any(dim=0) if keeps else torch.zeros_like(expected.value, dtype=torch.bool)
            target = getattr(out, name)
            target.copy_(torch.where(kept, target, expected.value))
        return self.adapter.batch(runner, given, rows, own)

    def _attention(self, runner: Runner, batch: Any) -> Any:
        return tuple(runner.block_tables.input_block_tables), runner.block_tables.slot_mappings


def two_speeds(
    rng: np.random.Generator, turns: int, change_us: dict[str, float], slow: float = 1.45, batch: int = 32
) -> list[EngineBlock]:
    """Blocks of a server that is slow by a factor now and then: its host, and with it ITL in every arm.

    change_us: arm -> true difference of ITL from that of the first, in either mode.
    """
    host, names = {"engine": 400.0, "packed": 230.0, "suite": 200.0}, list(change_us)
    blocks, factor, left = [], 1.0, 0
    for turn in range(turns):
        there = [*names[turn % len(names) :], *names[: turn % len(names)]]
        for arm in there + there[::-1]:
            if left == 0:
                factor, left = (slow if factor == 1.0 else 1.0), int(rng.integers(4, 40))
            left -= 1
            itl = rng.normal(2700 * factor + change_us[arm] + 0.5 * len(blocks), 90, 8)
            spent = rng.normal(host[arm] * factor, 12, 8)
            blocks.append(
                EngineBlock(
                    mode="measure",
                    arm=arm,
                    batch=batch,
                    number=len(blocks) + 1,
                    turn=turn,
                    status=Status.PASSED,
                    itl_us=itl.tolist(),
                    host_us={"step_prologue": spent.tolist()},
                    tokens=2.8,
                )
            )
    return blocks
