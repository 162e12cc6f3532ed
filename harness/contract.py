"""What an operator and a variant must provide. This file is the whole interface of a kernel.

Never imports torch: planning a sweep, reading records and drawing plots work without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, wraps
from inspect import isfunction, unwrap
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from spec_decode_bench.harness.checks import WAIVABLE
from spec_decode_bench.harness.printable import printable
from spec_decode_bench.harness.tensors import Tensors, no_dimension, wrong_with

if TYPE_CHECKING:
    from torch import Tensor

#: Values of ``requires=``: a GPU; a host C++ compiler. Any other value is a Python module, or a file in the folder of
#: one (``vllm:v1/worker/mamba_utils.py``), that must be installed; ``|`` separates alternatives.
GPU, COMPILER = "cuda", "compiler"

#: How else an edge case runs -> suffix of its name: in buffers that start one element past an aligned address; with
#: rows of an input or output so far apart that offsets do not fit 32 bits; with one array as input and output, as an
#: engine calls it (``Operator.in_place``).
BUFFERS = MappingProxyType({"unaligned": ", unaligned buffers", "far": ", rows beyond 2^31", "in_place": ", in place"})
Buffers = Literal["unaligned", "far", "in_place"]

#: Key of a point whose first inputs an engine had: {name, file, crc32} (harness/config/captured.py). It is no axis:
#: kernels and generated inputs do not depend on it.
CAPTURE = "capture"


def in_buffers(name: str, buffers: Buffers | None) -> str:
    """The name of an edge case with its suffix."""
    return name + (BUFFERS[buffers] if buffers else "")


class Point(Mapping[str, Any]):
    """One combination of axis values, read as attributes (``point.batch_size``). Immutable and comparable."""

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

    def __contains__(self, name: object) -> bool:
        return name in self._values

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
    """One parameter that a sweep may vary.

    parse:   turns the value that YAML gives into a canonical, JSON-able one. Raises ValueError with a sentence that
             says what would be legal. For values that are not sizes, its attribute ``examples`` may list those that
             ``verify`` combines with all sizes, or be a function (point) -> list. Where the default is none of them,
             most points have the first: one that hides no other axis.
    default: the value where a grid does not set the axis, or a function of the axes declared before this one.
    label:   value -> its short form in keys and tables.
    largest: the largest size worth verifying, for a size that costs launch time but no bytes, and that no rule bounds.
    used:    sizes that engines use -> who uses them. ``verify`` combines each with all values of the other axes.
    idle:    (point) -> whether nothing that is expected depends on it there, as on the length of a prompt's chunk where
             there is none. ``verify`` looks for points at which neither value of a pair is idle.
    """

    name: str
    parse: Callable[[Any], Any]
    default: Any
    doc: str
    label: Callable[[Any], str] = str
    largest: int | None = None
    used: Mapping[int, str] = field(default_factory=dict, hash=False)
    idle: Callable[[Point], bool] = lambda point: False

    def default_at(self, earlier: Point) -> Any:
        return self.default(earlier) if callable(self.default) else self.default

    def examples_at(self, point: Point) -> Sequence[Any]:
        """Values of an axis that is not a size, to verify at a point; empty where the parser lists none."""
        examples = getattr(self.parse, "examples", ())
        return examples(point) if callable(examples) else examples


@dataclass(frozen=True)
class Rule:
    """A relation between axes. ``message``, a str.format template over the axes, is the error for a point that breaks
    it.
    """

    message: str
    holds: Callable[[Point], bool]


@dataclass(frozen=True)
class Expected:
    """The correct content of one output buffer, over its whole capacity.

    value:     tensor of the buffer's shape and dtype. Compared exactly where neither mask is set.
    untouched: bool mask of elements that must keep what they held before the launch.
    may_keep:  bool mask of elements that no consumer reads. They may keep what they held, hold ``value`` or hold 0.
               Anything else was read from memory that the launch must not read.
    dont_care: bool mask of elements that no consumer reads and that real kernels leave undefined, such as fields of a
               row that they do not set. They are not compared.
    """

    value: Tensor
    untouched: Tensor | None = None
    may_keep: Tensor | None = None
    dont_care: Tensor | None = None

    def to(self, device: Any) -> Expected:
        """On a device of torch."""
        tensors = (self.value, self.untouched, self.may_keep, self.dont_care)
        return Expected(*(None if tensor is None else tensor.to(device) for tensor in tensors))

    @property
    def may_vary(self) -> Tensor | None:
        """Mask of the elements that may differ from launch to launch: may_keep and dont_care."""
        if self.may_keep is None or self.dont_care is None:
            return self.may_keep if self.dont_care is None else self.dont_care
        return self.may_keep | self.dont_care


@dataclass(frozen=True)
class EdgeCase:
    """A named case that breaks implementations. ``edit`` changes the generated inputs (CPU tensors) in place."""

    name: str
    point: Mapping[str, Any]
    edit: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Operator:
    """One operator: its axes, inputs, persistent outputs, scalar reference and least traffic.

    inputs, outputs: what the tensors are (harness/tensors.py). Persistent buffers, views and bytes follow from it; a
        class with other ones has methods ``empty``, ``views`` or ``nbytes`` of its own.
    make_inputs(point, seed) -> inputs: CPU tensors and host integers. The harness replaces contents in place under a
        captured graph, so only they depend on the seed.
    reference(point, x) -> {buffer name: Expected}: plain loops over CPU tensors, independent of every variant.
    in_place(point) -> {output: input}: of one shape, for which an engine passes one array, where both are there.
    varied(point) -> {axis: value}: of other points whose contents a launch that was set up at this one may find, too:
        they change no shape. The host's integers stay those of this point.
    bytes_moved(point, x) -> int: the least traffic, each needed byte read once and written once.
    rules:     a point that breaks one is an error in the configuration.
    redundant: (point) -> why a legal point measures the same as another one and is skipped, else None.
    sequences: name -> points, run one after another through the buffers of the first, which is the largest.
    baseline:  the variant that speed-ups and modelled deltas refer to.
    indices:   view -> for each dimension its letter in the operator's formulas, or (point) -> the names of the fields
               that lie along it; messages show them.
    phase:     "decode" if every decode step calls it, else "prefill", for which no ITL or TPOT is modelled.
    """

    name: str
    summary: str
    axes: Sequence[Axis]
    inputs: type[Tensors]
    outputs: type[Tensors]
    make_inputs: Callable[[Point, int], Any]
    reference: Callable[[Point, Any], Mapping[str, Expected]]
    bytes_moved: Callable[[Point, Any], int]
    baseline: str
    edge_cases: Sequence[EdgeCase] = ()
    sequences: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    rules: Sequence[Rule] = ()
    redundant: Callable[[Point], str | None] = lambda point: None
    in_place: Callable[[Point], Mapping[str, str]] = lambda point: {}
    varied: Callable[[Point], Mapping[str, Any]] = lambda point: {}
    indices: Mapping[str, Sequence[str | Callable[[Point], Sequence[str]]]] = field(default_factory=dict)
    phase: Literal["decode", "prefill"] = "decode"

    def __post_init__(self) -> None:
        """Check dimensions, and what make_inputs makes. Raises ValueError."""
        for kind in (self.inputs, self.outputs):
            if problem := no_dimension(kind, [axis.name for axis in self.axes]):
                raise ValueError(f"{self.name}: {problem}")
        object.__setattr__(self, "make_inputs", self._checked(self.make_inputs))

    def views(self, point: Point, out: Any) -> Mapping[str, Tensor]:
        """What consumers read of the buffers, by name. If a launch returns a mapping, its tensors must have exactly
        these addresses, shapes, strides and dtypes.
        """
        return out.views(point)

    def nbytes(self, point: Point) -> int:
        """Of the storage of all inputs and outputs, with what lies between the rows of a table."""
        return self.inputs.nbytes(point) + self.outputs.nbytes(point)

    def _checked(self, make_inputs: Callable[[Point, int], Any]) -> Callable[[Point, int], Any]:
        """``make_inputs``, whose tensors must be what they are declared to be."""

        @wraps(make_inputs)
        def checked(point: Point, seed: int) -> Any:
            x = make_inputs(point, seed)
            if not isinstance(x, self.inputs):
                raise TypeError(f"make_inputs of {self.name} returned a {type(x).__name__}, not its Inputs")
            if problem := wrong_with(x, point):
                raise ValueError(f"make_inputs of {self.name}: {problem}")
            return x

        return checked

    @property
    def defined(self) -> str:
        """File and line of its reference, or of its make_inputs where parts have the reference."""
        function = unwrap(self.reference if isfunction(self.reference) else self.make_inputs)
        return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"

    def complete(self, values: Mapping[str, Any]) -> Point:
        """The point with the defaults of the axes that ``values`` leaves out."""
        given, point = dict(values), Point({})
        filled = point._values
        # A default reads the axes before it: the point grows, instead of a copy for each axis. Planning an array calls
        # this a hundred thousand times.
        for name, default, depends in self._defaults:
            filled[name] = given[name] if name in given else default(point) if depends else default
        return point

    @cached_property
    def _defaults(self) -> list[tuple[str, Any, bool]]:
        """(axis, default, whether it is a function)."""
        return [(axis.name, axis.default, callable(axis.default)) for axis in self.axes]

    def values(self, point: Point) -> dict[str, int | float | str]:
        """Axis -> its value, as a number or as the label of what is none."""
        return {
            axis.name: value if isinstance(value := point[axis.name], int | float) else axis.label(value)
            for axis in self.axes
        }

    def idle_axes(self, point: Point) -> frozenset[str]:
        """Names of the axes on which nothing depends at a point."""
        return frozenset(axis.name for axis in self._with_idle if axis.idle(point))

    @cached_property
    def _with_idle(self) -> list[Axis]:
        """Axes that are idle anywhere."""
        return [axis for axis in self.axes if axis.idle is not Axis.idle]

    def broken_rule(self, point: Point) -> Rule | None:
        """The first rule that the point breaks; None where it is legal."""
        return next((rule for rule in self.rules if not rule.holds(point)), None)

    def label(self, point: Mapping[str, Any]) -> str:
        """``batch_size=8,next_n=4,...``: the axes that differ from their default, in declared order; behind them, of a
        captured point, ``capture=llama_eagle@1200``.
        """
        parts, earlier = [], Point({})
        for axis in self.axes:
            if point[axis.name] != axis.default_at(earlier):
                parts.append(f"{axis.name}={printable(axis.label(point[axis.name]))}")
            earlier._values[axis.name] = point[axis.name]
        return ",".join([*parts, *_capture_of(point)]) or "default"

    def spelt_out(self, point: Mapping[str, Any]) -> str:
        """Like ``label``, with every axis."""
        parts = [f"{axis.name}={printable(axis.label(point[axis.name]))}" for axis in self.axes]
        return ",".join([*parts, *_capture_of(point)])


def _capture_of(point: Mapping[str, Any]) -> list[str]:
    """The part of a label that tells a captured point from others with the same axes."""
    return [f"{CAPTURE}={point[CAPTURE]['name']}"] if CAPTURE in point else []


@dataclass(frozen=True)
class Variant:
    """One implementation of an operator. ``setup(point, x, out)`` returns the closure that is timed.

    doc:      the docstring of ``setup`` in one line. origin: the module it was defined in.
    requires: GPU, COMPILER, modules or files of packages, or definitions in them, without which it is listed as
              unavailable (harness/packages.py).
    sources:  CUDA C++ files it is built from. Without a GPU they are compiled for every supported architecture.
    skip:     (point) -> why this variant does not apply, else None. A variant that skips every edge case is unverified
              and not measured.
    waives:   names of WAIVABLE checks that do not apply to it.
    sizes:    axis -> sizes, other than powers of two, at which its code takes another path, such as the largest grid.
              ``verify`` tries each, one less and one more.
    defect:   the historic bug that it reproduces. Such a variant is never timed, verify must reject it, and it may
              allocate.
    known_failures: for an engine's kernel: glob of names of edge cases and sequences that it does not support -> why.
              ``verify`` runs them in a process of their own, and every time of the variant has a mark. At the points of
              a sweep it must be right like any other.
    fails_on: (point, inputs on the CPU) -> whether a batch is a known failure. Points of the covering array
              have no names: those for which this is true are skipped.
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
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    known_failures: Mapping[str, str] = field(default_factory=dict)
    fails_on: Callable[[Point, Any], bool] = lambda point, inputs: False

    @property
    def is_upstream(self) -> bool:
        """Whether it wraps an engine's kernel, in upstream/."""
        return self.folder == "upstream"

    @property
    def folder(self) -> str:
        """Of the suite, ``baselines``, ``kernels`` or ``upstream``; else the first name of its module."""
        return self.origin.removeprefix("spec_decode_bench.").partition(".")[0]

    @property
    def id(self) -> str:
        return f"{self.operator}/{self.name}"

    def known_failure_at(self, name: str, buffers: Buffers | None = None) -> str | None:
        """Why the variant does not support an edge case or a sequence; None where it must."""
        name = in_buffers(name, buffers)
        return next((reason for glob, reason in self.known_failures.items() if fnmatchcase(name, glob)), None)

    @property
    def is_slow_to_verify(self) -> bool:
        """Whether torch.compile, or on a CPU Triton's interpreter, needs seconds for its edge cases."""
        return COMPILER in self.requires or self.is_interpreted

    @property
    def is_interpreted(self) -> bool:
        """Whether Triton's interpreter runs a kernel that its set-up can name."""
        named = getattr(self.setup, "__globals__", {}).values()
        return any(type(value).__name__ == "InterpretedFunction" for value in named)


