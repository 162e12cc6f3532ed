"""CUDA sources and their launches agree: on order, offset and type of every field of a struct, and on constants."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.cuda import compile_source
from spec_decode_bench.harness.discover import discover

KERNELS = Path(__file__).parents[2] / "kernels"
TYPES = {
    torch.uint8: "unsigned char",
    torch.bool: "bool",
    torch.int16: "short",
    torch.int32: "int",
    torch.int64: "long long",
    torch.float32: "float",
}
PRELUDE = """
template <class T> struct plain { using type = T; };
template <class T> struct plain<T*> { using type = T*; };
template <class T> struct plain<const T*> { using type = T*; };
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
"""


def sources() -> dict[str, Path]:
    """Operator -> the source with its structs."""
    files = [path for path in sorted(KERNELS.glob("*/*.cu*")) if re.search(r"struct Sizes \{", path.read_text())]
    return {path.parent.name: path for path in files}


SOURCES = sources()


def sizes_of(operator: str) -> type[tuple]:
    """The NamedTuple of an operator's CUDA struct Sizes."""
    triton, cuda = (
        importlib.import_module(f"spec_decode_bench.kernels.{operator}.{name}") for name in ("triton", "cuda")
    )
    return getattr(cuda, "CudaSizes", None) or triton.Sizes


def taken(operator: str, fields: str) -> tuple[str, ...]:
    """The fields of an operator's CUDA struct, by the constant that names them (INPUTS, OUTPUTS); none: all."""
    triton, cuda = (
        importlib.import_module(f"spec_decode_bench.kernels.{operator}.{name}") for name in ("triton", "cuda")
    )
    return getattr(cuda, fields, getattr(triton, fields, ()))


def filled(sizes: type[tuple]) -> tuple:
    """A NamedTuple of this type with any integers in it, and so those that are its fields."""
    kinds = {name: kind for name, kind in get_type_hints(sizes).items() if name in sizes._fields}
    nested = {name: filled(sizes_of(kind.__module__.split(".")[-2])) for name, kind in kinds.items() if kind is not int}
    return sizes(**{name: nested.get(name, 1) for name in kinds})


def layout(value: object) -> tuple[int, int]:
    """(size, alignment) of a field or struct: pointers for tensors and None."""
    if isinstance(value, int):
        return 4, 4
    if not isinstance(value, tuple):
        return 8, 8
    end, alignment = 0, 1
    for size, aligned in map(layout, value):
        end, alignment = -(-end // aligned) * aligned + size, max(alignment, aligned)
    return -(-end // alignment) * alignment, alignment


def assertions(struct: str, made: tuple, dtypes: dict[str, torch.dtype]) -> list[str]:
    """That the struct has the fields of a bundle and nothing behind them. dtypes: of its tensors."""
    lines, offset = [], 0
    # __INTADDR__: NVRTC 13.0, which torch brings along, has no __builtin_offsetof.
    for name, value in zip(made._fields, made, strict=True):
        size, aligned = layout(value)
        offset = -(-offset // aligned) * aligned
        lines.append(f'static_assert(__INTADDR__(&(({struct}*)0)->{name}) == {offset}, "offset of {name}");')
        if isinstance(value, int):
            lines.append(f'static_assert(same<decltype({struct}::{name}), int>, "{name} is an int");')
        elif name in dtypes:
            kind = f"plain<decltype({struct}::{name})>::type"
            lines.append(f'static_assert(same<{kind}, {TYPES[dtypes[name]]}*>, "type of {name}");')
        offset += size
    return [*lines, f'static_assert(sizeof({struct}) == {layout(made)[0]}, "size of {struct}");']


@pytest.mark.parametrize("name", SOURCES)
def test_structs_are_the_bundles_of_the_operator(name, tmp_path):
    operator, text = discover().operators[name], SOURCES[name].read_text()
    lines = assertions(f"{name}::Sizes", filled(sizes_of(name)), {})
    for case in operator.edge_cases:  # all, as each has some of the fields only
        point = operator.complete(case.point)
        x, out = operator.make_inputs(point, 0), operator.make_outputs(point)
        for struct, record, names in (("Inputs", x, taken(name, "INPUTS")), ("Outputs", out, taken(name, "OUTPUTS"))):
            tensors = {key.removesuffix("_device"): value for key, value in vars(record).items()}
            dtypes = {key: value.dtype for key, value in tensors.items() if isinstance(value, torch.Tensor)}
            if f"struct {struct} {{" in text:
                lines += assertions(f"{name}::{struct}", bundle(record, *names), dtypes)
    for entry in KERNELS.iterdir():  # headers are found in the folder above the source
        (tmp_path / entry.name).symlink_to(entry)
    source = tmp_path / "structs" / "structs.cu"
    source.parent.mkdir()
    source.write_text(f'#include "{name}/{SOURCES[name].name}"\n{PRELUDE}\n' + "\n".join(dict.fromkeys(lines)))
    compile_source(source, "sm_90")


@pytest.mark.parametrize("launches", sorted(KERNELS.glob("*/cuda.py")), ids=lambda path: path.parent.name)
def test_constants_of_a_launch_are_those_of_its_source(launches):
    """THREADS and the like stand in Python, for the grid, and in CUDA C++, for the compiler."""
    text = "".join(path.read_text() for path in launches.parent.glob("*.cu*"))
    own = vars(importlib.import_module(f"spec_decode_bench.kernels.{launches.parent.name}.cuda"))
    declared = dict(
        re.findall(r"\b([A-Z_]+) = (\d+)[,;]", "\n".join(re.findall(r"^constexpr int .*", text, re.MULTILINE)))
    )
    shared = {name: int(value) for name, value in declared.items() if name in own}
    assert {name: own[name] for name in shared} == shared
