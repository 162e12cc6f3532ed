"""The decode loops of a configuration: which stacks take turns where, with which variants."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from spec_decode_bench.baselines.workloads.captured_requests import captured_requests
from spec_decode_bench.baselines.workloads.context_lengths import longest, parse_lengths, requests_of_trace
from spec_decode_bench.decode_loop.bindings import bindings_of
from spec_decode_bench.decode_loop.configuration import GEOMETRIES, AcceptLengths, DecodeLoop, Geometry, as_list
from spec_decode_bench.decode_loop.engine_state import EngineShape, LoopBinding
from spec_decode_bench.decode_loop.items import LoopItem, LoopPoint, PlannedStack
from spec_decode_bench.harness.config.captured import is_capture
from spec_decode_bench.harness.config.load import LoadedConfig
from spec_decode_bench.harness.config.sweep import check_only, task_of
from spec_decode_bench.harness.config.work_items import Task
from spec_decode_bench.harness.contract import Point, Variant
from spec_decode_bench.harness.discover import unavailable
from spec_decode_bench.harness.errors import did_you_mean, first_line
from spec_decode_bench.harness.records.select import Selector

if TYPE_CHECKING:
    from spec_decode_bench.harness.discover import Catalog

#: Table that every stack must build: the loop's own acceptance goes by the lengths of the step.
LENGTHS = "seq_lens"
#: Built after sampling where state is kept by request slot: without it no request advances.
REJECTED = "num_rejected"


#: The loop without a GPU: small enough for a few seconds, and no measurement of anything but itself.
SMALL_BATCH, SMALL_MODEL_US, SMALL_HOST_US, SMALL_BLOCKS, SMALL_STEPS = 4, 500.0, 100.0, 4, 8


def miniature(source: LoadedConfig) -> LoadedConfig:
    """The configuration cut to what a CPU can run in seconds: small batches, short model steps, few blocks."""
    config = source.settings
    small = msgspec.structs.replace(
        config,
        concurrency=list(dict.fromkeys(min(size, SMALL_BATCH) for size in as_list(config.concurrency))),
        model_step_us=list(dict.fromkeys(min(us, SMALL_MODEL_US) for us in as_list(config.model_step_us))),
        host_step_us=min(config.host_step_us, SMALL_HOST_US),
        blocks=min(config.blocks, SMALL_BLOCKS),
        steps=min(config.steps, SMALL_STEPS),
    )
    return replace(source, settings=small)


def operators_of(loops: Sequence[LoopItem]) -> list[Task]:
    """The operators of all stacks at their points in all loops, with the variants that run there."""
    tasks: dict[tuple[str, str], Task] = {}
    for task in (task for loop in loops for task in loop.tasks):
        here = tasks.setdefault((task.operator, task.point), task)
        names = tuple(dict.fromkeys((*here.variants, *task.variants)))
        tasks[task.operator, task.point] = msgspec.structs.replace(here, variants=names)
    return list(tasks.values())


def _tasks(stacks: Sequence[PlannedStack], shape: EngineShape, catalog: Catalog) -> tuple[Task, ...]:
    """The operators of stacks at their points in loops of a shape."""
    variants: dict[str, dict[str, Variant]] = {}
    for operator, variant in (part for stack in stacks for part in stack.parts):
        variants.setdefault(operator, {})[variant] = catalog.find(operator, variant)
    bindings = bindings_of(catalog)
    operators = {name: catalog.operators[name] for name in variants}
    return tuple(
        task_of(operator, operator.complete(bindings[name].axes(shape)), list(variants[name].values()))
        for name, operator in operators.items()
    )


# --- planning ---------------------------------------------------------------------------------------------------------


def plan_loops(source: LoadedConfig, catalog: Catalog, only: Sequence[str] = ()) -> list[LoopItem]:
    """All loops of a configuration, those that share a request stream one after another. Raises ConfigError.

    only: globs over stacks and whole keys, as --plan prints them; with ``!`` they leave out.
    """
    config = source.settings
    geometry = _geometry(source, config)
    _check_requests(source, config, geometry)
    if config.trace is not None and is_capture(config.trace) and "decode_loop.acceptance" not in source.lines:
        config = _with_captured_counts(source, config)
    if config.reference not in (None, *config.stacks):
        raise source.unknown("decode_loop.reference", "stack", config.reference, config.stacks)
    used = {name for stack in config.stacks.values() for name in stack}
    bindings = bindings_of(catalog)
    by_slot = any(binding.by_slot for name, binding in bindings.items() if name in used)
    loops = []
    for concurrency, next_n in itertools.product(as_list(config.concurrency), as_list(config.next_n)):
        shape = _shape(source, config, geometry, concurrency, next_n, by_slot)
        stacks = _Stacks(source, catalog, bindings, shape).planned()
        tasks = _tasks(stacks, shape, catalog)
        reference = config.reference or _first_installed(stacks, catalog)
        for scheduling, step_us, graph in itertools.product(
            as_list(config.scheduling), as_list(config.model_step_us), as_list(config.graph)
        ):
            point = LoopPoint(concurrency, shape.batch_size, next_n, step_us, scheduling, graph)
            loops.append(
                LoopItem(config=config, at=point, shape=shape, reference=reference, stacks=stacks, tasks=tasks)
            )
    return _kept(source, loops, only)


def _with_captured_counts(source: LoadedConfig, config: DecodeLoop) -> DecodeLoop:
    """With the tokens per step of the capture."""
    if not (counts := captured_requests(config.trace).counts):
        raise source.error("decode_loop.trace", f"{config.trace} does not tell accepted drafts; give acceptance")
    return msgspec.structs.replace(config, acceptance=AcceptLengths(accept_lengths=list(counts)))


def _first_installed(stacks: Sequence[PlannedStack], catalog: Catalog) -> str:
    """The first stack of whose variants this machine has all that they wrap; the first where it has none."""
    for stack in stacks:
        if all(unavailable(catalog.find(operator, name), "cuda") is None for operator, name in stack.parts):
            return stack.name
    return stacks[0].name


def _kept(source: LoadedConfig, loops: Sequence[LoopItem], only: Sequence[str]) -> list[LoopItem]:
    """The loops and stacks that ``only`` keeps; a loop keeps its reference as long as it keeps another stack."""
    if not only:
        return list(loops)
    selector, kept = Selector(only), []
    for loop in loops:
        chosen = [name for name in loop.variants if selector.keeps((name, loop.key(name)))]
        if chosen:
            kept.append(loop.of([*chosen, loop.reference]))
    check_only(source, selector, kept, "stack or loop", list(loops[0].config.stacks))
    return kept


def _geometry(source: LoadedConfig, config: DecodeLoop) -> Geometry:
    key, fields = "decode_loop.geometry", config.geometry
    if isinstance(fields, str):
        preset, fields = fields, {}
    else:
        preset, fields = fields.get("preset"), {name: value for name, value in fields.items() if name != "preset"}
    if preset is not None and preset not in GEOMETRIES:
        place = key if isinstance(config.geometry, str) else f"{key}.preset"
        raise source.unknown(place, "geometry", preset, GEOMETRIES)
    base = msgspec.to_builtins(GEOMETRIES[preset]) if preset is not None else {}
    return source.converted(base | fields, Geometry, key)


def _check_requests(source: LoadedConfig, config: DecodeLoop, geometry: Geometry) -> None:
    key = "decode_loop"
    if config.trace is not None:
        if config.prompt_len is not None or config.output_len is not None:
            given = "prompt_len" if config.prompt_len is not None else "output_len"
            raise source.error(f"{key}.{given}", "a trace has both lengths; give a trace, or prompt_len and output_len")
        try:
            requests_of_trace(config.trace)
        except ValueError as error:
            raise source.error(f"{key}.trace", str(error)) from None
        return
    for name in ("prompt_len", "output_len"):
        if getattr(config, name) is None:
            raise source.error(key, f"needs {name}, or a trace of recorded requests")
        try:
            parse_lengths(getattr(config, name))
        except ValueError as error:
            raise source.error(f"{key}.{name}", f"{error}, got {getattr(config, name)!r}") from None
    shortest_room = geometry.max_model_len - (longest(config.prompt_len) or 0)
    if shortest_room < (longest(config.output_len) or 1) + 3 * max(as_list(config.next_n)):
        raise source.error(
            f"{key}.prompt_len",
            f"prompt, output and three steps of drafts must fit max_model_len ({geometry.max_model_len})",
        )


def _shape(
    source: LoadedConfig, config: DecodeLoop, geometry: Geometry, concurrency: int, next_n: int, by_slot: bool
) -> EngineShape:
    captured = sorted(config.captured)
    if concurrency > captured[-1]:
        raise source.error(
            "decode_loop.concurrency",
            f"{concurrency} requests exceed the largest captured batch size ({captured[-1]}); capture a larger one",
        )
    if isinstance(config.acceptance, list) and len(config.acceptance) < next_n - 1:
        raise source.error(
            "decode_loop.acceptance",
            f"names {len(config.acceptance)} positions, next_n {next_n} has {next_n - 1} drafts",
        )
    if isinstance(config.acceptance, AcceptLengths) and max(config.acceptance.accept_lengths) > next_n:
        raise source.error(
            "decode_loop.acceptance",
            f"an accept length of {max(config.acceptance.accept_lengths)} exceeds next_n ({next_n})",
        )
    lengths = config.prompt_len if config.trace is None else {"trace": config.trace}
    return EngineShape(
        batch_size=next(size for size in captured if size >= concurrency),
        num_requests=concurrency,
        next_n=next_n,
        context_len=parse_lengths(lengths),
        decode_path=config.decode_path,
        by_slot=by_slot,
        history_len=(config.blocks * config.steps + 1) * next_n + 1,  # what a request can produce in all of the loop
        block_size=geometry.block_size,
        max_model_len=geometry.max_model_len,
        num_heads_q=geometry.num_heads_q,
        num_layers=geometry.num_layers,
        mamba_block_size=geometry.mamba_block_size,
        max_num_seqs=geometry.max_num_seqs,
        max_num_batched_tokens=geometry.max_num_batched_tokens,
        num_sms=geometry.num_sms,
        state_groups=geometry.state_groups,
    )


@dataclass(frozen=True)
class _Stacks:
    """Plans the stacks of a configuration for loops of one shape."""

    source: LoadedConfig
    catalog: Catalog
    bindings: dict[str, LoopBinding]
    shape: EngineShape

    def planned(self) -> tuple[PlannedStack, ...]:
        """Raises ConfigError."""
        stacks = self.source.settings.stacks
        planned = [self._stack(name, variants) for name, variants in stacks.items()]
        built = {stack.name: self._tables(stack) for stack in planned}
        always = (LENGTHS, REJECTED) if self.shape.by_slot else (LENGTHS,)
        every_table = dict.fromkeys([*always, *(table for tables in built.values() for table in tables)])
        for name, tables in built.items():
            if missing := [table for table in every_table if table not in tables]:
                reader = "the next step needs" if missing[0] == REJECTED else "the model reads with the other stacks"
                raise self.source.error(
                    f"decode_loop.stacks.{name}",
                    f"does not build {missing[0]}, which {reader}; add {self._makers(missing[0])}",
                )
        return tuple(planned)

    def _stack(self, name: str, variants: dict[str, str | list[str]]) -> PlannedStack:
        key = f"decode_loop.stacks.{name}"
        if not variants:
            raise self.source.error(key, "is empty: name a variant for each operator of a step")
        stack = PlannedStack(name, ())
        for operator, names in variants.items():
            binding = self._binding(f"{key}.{operator}", operator)
            if not binding.applies(self.shape):
                continue
            self._check_state(f"{key}.{operator}", binding)
            if missing := [table for table in binding.needs if table not in self._tables(stack)]:
                text = (
                    f"needs {missing[0]}, which no operator before it builds; add {self._makers(missing[0])} above it"
                )
                raise self.source.error(f"{key}.{operator}", text)
            variant = self._variant(f"{key}.{operator}", operator, names)
            limits = ((f"{variant.id} at {glob!r}", reason) for glob, reason in variant.known_failures.items())
            stack = PlannedStack(name, (*stack.parts, (operator, variant.name)), (*stack.known_failures, *limits))
        return stack

    def _tables(self, stack: PlannedStack) -> list[str]:
        return [table for name, _ in stack.parts for table in self.bindings[name].builds(self.shape)]

    def _makers(self, table: str) -> str:
        """The operators that build a table in such a loop."""
        fitting = [binding for binding in self.bindings.values() if binding.by_slot in (None, self.shape.by_slot)]
        return " or ".join(binding.operator for binding in fitting if table in binding.builds(self.shape))

    def _binding(self, key: str, operator: str) -> LoopBinding:
        bindings = self.bindings
        if operator not in self.catalog.operators:
            raise self.source.unknown(key, "operator", operator, bindings)
        if operator not in bindings:
            raise self.source.error(key, f"takes no part in a decode loop{did_you_mean(operator, list(bindings))}")
        return bindings[operator]

    def _check_state(self, key: str, binding: LoopBinding) -> None:
        if binding.by_slot is not None and binding.by_slot != self.shape.by_slot:
            used = {name for stack in self.source.settings.stacks.values() for name in stack}
            others = ", ".join(sorted(name for name in used if self.bindings[name].by_slot))
            text = f"keeps state by row, {others} by request slot; a loop has operators of one kind"
            raise self.source.error(key, text)

    def _point(self, key: str, operator: str) -> Point:
        """The operator's point in a loop. Raises ConfigError where it breaks a rule of the operator."""
        owner = self.catalog.operators[operator]
        try:
            point = owner.complete(self.bindings[operator].axes(self.shape))
            rule = owner.broken_rule(point)
        except Exception as error:  # the operator's own code
            raise self.source.error(key, f"cannot make a point of this loop: {first_line(error)}") from None
        if rule is not None:
            raise self.source.error(key, rule.message.format_map(point))
        return point

    def _variant(self, key: str, operator: str, names: str | list[str]) -> Variant:
        """The first of the named variants that applies to the point."""
        point = self._point(key, operator)
        healthy = {variant.name: variant for variant in self.catalog.of(operator) if variant.defect is None}
        reasons = []
        for name in as_list(names):
            if name not in healthy:
                raise self.source.unknown(key, "variant", name, healthy)
            variant = healthy[name]
            if "graph_safe" in variant.waives and "full" in as_list(self.source.settings.graph):
                raise self.source.error(key, f"{name} waives graph_safe and cannot be captured; drop graph: full")
            try:
                reason = variant.skip(point)
            except Exception as error:  # a variant's own code
                raise self.source.error(key, f"skip= of {name} raised {first_line(error)}") from None
            if reason is None:
                return variant
            reasons.append(f"{name} does not apply to this loop: {reason}")
        raise self.source.error(key, "; ".join(reasons) or "names no variant")
