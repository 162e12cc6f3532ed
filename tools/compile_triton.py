"""Compiles every Triton kernel for one architecture, without a GPU.

    python -m tools.compile_triton 90      # sm_90, all hard points
    python -m tools.compile_triton 90 3    # the first three hard points of each variant

Triton's interpreter accepts code that its compiler rejects, such as one name for tiles of two shapes in the branches of
an ``if``. Here the launches of every variant's hard points are compiled to a cubin and not run. Prints the number of
launches of each variant, or the compiler's error; exit code 1 where there is one.
"""

from __future__ import annotations

import os
import sys

os.environ.pop("TRITON_INTERPRET", None)

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from harness.discover import discover
from harness.verify.fixture import Fixture


class AbsentGpu:
    """The part of Triton's driver that its compiler needs."""

    def __init__(self, arch: int) -> None:
        self._target = GPUTarget("cuda", arch, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main(arch: int, most: int | None) -> int:
    driver.set_active(AbsentGpu(arch))
    run, launches, refused = JITFunction.run, 0, False

    def compiled(self, *arguments, grid, warmup, **keywords):
        nonlocal launches
        launches += 1
        return run(self, *arguments, grid=grid, warmup=True, **keywords)

    JITFunction.run = compiled
    catalog = discover()
    for variant in catalog.variants:
        if not variant.origin.startswith("kernels.") or variant.requires:
            continue
        operator, launches = catalog.operators[variant.operator], 0
        taken = [h for h in operator.hard_points if not variant.skip(operator.complete(h.point))][:most]
        for hard in taken:
            try:
                Fixture(operator, operator.complete(hard.point), "cpu", 0, hard.edit, batches=1).setup(variant)()
            except Exception as error:  # the compiler raises many types
                refused = True
                print(f"{variant.id} at {hard.name!r}: {type(error).__name__}: {error}")
                break
        print(f"{variant.id}: {launches} launches for sm_{arch}")
    return int(refused)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None))
