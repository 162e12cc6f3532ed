"""Operators that are made of others: a composed operator is a list of parts and of what they share.

Outputs, views, reference and least traffic of the whole follow from the list, and so do sequences of variants of the
parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spec_decode_bench.harness.contract import Expected, Operator, Point
from spec_decode_bench.harness.tensors import Dimension, Tensors, optional, sizes, tensors

if TYPE_CHECKING:
    from torch import Tensor

#: Sets up a variant of a part, or of the whole: (point, inputs, outputs) -> launch.
Setup = Callable[[Point, Any, Any], Callable[[], Any]]


def in_sequence(*launches: Callable[[], Any]) -> Callable[[], None]:
    """One launch of all of them in this order."""

    def launch() -> None:
        for part in launches:
            part()

    return launch


def with_inputs(variant: Setup, change: Callable[[Any], Any]) -> Setup:
    """The variant on other inputs: ``change`` makes them of those that it would get."""
    return lambda point, x, out: variant(point, change(x), out)


def part_point(operator: Operator, point: Point, **changes: Any) -> Point:
    """The whole's point as one of a part: its value of every axis that both have."""
    own = {axis.name: point[axis.name] for axis in operator.axes if axis.name in point}
    return operator.complete({**own, **changes})


@dataclass(frozen=True)
class Part:
    """An operator as part of a composed one, the whole. Called with the whole's point, inputs and outputs it returns
    those of the part; tensors are shared.

    at:      (the whole's point) -> the part's.
    applies: (the whole's point) -> whether the whole has this part there.
    reads:   field of the part's Inputs -> the output of an earlier part that it is, or (point, x, out) -> its value. A
             field that is not named here is its namesake in the whole's inputs or, where it has none, outputs. Of a
             longer tensor the part gets as much as it declares.
    writes:  field of the part's Outputs -> that of the whole's, or None if the whole has no such output. Fields not
             named here have one name in both.
    shared:  field of the part -> how many elements of it other parts move as well; they count once.
    """

    operator: Operator
    at: Callable[[Point], Point]
    applies: Callable[[Point], bool] = lambda point: True
    reads: Mapping[str, str | Callable[[Point, Any, Any], Any]] = field(default_factory=dict)
    writes: Mapping[str, str | None] = field(default_factory=dict)
    shared: Mapping[str, Dimension] = field(default_factory=dict)

    def __call__(self, point: Point, x: Any, out: Any) -> tuple[Point, Any, Any]:
        at, made = self.at(point), {}
        for name in self.operator.inputs.__dataclass_fields__:
            source = self.reads.get(name)
            if callable(source):
                value = source(point, x, out)
            else:
                value = getattr(out, source) if source else getattr(x, name, getattr(out, name, None))
            spec = tensors(self.operator.inputs).get(name)
            made[name] = value if spec is None else spec.of_longer(value, at)
        return at, self.operator.inputs(**made), self.outputs(out)

    @property
    def output_names(self) -> dict[str, str]:
        """Field of the part's Outputs -> that of the whole's."""
        names = {name: self.writes.get(name, name) for name in self.operator.outputs.__dataclass_fields__}
        return {name: whole for name, whole in names.items() if whole is not None}

    def outputs(self, out: Any) -> Any:
        named = {name: getattr(out, whole) for name, whole in self.output_names.items()}
        return self.operator.outputs(**dict.fromkeys(self.operator.outputs.__dataclass_fields__) | named)

    def renamed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs, or views, of the part by their names in the whole."""
        return {self.writes.get(name, name): value for name, value in values.items()}

    def shared_bytes(self, point: Point) -> int:
        specs = tensors(self.operator.outputs) | tensors(self.operator.inputs)
        return sum(specs[name].dtype.nbytes * sizes((count,), point)[0] for name, count in self.shared.items())


class Composition:
    """Parts in the order in which an engine launches them: each reads what those before it have written."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts

    @cached_property
    def Outputs(self) -> type[Tensors]:
        """The outputs of all parts; None where a part does not apply, or has no use for it."""
        named = {
            whole: tensors(part.operator.outputs)[name]
            for part in self.parts
            for name, whole in part.output_names.items()
        }
        composition = self

        class Outputs(optional("Outputs", named)):
            @classmethod
            def empty(cls, point: Point) -> Outputs:
                made: dict[str, Any] = {}
                for part in composition.parts_at(point):
                    made |= part.renamed(vars(part.operator.outputs.empty(part.at(point))))
                return cls(**{name: buffer for name, buffer in made.items() if buffer is not None})

            @classmethod
            def nbytes(cls, point: Point) -> int:
                made: dict[str, int] = {}
                for part in composition.parts_at(point):
                    specs, at = tensors(part.operator.outputs), part.at(point)
                    made |= {whole: specs[name].nbytes(at) for name, whole in part.output_names.items()}
                return sum(made.values())

            def views(self, point: Point) -> dict[str, Tensor]:
                seen: dict[str, Tensor] = {}
                for part in composition.parts_at(point):
                    seen |= part.renamed(part.outputs(self).views(part.at(point)))
                return seen

        return Outputs

    def parts_at(self, point: Point) -> list[Part]:
        return [part for part in self.parts if part.applies(point)]

    def reference(self, point: Point, x: Any) -> Mapping[str, Expected]:
        """The references of the parts, each over what those before it have written."""
        return self._run(point, x)[0]

    def bytes_moved(self, point: Point, x: Any) -> int:
        """That of the parts, less what several of them read, or one writes and another reads."""
        _, out = self._run(point, x)
        moved = [part.operator.bytes_moved(*part(point, x, out)[:2]) for part in self.parts_at(point)]
        return sum(moved) - sum(part.shared_bytes(point) for part in self.parts_at(point))

    def _run(self, point: Point, x: Any) -> tuple[dict[str, Expected], Any]:
        out, expected = self.Outputs.empty(point), {}
        for part in self.parts_at(point):
            made = part.renamed(part.operator.reference(*part(point, x, out)[:2]))
            for name, e in made.items():
                getattr(out, name).copy_(e.value)
            expected |= made
        return expected, out

    def sequence(self, *setups: Setup | None) -> Setup:
        """Sets up one variant for each part, in order, and launches them one after another."""

        def setup(point: Point, x: Any, out: Any) -> Callable[[], None]:
            pairs = zip(self.parts, setups, strict=True)
            return in_sequence(*(variant(*part(point, x, out)) for part, variant in pairs if part.applies(point)))

        return setup
