"""The decode loops of a configuration: which stacks take turns where, with which variants. Never imports torch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from baselines.workloads.context_lengths import longest, parse_lengths, requests_of_trace
from baselines.workloads.engine_state import EngineShape, LoopBinding
from harness.config.decode_loop import GEOMETRIES, AcceptLengths, DecodeLoop, Geometry, as_list
from harness.config.load import Source
from harness.config.sweep import cells
from harness.config.work_items import Cells, LoopItem, LoopPoint, PlannedStack
from harness.contract import Operator, Point, Variant
from harness.records.select import Selector
from harness.wording import did_you_mean, first_line

#: Table that every stack must build: the loop's own acceptance goes by the lengths of the step.
LENGTHS = "seq_lens"
#: Built after sampling where state is kept by request slot: without it no request advances.
REJECTED = "num_rejected"


#: The loop without a GPU: small enough for a few seconds, and no measurement of anything but itself.
SMALL_BATCH, SMALL_MODEL_US, SMALL_HOST_US, SMALL_BLOCKS, SMALL_STEPS = 4, 500.0, 100.0, 4, 8


def miniature(source: Source) -> Source:
    """The configuration cut to what a CPU can run in seconds: small batches, short model steps, few blocks."""
    config = source.config.decode_loop
    small = msgspec.structs.replace(
        config,
        concurrency=list(dict.fromkeys(min(one, SMALL_BATCH) for one in as_list(config.concurrency))),
        model_step_us=list(dict.fromkeys(min(one, SMALL_MODEL_US) for one in as_list(config.model_step_us))),
        host_step_us=min(config.host_step_us, SMALL_HOST_US),
        blocks=min(config.blocks, SMALL_BLOCKS),
        steps=min(config.steps, SMALL_STEPS),
    )
    return replace(source, config=msgspec.structs.replace(source.config, decode_loop=small))


def operators_of(
    loops: Sequence[LoopItem],
    operators: Mapping[str, Operator],
    variants: Sequence[Variant],
    bindings: Mapping[str, LoopBinding],
) -> list[Cells]:
    """The operators of all stacks at their points in all loops, with the variants that run there."""
    found: dict[tuple[str, str], tuple[Operator, Point, dict[str, Variant]]] = {}
    for loop in loops:
        for stack in loop.stacks:
            for name, variant in stack.parts:
                operator = operators[name]
                point = operator.complete(bindings[name].axes(loop.shape))
                _, _, chosen = found.setdefault((name, operator.label(point)), (operator, point, {}))
                chosen[variant] = next(one for one in variants if one.operator == name and one.name == variant)
    return [cells(operator, point, list(chosen.values())) for operator, point, chosen in found.values()]


# --- planning ---------------------------------------------------------------------------------------------------------


def plan_loops(
    source: Source,
    operators: Mapping[str, Operator],
    variants: Sequence[Variant],
    bindings: Mapping[str, LoopBinding],
    only: Sequence[str] = (),
) -> list[LoopItem]:
    """All loops of a configuration, those that share a request stream one after another. Raises ConfigError.

    only: globs over stacks and whole keys, as --plan prints them; with ``!`` they leave out.
    """
    config = source.config.decode_loop
    geometry = _geometry(source, config)
    _check_requests(source, config, geometry)
    reference = config.reference or next(iter(config.stacks))
    if reference not in config.stacks:
        raise source.error(
            "decode_loop.reference", f"unknown stack {reference!r}{did_you_mean(reference, list(config.stacks))}"
        )
    chosen = [bindings[name] for stack in config.stacks.values() for name in stack if name in bindings]
    by_slot = any(one.by_slot for one in chosen)
    loops = []
    for concurrency, next_n in itertools.product(as_list(config.concurrency), as_list(config.next_n)):
        shape = _shape(source, config, geometry, concurrency, next_n, by_slot)
        stacks = _stacks(source, config, shape, operators, variants, bindings)
        for scheduling, step_us, graph in itertools.product(
            as_list(config.scheduling), as_list(config.model_step_us), as_list(config.graph)
        ):
            point = LoopPoint(concurrency, shape.batch_size, next_n, step_us, scheduling, graph)
            loops.append(LoopItem(config=config, at=point, shape=shape, reference=reference, stacks=stacks))
    return _kept(source, loops, only)


def _kept(source: Source, loops: Sequence[LoopItem], only: Sequence[str]) -> list[LoopItem]:
    """The loops and stacks that ``only`` keeps; a loop keeps its reference as long as it keeps another stack."""
    if not only:
        return list(loops)
    selector, found = Selector(only), []
    for loop in loops:
        chosen = [name for name in loop.variants if selector.keeps((name, loop.key(name)))]
        if chosen:
            found.append(loop.of([*chosen, loop.reference]))
    if (unused := selector.unused) is not None:
        hint = did_you_mean(unused, list(loops[0].config.stacks))
        raise source.error("", f"--only {unused} matches no stack and no loop{hint}")
    if not found:
        raise source.error("", "--only leaves out every loop; name some to keep")
    return found


def _geometry(source: Source, config: DecodeLoop) -> Geometry:
    given = config.geometry if isinstance(config.geometry, dict) else {"preset": config.geometry}
    changes, key = dict(given), "decode_loop.geometry"
    preset = changes.pop("preset", None)
    if preset is not None and preset not in GEOMETRIES:
        place = f"{key}.preset" if isinstance(config.geometry, dict) else key
        raise source.error(place, f"unknown geometry {preset!r}{did_you_mean(str(preset), list(GEOMETRIES))}")
    fields = list(Geometry.__struct_fields__)
    for name in changes:
        if name not in fields:
            raise source.error(f"{key}.{name}", f"unknown key{did_you_mean(str(name), [*fields, 'preset'])}")
    try:
        base = msgspec.to_builtins(GEOMETRIES[preset]) if preset is not None else {}
        return msgspec.convert(base | changes, Geometry)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$.")
        raise source.error(f"{key}.{where.rstrip('`')}", message.replace("`int`", "a whole number")) from None


def _check_requests(source: Source, config: DecodeLoop, geometry: Geometry) -> None:
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
    source: Source, config: DecodeLoop, geometry: Geometry, concurrency: int, next_n: int, by_slot: bool
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
        **msgspec.to_builtins(geometry),
    )


def _stacks(
    source: Source,
    config: DecodeLoop,
    shape: EngineShape,
    operators: Mapping[str, Operator],
    variants: Sequence[Variant],
    bindings: Mapping[str, LoopBinding],
) -> tuple[PlannedStack, ...]:
    planned, built, used = [], {}, {name for stack in config.stacks.values() for name in stack}
    for name, chosen in config.stacks.items():
        key = f"decode_loop.stacks.{name}"
        if not chosen:
            raise source.error(key, "is empty: name a variant for each operator of a step")
        tables: dict[str, None] = {}
        parts = []
        for operator, wanted in chosen.items():
            if operator not in operators:
                hint = did_you_mean(operator, list(bindings))
                raise source.error(f"{key}.{operator}", f"unknown operator {operator!r}{hint}")
            if operator not in bindings:
                raise source.error(
                    f"{key}.{operator}", f"takes no part in a decode loop{did_you_mean(operator, list(bindings))}"
                )
            binding = bindings[operator]
            if not binding.applies(shape):
                continue
            if binding.by_slot is not None and binding.by_slot != shape.by_slot:
                others = ", ".join(sorted({one.operator for one in bindings.values() if one.by_slot} & used))
                raise source.error(
                    f"{key}.{operator}",
                    f"keeps state by row, {others} by request slot; a loop has operators of one kind",
                )
            if missing := [table for table in binding.needs if table not in tables]:
                raise source.error(
                    f"{key}.{operator}",
                    f"needs {missing[0]}, which no operator before it builds; add "
                    f"{_makers(bindings, shape, missing[0])} above it",
                )
            point = _point(source, f"{key}.{operator}", operators[operator], binding, shape)
            parts.append((operator, _variant(source, f"{key}.{operator}", operator, wanted, point, variants, config)))
            tables |= dict.fromkeys(binding.builds(shape))
        planned.append(PlannedStack(name, tuple(parts), _limits(parts, variants)))
        built[name] = tables
    always = (LENGTHS, REJECTED) if shape.by_slot else (LENGTHS,)
    everything = dict.fromkeys([*always, *(table for tables in built.values() for table in tables)])
    for name, tables in built.items():
        if missing := [table for table in everything if table not in tables]:
            raise source.error(
                f"decode_loop.stacks.{name}",
                f"does not build {missing[0]}, which {_reader(missing[0])}; add {_makers(bindings, shape, missing[0])}",
            )
    return tuple(planned)


def _reader(table: str) -> str:
    return "the next step needs" if table == REJECTED else "the model reads with the other stacks"


def _makers(bindings: Mapping[str, LoopBinding], shape: EngineShape, table: str) -> str:
    """The operators that build a table in such a loop."""
    fitting = [one for one in bindings.values() if one.by_slot in (None, shape.by_slot)]
    return " or ".join(one.operator for one in fitting if table in one.builds(shape))


def _limits(parts: Sequence[tuple[str, str]], variants: Sequence[Variant]) -> tuple[tuple[str, str], ...]:
    chosen = [one for one in variants if (one.operator, one.name) in parts]
    return tuple((f"{one.id} at {glob!r}", reason) for one in chosen for glob, reason in one.known_failures.items())


def _point(source: Source, key: str, operator: Operator, binding: LoopBinding, shape: EngineShape) -> Point:
    """The operator's point in a loop. Raises ConfigError where it breaks a rule of the operator."""
    try:
        point = operator.complete(binding.axes(shape))
        rule = operator.broken_rule(point)
    except Exception as error:  # the operator's own code
        raise source.error(key, f"cannot make a point of this loop: {first_line(error)}") from None
    if rule is not None:
        raise source.error(key, rule.message.format(**point))
    return point


def _variant(
    source: Source,
    key: str,
    operator: str,
    wanted: str | list[str],
    point: Point,
    variants: Sequence[Variant],
    config: DecodeLoop,
) -> str:
    """The first of the wanted variants that applies to the point."""
    known = {one.name: one for one in variants if one.operator == operator and one.defect is None}
    reasons = []
    for name in as_list(wanted):
        if name not in known:
            raise source.error(key, f"unknown variant {name!r} of {operator}{did_you_mean(name, list(known))}")
        if "graph_safe" in known[name].waives and "full" in as_list(config.graph):
            raise source.error(key, f"{name} waives graph_safe and cannot be captured; drop graph: full")
        try:
            reason = known[name].skip(point)
        except Exception as error:  # a variant's own code
            raise source.error(key, f"skip= of {name} raised {first_line(error)}") from None
        if reason is None:
            return name
        reasons.append(f"{name} does not apply to this loop: {reason}")
    raise source.error(key, "; ".join(reasons) or "names no variant")
