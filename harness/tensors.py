"""What an operator's tensors are, said once: dtype, dimensions, and what else is special about them.

    class Inputs(Tensors):
        seq_lens: I32["batch_size"]  # 0 = padding request
        query_start_loc_cpu: I32["batch_size + 1"] = field(host=True)

    class Outputs(Tensors):
        buffer: I32["max_num_batched_tokens"]
        context_lens: I32["batch_size", "max_decode_len"] = view_of("buffer")

A dimension is an axis, a sum or product of axes and whole numbers, or a function (point) -> int, or -> several ints.
Such a class is a frozen dataclass of tensors; any other field, such as ``num_tokens: int``, is a number of the host.
Persistent buffers, views, bytes, the structs of CUDA C++ and the tensors that `bench.py list` shows follow from it.

Never imports torch when it is imported itself: planning works without.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from inspect import get_annotations
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

from spec_decode_bench.harness.errors import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from spec_decode_bench.harness.contract import Point

#: Of a tensor: an axis, a formula of axes, a number, or a function of the point.
Dimension = str | int | Callable[["Point"], int | Sequence[int]]
#: Ends of the names of two fields that are one array, in either memory.
_PAIR = ("device", "host")


@dataclass(frozen=True)
class DType:
    """name: as torch has it. nbytes: of an element. cuda: its type in CUDA C++."""

    name: str
    nbytes: int
    cuda: str

    def __getitem__(self, dims: Dimension | tuple[Dimension, ...]) -> Typed:
        return Typed(self, dims if isinstance(dims, tuple) else (dims,))


@dataclass(frozen=True)
class Typed:
    """The annotation of a field."""

    dtype: DType
    dims: tuple[Dimension, ...]


if TYPE_CHECKING:  # who reads a field gets a Tensor

    class TypedTensor(Tensor):
        def __class_getitem__(cls, dims: Any) -> Any: ...

    Bool = U8 = I16 = I32 = I64 = F32 = TypedTensor
else:
    Bool, U8 = DType("bool", 1, "bool"), DType("uint8", 1, "unsigned char")
    I16, I32, I64 = DType("int16", 2, "short"), DType("int32", 4, "int"), DType("int64", 8, "long long")
    F32 = DType("float32", 4, "float")


@dataclass(frozen=True)
class Special:
    """What ``field`` and ``view_of`` say of a tensor. buffer: that it is a view of."""

    read: tuple[Dimension, ...] | Literal[0] = ()
    where: Callable[[Point], bool] = lambda point: True
    host: bool = False
    uva: bool = False
    strided: Dimension | bool = False
    buffer: str | None = None


_PLAIN = Special()


def field(
    *,
    read: Dimension | tuple[Dimension, ...] = (),
    where: Callable[[Point], bool] = _PLAIN.where,
    host: bool = False,
    uva: bool = False,
    strided: Dimension | bool = False,
) -> Any:
    """A tensor with something special.

    read:    how much of each leading dimension consumers read; the rest of the buffer is no part of its view. 0: no
             consumer reads it. All of it unless given.
    where:   (point) -> whether the operator has it there; elsewhere it is None. Such a field is passed by its name.
    host:    it stays on the CPU, like the host copies that engines keep beside their device tensors.
    uva:     launches reach it there, over the bus: in pinned memory, by its unified address or a memcpy.
    strided: whether rows may lie apart, so that a variant takes their stride from the tensor; or elements from one row
             to the next, which inputs are made with.
    """
    read = read if isinstance(read, tuple) or read == 0 else (read,)
    return Special(read, where, host or uva, uva, strided)


def view_of(buffer: str) -> Any:
    """What consumers read of a buffer: its first elements, in this shape. No field, but an entry of Operator.views."""
    return Special(buffer=buffer)


@cache
def _formula(dimension: str) -> CodeType:
    """Raises SyntaxError for what is no sum or product of names and whole numbers."""
    allowed = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Name, ast.Load, ast.Constant)
    tree = ast.parse(dimension, mode="eval")
    if not all(isinstance(node, allowed) for node in ast.walk(tree)):
        raise SyntaxError
    return compile(tree, dimension, "eval")


def sizes(dimensions: Iterable[Dimension], point: Point) -> tuple[int, ...]:
    """What the dimensions are at a point."""
    found: list[int] = []
    for dimension in dimensions:
        if isinstance(dimension, str):
            found.append(point[dimension] if dimension in point else eval(_formula(dimension), {}, point))
        else:
            value = dimension(point) if callable(dimension) else dimension
            found += [value] if isinstance(value, int) else value
    return tuple(found)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a class, or a view."""

    name: str
    typed: Typed
    special: Special

    @property
    def dtype(self) -> DType:
        return self.typed.dtype

    def is_at(self, point: Point) -> bool:
        return self.special.where(point)

    def shape(self, point: Point) -> tuple[int, ...]:
        return sizes(self.typed.dims, point)

    def nbytes(self, point: Point) -> int:
        """Of its storage, with what lies between its rows; 0 where the operator does not have it."""
        if not self.is_at(point) or self.special.buffer is not None:
            return 0
        shape, strided = self.shape(point), self.special.strided
        if not isinstance(strided, bool):
            shape = shape[:1] + sizes((strided,), point)
        return self.dtype.nbytes * math.prod(shape)

    def of_longer(self, tensor: Tensor | None, point: Point) -> Tensor | None:
        """As much of a tensor as is declared; None where nothing is."""
        if tensor is None or not self.is_at(point):
            return None
        for dimension, size in enumerate(self.shape(point)):
            tensor = tensor.narrow(dimension, 0, size)
        return tensor

    def empty(self, point: Point) -> Tensor | None:
        """The persistent buffer, with any contents."""
        torch = import_module("torch")
        return torch.empty(self.shape(point), dtype=getattr(torch, self.dtype.name)) if self.is_at(point) else None

    def view(self, tensor: Tensor, point: Point) -> Tensor:
        """What consumers read of the tensor, or of the buffer that this is a view of."""
        if self.special.buffer is not None:
            shape = self.shape(point)
            return tensor[: math.prod(shape)].view(shape)
        for dimension, size in enumerate(sizes(self.special.read, point)):
            tensor = tensor.narrow(dimension, 0, size)
        return tensor


