"""An operator's inputs or outputs as one argument of a kernel: a NamedTuple in Triton, a struct by value in CUDA C++.

A kernel then reads ``x.idx_mapping`` and ``out.total_len``, as the reference does. Triton makes flat parameters of the
fields; one that is None vanishes, and ``x.output_bin_counts is not None`` is decided when the kernel is compiled. The
structs of CUDA C++ are made of the same types (harness/cuda.py).

Kernels take ``(n, x, out)``, the sizes first: all blocks read them before they load, and a cache line of parameters
that is first read amid a chain of loads adds its latency to the launch.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

import torch

from spec_decode_bench.harness.errors import did_you_mean
from spec_decode_bench.harness.tensors import DType, Tensors, name_of, tensors


@functools.cache
def bundle_type(kind: type[Tensors], *names: str) -> type[tuple]:
    """The NamedTuple of a class Inputs or Outputs with these fields. Without names, it has all but those that stay on
    the CPU; of a pair ``name_device`` and ``name_host``, one of which is None, it has ``name``.

    Raises AttributeError for a name that is no field.
    """
    own = [name_of(kind, field.name) for field in fields(kind)]
    if unknown := next((name for name in names if name not in own), None):
        raise AttributeError(f"{kind.__name__} has no field {unknown!r}{did_you_mean(unknown, own)}")
    on_device = [name_of(kind, field.name) for field in fields(kind) if not field.metadata.get("host")]
    made = namedtuple(kind.__name__, names or on_device)
    made.record = kind
    return made


def cuda_struct(kind: type[tuple], names: Mapping[type, str]) -> str:
    """The struct of CUDA C++ with the fields of a bundle, or of a NamedTuple of ints, bundles, NamedTuples and
    ``Annotated[Tensor, I32]``; ints that are attributes of the class are constants of the struct. Kernels write through
    the pointers of Outputs alone.

    names: of the structs that are fields.
    """
    record = getattr(kind, "record", None)
    if record is None:
        hints = get_type_hints(kind, include_extras=True)
        types = {name: _field_type(hints[name], names) for name in kind._fields}
    else:
        const = "" if record.__name__ == "Outputs" else "const "
        dtypes = {name_of(record, name): spec.dtype.cuda for name, spec in tensors(record).items()}
        types = {name: f"{const}{dtypes[name]}*" if name in dtypes else "int" for name in kind._fields}
    constants = {name: value for name, value in vars(kind).items() if type(value) is int}
    lines = [f"static constexpr int {name} = {value};" for name, value in constants.items()]
    lines += [f"{type_} {name};" for name, type_ in types.items()]
    return f"struct {struct_name(kind)} {{ {' '.join(lines)} }};"


def struct_name(kind: type[tuple]) -> str:
    """CudaSizes, beside the Sizes of Triton, is Sizes there."""
    return kind.__name__.removeprefix("Cuda")


def _field_type(hint: Any, names: Mapping[type, str]) -> str:
    if dtypes := [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, DType)]:
        return f"{dtypes[0].cuda}*"
    return "int" if hint is int else names[hint]


def bundle(record: Tensors, *names: str) -> tuple:
    """The NamedTuple of inputs or outputs. Elements of masks are bytes: Triton has no pointers to bits.

    names: the fields that the kernel takes; without any, all. A parameter that a kernel does not read still moves those
    behind it, and each further cache line of parameters that a kernel reads takes time in every launch.
    """
    kind = bundle_type(type(record), *names)
    return kind(*(_field(record, name) for name in kind._fields))


def _field(record: Any, name: str) -> Any:
    if hasattr(record, f"{name}_device"):
        on_device = getattr(record, f"{name}_device")
        return getattr(record, f"{name}_host") if on_device is None else on_device
    value = getattr(record, name)
    return value.view(torch.uint8) if getattr(value, "dtype", None) == torch.bool else value
