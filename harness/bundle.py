"""An operator's inputs or outputs as one argument of a kernel: a NamedTuple in Triton, a struct by value in CUDA C++.

A kernel then reads ``x.idx_mapping`` and ``out.total_len``, as the reference does. Triton makes flat parameters of the
fields; one that is None vanishes, and ``x.output_bin_counts is not None`` is decided when the kernel is compiled.

Kernels take ``(n, x, out)``, the sizes first: all blocks read them before they load, and a cache line of parameters
that is first read amid a chain of loads adds its latency to the launch.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from dataclasses import fields
from typing import Any

import torch


@functools.cache
def bundle_type(record: type) -> type[tuple]:
    """The NamedTuple of a dataclass Inputs or Outputs: its fields without those that stay on the CPU. Of a pair
    ``name_device`` and ``name_host``, one of which is None, it has ``name``. Attributes of the class that are None are
    fields that only a subclass has.
    """
    names = [f.name.removesuffix("_device") for f in fields(record) if not f.metadata.get("host")]
    absent = {name for base in record.__mro__ for name, value in vars(base).items() if value is None and name[0] != "_"}
    return namedtuple(record.__name__, [*names, *sorted(absent - {f.name for f in fields(record)})])


def bundle(record: Any, *names: str) -> tuple:
    """The NamedTuple of a dataclass Inputs or Outputs. Elements of masks are bytes: Triton has no pointers to bits.

    names: the fields that the kernel takes; without any, all. A parameter that a kernel does not read still moves those
    behind it, and each further cache line of parameters that a kernel reads takes time in every launch.
    """
    kind = bundle_type(type(record))
    if names:
        kind = namedtuple(kind.__name__, names)
    return kind(*(_field(record, name) for name in kind._fields))


def _field(record: Any, name: str) -> Any:
    if hasattr(record, f"{name}_device"):
        on_device = getattr(record, f"{name}_device")
        return getattr(record, f"{name}_host") if on_device is None else on_device
    value = getattr(record, name)
    return value.view(torch.uint8) if getattr(value, "dtype", None) == torch.bool else value
