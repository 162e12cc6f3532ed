"""What an operator and a variant are. Everything a new kernel has to agree with stands in this file.

Never imports torch: planning a sweep, reading records and drawing plots must work without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isfunction
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from harness.checks import WAIVABLE

if TYPE_CHECKING:
    from torch import Tensor

#: What a variant may need of the machine. ``cuda``: a GPU to run on, no way to run without one.
#: ``compiler``: a host C++ compiler. Any other name is a Python module that must be importable.
GPU, COMPILER = "cuda", "compiler"


#: dataclass field metadata of an input or output that stays on the CPU, as engines keep a host copy beside a device
#: tensor.
HOST = MappingProxyType({"host": True})


class Point(Mapping[str, Any]):
    """One combination of axis values; values are reached as attributes. Immutable and comparable."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_values", dict(values))

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"this point has no axis {name!r}; its axes are {', '.join(self._values)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Point is immutable")

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self):
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Point({self._values})"

    def __reduce__(self):
        return Point, (self._values,)


@dataclass(frozen=True)
class Axis:
    """One thing a sweep may vary.

    parse:   takes the value as YAML gives it, returns it in canonical (JSON-able) form, or raises ValueError
             with a sentence that says what would be legal.
    default: the value where a grid is silent, or a function of the axes declared before this one.
    label:   the short form in keys and tables.
    """

    name: str
    parse: Callable[[Any], Any]
    default: Any
    doc: str
    label: Callable[[Any], str] = str

    def default_at(self, earlier: Mapping[str, Any]) -> Any:
        return self.default(Point(earlier)) if callable(self.default) else self.default


@dataclass(frozen=True)
class Rule:
    """A relation between axes. ``holds(point)`` false means ``message`` (a str.format template over the axes)."""

    message: str
    holds: Callable[[Point], bool]


@dataclass(frozen=True)
class Expected:
    """What the reference says of one output buffer, element by element, over its whole capacity.

    value:     tensor of the buffer's shape and dtype; compared for equality wherever no mask below is set.
    untouched: bool mask; these elements must keep what they held before the launch.
    slack:     bool mask; these elements are never read by a consumer. They may keep what they held, hold ``value``
               or hold 0, and nothing else: any other content was read from where it must not be.
    """

    value: Tensor
    untouched: Tensor | None = None
    slack: Tensor | None = None


@dataclass(frozen=True)
class HardPoint:
    """A named case that breaks implementations. ``edit`` changes the generated inputs in place (CPU tensors)."""

    name: str
    point: Mapping[str, Any]
    edit: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Operator:
    """One operator: its axes, inputs, persistent outputs, scalar reference and least traffic.

    make_inputs(point, seed) -> frozen dataclass of CPU tensors and host integers. Shapes, and every host integer,
        depend on the point alone: the harness refreshes contents in place under a captured graph.
    make_outputs(point) -> frozen dataclass of persistent buffers at capacity. The harness poisons them.
    views(point, out) -> {name: tensor}: what a consumer is handed, as views of the buffers. A variant whose launch
        returns a mapping is held to exactly these addresses, shapes, strides and dtypes.
    reference(point, x) -> {buffer name: Expected}; plain loops over CPU tensors, independent of every variant.
    bytes_moved(point, x) -> int: each needed byte read once and written once.
    rules:     legality; a point that breaks one is an error in the configuration.
    redundant: (point) -> reason, where a legal point measures the same as another one; such a cell is skipped.
    sequences: name -> points, the first the largest in every buffer; run one after another through its buffers.
    baseline:  the variant that speed-ups and modelled deltas refer to.
    phase:     "decode" where every decode step calls it, else "prefill": there is no ITL or TPOT to model.
    """

    name: str
    summary: str
    axes: Sequence[Axis]
    make_inputs: Callable[[Point, int], Any]
    make_outputs: Callable[[Point], Any]
    views: Callable[[Point, Any], Mapping[str, Tensor]]
    reference: Callable[[Point, Any], Mapping[str, Expected]]
    bytes_moved: Callable[[Point, Any], int]
    baseline: str
    hard_points: Sequence[HardPoint] = ()
    sequences: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    rules: Sequence[Rule] = ()
    redundant: Callable[[Point], str | None] = lambda point: None
    phase: Literal["decode", "prefill"] = "decode"

    def axis(self, name: str) -> Axis:
        return next(axis for axis in self.axes if axis.name == name)

    def complete(self, values: Mapping[str, Any]) -> Point:
        """The point with defaults filled in for the axes that ``values`` leaves out."""
        full: dict[str, Any] = {}
        for axis in self.axes:
            full[axis.name] = values[axis.name] if axis.name in values else axis.default_at(full)
        return Point(full)

    def broken_rule(self, point: Point) -> Rule | None:
        """The first rule that the point breaks; None where it is legal."""
        return next((rule for rule in self.rules if not rule.holds(point)), None)

    def label(self, point: Mapping[str, Any]) -> str:
        """``batch_size=8,next_n=4,...``: the axes that differ from their default, in declared order."""
        parts, earlier = [], {}
        for axis in self.axes:
            if point[axis.name] != axis.default_at(earlier):
                parts.append(f"{axis.name}={axis.label(point[axis.name])}")
            earlier[axis.name] = point[axis.name]
        return ",".join(parts) or "default"

    def spelt_out(self, point: Mapping[str, Any]) -> str:
        """The same with every axis."""
        return ",".join(f"{axis.name}={axis.label(point[axis.name])}" for axis in self.axes)