class Tensors:
    """Base of an operator's Inputs and Outputs: a frozen dataclass."""

    if TYPE_CHECKING:

        def __init__(self, *values: Any, **named: Any) -> None: ...

    def __init_subclass__(cls) -> None:
        # A view is no field. What is None at some points is passed by name, so that others may follow it.
        annotations = get_annotations(cls)
        cls._declared = {name: (kind, _special(cls, name)) for name, kind in annotations.items()}
        cls.__annotations__ = {name: kind for name, kind in annotations.items() if _special(cls, name).buffer is None}
        for name, (_, special) in cls._declared.items():
            if special.buffer is not None:
                setattr(cls, name, _View(name, special.buffer))
            elif special is not _PLAIN:
                facts = {"host": special.host, "strided": bool(special.strided)}
                default = {"default": None, "kw_only": True} if special.where is not _PLAIN.where else {}
                setattr(cls, name, dataclasses.field(metadata=MappingProxyType(facts), **default))
        dataclass(frozen=True)(cls)

    @classmethod
    def empty(cls, point: Point) -> Self:
        """Persistent buffers at capacity, with any contents."""
        specs = tensors(cls).values()
        return cls(**{spec.name: spec.empty(point) for spec in specs if spec.special.buffer is None})

    @classmethod
    def nbytes(cls, point: Point) -> int:
        """Of the storage of all tensors."""
        return sum(spec.nbytes(point) for spec in tensors(cls).values())

    def views(self, point: Point) -> dict[str, Tensor]:
        """What consumers read of the buffers: those of which a view is declared only through it."""
        specs = tensors(type(self))
        viewed, seen = {spec.special.buffer for spec in specs.values()}, {}
        for name, spec in specs.items():
            tensor = None if name in viewed else getattr(self, spec.special.buffer or name)
            if tensor is not None and spec.special.read != 0:
                seen[name_of(type(self), name)] = spec.view(tensor, point)
        return seen


def _special(cls: type, name: str) -> Special:
    value = vars(cls).get(name)
    return value if isinstance(value, Special) else _PLAIN


class _View:
    """Stands where a class declares a view."""

    def __init__(self, name: str, buffer: str) -> None:
        self.name, self.buffer = name, buffer

    def __get__(self, made: Any, kind: type) -> Any:
        raise AttributeError(f"{self.name} is a view of {self.buffer}; operator.views(point, out) has it")


@cache
def tensors(kind: type[Tensors]) -> Mapping[str, TensorSpec]:
    """Name -> the tensor, or view, in the order of the declaration; those of a base class first."""
    found = {}
    for cls in reversed(kind.__mro__):
        scope = vars(sys.modules[cls.__module__])
        for name, (annotation, special) in vars(cls).get("_declared", {}).items():
            typed = eval(annotation, scope) if isinstance(annotation, str) else annotation
            if isinstance(typed, Typed):
                found[name] = TensorSpec(name, typed, special)
    return MappingProxyType(found)


def optional(name: str, specs: Mapping[str, TensorSpec]) -> type[Tensors]:
    """A class with these tensors of other classes, each of which may be None."""
    annotations = {key: spec.typed for key, spec in specs.items()}
    special = {key: replace(spec.special, where=lambda point: False) for key, spec in specs.items()}
    return type(name, (Tensors,), {"__annotations__": annotations, "__module__": __name__, **special})


def name_of(kind: type[Tensors], name: str) -> str:
    """A tensor's name to kernels and consumers: of a pair ``name_device`` and ``name_host``, one of which is None, it
    is ``name``.
    """
    base, _, memory = name.rpartition("_")
    return base if memory in _PAIR and all(f"{base}_{one}" in tensors(kind) for one in _PAIR) else name


def wrong_with(made: Tensors, point: Point) -> str | None:
    """The first tensor that is not what its class declares, in one sentence; None where there is none."""
    for name, spec in tensors(type(made)).items():
        tensor = getattr(made, name)
        expected = f"{spec.dtype.name} {list(spec.shape(point))}" if spec.is_at(point) else "None"
        got = "None" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        if got != expected:
            return f"{name} must be {expected}, not {got}"
    return None


def no_dimension(kind: type[Tensors], axes: Sequence[str]) -> str | None:
    """The first dimension that is none, in one sentence; None where all are. Of a class that makes its own buffers,
    they are those of parts.
    """
    for name, spec in tensors(kind).items() if kind.empty.__func__ is Tensors.empty.__func__ else ():
        dimensions = (*spec.typed.dims, *(spec.special.read or ()), spec.special.strided)
        for dimension in (one for one in dimensions if isinstance(one, str)):
            try:
                unknown = [axis for axis in _formula(dimension).co_names if axis not in axes]
            except SyntaxError:
                return f"{kind.__name__}.{name}: {dimension!r} is no sum or product of axes and whole numbers"
            if unknown:
                return f"{kind.__name__}.{name}: {dimension!r} names no axis{did_you_mean(unknown[0], axes)}"
    return None
