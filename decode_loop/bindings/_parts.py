"""The binding of one part of a composed operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spec_decode_bench.baselines.workloads.composition import Composition, Part
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, EngineState, LoopBinding
from spec_decode_bench.harness.contract import Operator, Point


def part_binding(
    parts: Composition,
    whole: LoopBinding,
    operator: Operator,
    part: Part,
    *,
    builds: Callable[[EngineShape], tuple[str, ...]],
    consumed: Callable[[Point, EngineState, Any], Mapping[str, Consumed]],
    needs: tuple[str, ...] = (),
    outputs: Callable[[Point, EngineState, Any], Any] = lambda point, state, out: out,
) -> LoopBinding:
    """One part alone in a stack, on the tensors that the whole would give it. operator: the whole; the others: as in
    LoopBinding.
    """

    def whole_point(shape: EngineShape) -> Point:
        if shape.state_groups:
            raise ValueError("groups of states take step_prologue and step_epilogue, not their parts one by one")
        return operator.complete(whole.axes(shape))

    def inputs(point: Point, state: EngineState) -> Any:
        at = whole_point(state.shape)
        return part(at, whole.inputs(at, state), whole.outputs(at, state, parts.Outputs()))[1]

    def axes(shape: EngineShape) -> Mapping[str, Any]:
        at = part.at(whole_point(shape))
        return {axis.name: at[axis.name] for axis in part.operator.axes}

    return LoopBinding(
        operator=part.operator.name,
        axes=axes,
        needs=needs,
        builds=builds,
        turn=whole.turn,
        by_slot=whole.by_slot,
        inputs=inputs,
        outputs=outputs,
        consumed=consumed,
    )