def variant(
    operator: str,
    *,
    requires: str | Sequence[str] = (),
    sources: str | Path | Sequence[str | Path] = (),
    skip: Callable[[Point], str | None] = lambda point: None,
    waives: str | Sequence[str] = (),
    defect: str | None = None,
    sizes: Mapping[str, Sequence[int]] = MappingProxyType({}),
    known_failures: Mapping[str, str] = MappingProxyType({}),
    fails_on: Callable[[Point, Any], bool] = lambda point, inputs: False,
) -> Callable[[Callable], Callable]:
    """Mark ``def name(point, x, out) -> launch`` as a variant of ``operator``, named like the function.

    The body is set-up (allocation, compilation, host constants) and not timed. The returned closure is timed; it takes
    no argument and returns None (the consumer reads ``Operator.views``) or a mapping of those views. ``sources`` are
    relative to the file of the function. The other arguments are those of Variant. Raises TypeError or ValueError for a
    wrong declaration.
    """

    if not isinstance(operator, str):
        raise TypeError("@variant needs the operator's name: @variant('name')")
    as_tuple = lambda value: (value,) if isinstance(value, (str, Path)) else tuple(value)  # noqa: E731
    unknown = [name for name in as_tuple(waives) if name not in WAIVABLE]
    if unknown:
        raise ValueError(f"waives={unknown[0]!r} is none of {', '.join(WAIVABLE)}")
    if nameless := [
        glob for glob, reason in known_failures.items() if not (isinstance(reason, str) and reason.strip())
    ]:
        raise ValueError(f"known_failures={{{nameless[0]!r}: ...}} needs a reason in words")

    def mark(setup: Callable) -> Callable:
        if not isfunction(setup):
            raise TypeError(f"@variant marks a function (point, x, out) -> launch, not {setup!r}")
        earlier = getattr(setup.__globals__.get(setup.__name__, setup), "__variant__", None)
        if earlier is not None and earlier.origin == setup.__module__:
            both = f"{earlier.operator}/{earlier.name} and {operator}/{setup.__name__}"
            raise ValueError(f"{both} are one function name in this file, so the first would be lost; rename one")
        folder = Path(setup.__code__.co_filename).parent
        setup.__variant__ = Variant(
            operator=operator,
            name=printable(setup.__name__),
            setup=setup,
            doc=" ".join((setup.__doc__ or "").split()),
            origin=setup.__module__,
            requires=as_tuple(requires),
            sources=tuple(folder / source for source in as_tuple(sources)),
            skip=skip,
            waives=tuple(dict.fromkeys((*as_tuple(waives), *(["no_alloc"] if defect else ())))),
            defect=defect,
            sizes={axis: tuple(values) for axis, values in sizes.items()},
            known_failures=dict(known_failures),
            fails_on=fails_on,
        )
        return setup

    return mark


@dataclass(frozen=True)
class Consumer:
    """An engine's kernel that reads the outputs of an operator; see ``consumer``.

    run:      (point, inputs, outputs) -> {name: tensor}, the results computed from the tables in the outputs. Elements
              that nobody reads must be the same in every run. Its own random inputs come from torch's default
              generator, which is seeded before each run.
    planner:  the variant that wraps the engine's own planner; the results on all tables must equal those on its tables.
    requires, skip: as of a variant.
    """

    operator: str
    name: str
    run: Callable[[Point, Any, Any], Mapping[str, Tensor]]
    planner: str
    doc: str
    requires: tuple[str, ...] = ()
    skip: Callable[[Point], str | None] = lambda point: None


def consumer(
    operator: str,
    *,
    planner: str,
    requires: Sequence[str] = (),
    skip: Callable[[Point], str | None] = lambda point: None,
) -> Callable[[Callable], Callable]:
    """Mark ``def name(point, x, out) -> {name: tensor}`` as a consumer of ``operator``, for `verify --consumers`."""

    def mark(run: Callable) -> Callable:
        doc = " ".join((run.__doc__ or "").split())
        run.__consumer__ = Consumer(operator, run.__name__, run, planner, doc, tuple(requires), skip)
        return run

    return mark
