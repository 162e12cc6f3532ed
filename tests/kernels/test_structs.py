"""The structs of CUDA sources have the fields that a launch gives them: order, offset and type of each."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from harness.bundle import bundle
from harness.cuda import compile_source
from harness.discover import discover

KERNELS = Path(__file__).parents[2] / "kernels"
TYPES = {torch.int16: "short", torch.int32: "int", torch.int64: "long long", torch.float32: "float"}
PRELUDE = """
template <class T> struct plain { using type = T; };
template <class T> struct plain<T*> { using type = T*; };
template <class T> struct plain<const T*> { using type = T*; };
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
"""


def operators_with_structs() -> list[str]:
    return sorted(p.parent.name for p in KERNELS.glob("*/*.cuh") if "struct Inputs {" in p.read_text())


def assertions(struct: str, made: tuple) -> list[str]:
    """That the struct has the fields of a bundle, pointers for tensors and None, and nothing behind them."""
    lines, offset = [], 0
    for name, value in zip(made._fields, made, strict=True):
        size = 4 if isinstance(value, int) else 8
        offset = -(-offset // size) * size
        lines.append(f'static_assert(__builtin_offsetof({struct}, {name}) == {offset}, "offset of {name}");')
        if isinstance(value, int):
            lines.append(f'static_assert(same<decltype({struct}::{name}), int>, "{name} is an int");')
        elif value is not None and value.dtype in TYPES:
            kind = f"plain<decltype({struct}::{name})>::type"
            lines.append(f'static_assert(same<{kind}, {TYPES[value.dtype]}*>, "type of {name}");')
        offset += size
    end = -(-offset // 8) * 8 if any(not isinstance(value, int) for value in made) else offset
    return [*lines, f'static_assert(sizeof({struct}) == {end}, "size of {struct}");']


@pytest.mark.parametrize("name", operators_with_structs())
def test_structs_are_the_bundles_of_the_operator(name, tmp_path):
    operator, module = discover().operators[name], importlib.import_module(f"kernels.{name}.triton")
    point = operator.complete(operator.edge_cases[0].point)
    x = operator.make_inputs(point, 0)
    made = {"Inputs": bundle(x), "Outputs": bundle(operator.make_outputs(point)), "Sizes": module.sizes(point, x)}
    lines = [line for struct, value in made.items() for line in assertions(f"{name}::{struct}", value)]
    for entry in KERNELS.iterdir():  # headers are found in the folder above the source
        (tmp_path / entry.name).symlink_to(entry)
    source = tmp_path / "structs" / "structs.cu"
    source.parent.mkdir()
    source.write_text(f'#include "{name}/{name}.cuh"\n{PRELUDE}\n' + "\n".join(lines))
    compile_source(source, "sm_90")


def test_there_are_structs():
    assert "post_update" in operators_with_structs()
