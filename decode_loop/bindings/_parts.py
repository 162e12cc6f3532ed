"""The binding of one part of a composed operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_decode_bench.baselines.workloads.composition import Composition, Part
from spec_decode_bench.decode_loop.engine_state import EngineShape, EngineState, LoopBinding
from spec_decode_bench.harness.contract import Operator, Point


def part_binding(parts: Composition, whole: LoopBinding, operator: Operator, part: Part, **own: Any) -> LoopBinding:
    """One part alone in a stack, on the tensors that the whole would give it. operator: the whole."""

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

    settings = {"turn": whole.turn, "by_slot": whole.by_slot} | own
    return LoopBinding(operator=part.operator.name, axes=axes, inputs=inputs, **settings)