@dataclass(frozen=True)
class Variant:
    """One implementation of an operator. ``setup(point, x, out)`` returns the closure that is timed.

    requires: GPU, COMPILER or importable modules without which it is listed as unavailable.
    sources:  CUDA C++ files it is built from; without a GPU they are compiled for every supported architecture.
    skip:     (point) -> reason where this variant does not apply, else None. One that skips every hard point has proved
              nothing and is not measured.
    waives:   contracts of WAIVABLE it does not promise; a broken one that is not waived rejects the variant.
    defect:   the historic bug it keeps alive. Such a variant is never timed and must be rejected by verify.
    """

    operator: str
    name: str
    setup: Callable[[Point, Any, Any], Callable[[], Any]]
    doc: str
    origin: str
    requires: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()
    skip: Callable[[Point], str | None] = lambda point: None
    waives: tuple[str, ...] = ()
    defect: str | None = None

    @property
    def id(self) -> str:
        return f"{self.operator}/{self.name}"


def variant(
    operator: str,
    *,
    requires: str | Sequence[str] = (),
    sources: str | Path | Sequence[str | Path] = (),
    skip: Callable[[Point], str | None] = lambda point: None,
    waives: str | Sequence[str] = (),
    defect: str | None = None,
) -> Callable[[Callable], Callable]:
    """Mark ``def name(point, x, out) -> launch`` as a variant of ``operator``. The function's name is the variant's.

    The body is set-up: allocation, compilation, host constants; it is not timed. The returned closure takes no
    argument, is timed, and returns None (the consumer reads ``Operator.views``) or a mapping of the tensors it hands
    on. ``sources`` are paths relative to the file the function stands in.
    """

    if not isinstance(operator, str):
        raise TypeError("@variant needs the operator's name: @variant('name')")
    as_tuple = lambda value: (value,) if isinstance(value, (str, Path)) else tuple(value)  # noqa: E731
    unknown = [name for name in as_tuple(waives) if name not in WAIVABLE]
    if unknown:
        raise ValueError(f"waives={unknown[0]!r} is none of {', '.join(WAIVABLE)}")

    def mark(setup: Callable) -> Callable:
        if not isfunction(setup):
            raise TypeError(f"@variant marks a function (point, x, out) -> launch, not {setup!r}")
        folder = Path(setup.__code__.co_filename).parent
        setup.__variant__ = Variant(
            operator=operator,
            name=setup.__name__,
            setup=setup,
            doc=" ".join((setup.__doc__ or "").split()),
            origin=setup.__module__,
            requires=as_tuple(requires),
            sources=tuple(folder / source for source in as_tuple(sources)),
            skip=skip,
            waives=as_tuple(waives),
            defect=defect,
        )
        return setup

    return mark
