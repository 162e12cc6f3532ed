"""Compiles every Triton kernel for some architectures, without a GPU.

    python -m tools.compile_triton 90                  # sm_90, all edge cases
    python -m tools.compile_triton 90 80 120 --most 3  # only the first three edge cases of each variant for the others

Triton's interpreter accepts code that its compiler rejects, such as one name for tiles of two shapes in the branches of
an ``if``. Here the launches of every variant's edge cases, and some with rows beyond 2^31, are compiled to a cubin and
not run. Prints the number of launches of each variant and architecture, or the compiler's error; exit code 1 where
there is one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from spec_decode_bench.harness.contract import EdgeCase, Operator, Point
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.launch import for_any_size
from spec_decode_bench.harness.verify.edge_cases import far_strides


class AbsentGpu:
    """The part of Triton's driver that its compiler needs."""

    def __init__(self, arch: int) -> None:
        self._target = GPUTarget("cuda", arch, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        """Triton keeps what it compiled by device."""
        return self._target.arch

    def get_current_stream(self, device: int) -> int:
        return 0


def main(architectures: Sequence[int], most: int | None) -> int:
    """most: edge cases for architectures other than the first."""
    run, launches, refused = JITFunction.run, 0, False

    def compiled(self, *arguments, grid, warmup, **keywords):
        nonlocal launches
        launches += 1
        # As fixed_launch compiles them, which does so only for a GPU.
        arguments = [for_any_size(a) if isinstance(a, tuple) else a for a in arguments]
        return run(self, *arguments, grid=grid, warmup=True, **keywords)

    JITFunction.run = compiled
    catalog = discover()
    for variant in catalog.variants:
        if variant.folder != "kernels" or variant.requires:
            continue
        operator = catalog.operators[variant.operator]
        taken = [h for h in operator.edge_cases if not variant.skip(operator.complete(h.point))]
        for arch in architectures:
            driver.set_active(AbsentGpu(arch))
            launches = 0
            batches = map(partial(batch, operator), taken if arch == architectures[0] else taken[:most])
            far = far_batches(operator, taken) if arch == architectures[0] else ()
            for name, point, x, out in chain(batches, far):
                try:
                    variant.setup(point, x, out)()
                except Exception as error:  # the compiler raises many types
                    refused = True
                    print(f"{variant.id} at {name!r} for sm_{arch}: {type(error).__name__}: {error}")
                    break
            print(f"{variant.id}: {launches} launches for sm_{arch}")
    return int(refused)


def batch(operator: Operator, case: EdgeCase) -> tuple[str, Point, Any, Any]:
    point = operator.complete(case.point)
    x, out = operator.make_inputs(point, 0), operator.outputs.empty(point)
    if case.edit is not None:
        case.edit(x)
    return case.name, point, x, out


def far_batches(operator: Operator, cases: Sequence[EdgeCase]) -> Iterator[tuple[str, Point, Any, Any]]:
    """One with each input and output whose rows may lie so far apart that offsets exceed 2^31. It has no memory."""
    made = set()
    for case in cases:
        for (argument, field), stride in far_strides(operator, case, 0).items():
            if (argument, field) not in made:
                made.add((argument, field))
                name, point, *sides = batch(operator, case)
                side = ("row_strides", "output_strides").index(argument)
                tensor = getattr(sides[side], field)
                strides = (stride, *tensor.stride()[1:])
                rows = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="meta")
                sides[side] = replace(sides[side], **{field: rows})
                yield f"{name}, rows of {field} beyond 2^31", point, *sides


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("architectures", nargs="+", type=int)
    parser.add_argument("--most", type=int)
    given = parser.parse_args()
    sys.exit(main(given.architectures, given.most))
