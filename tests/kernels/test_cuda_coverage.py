"""Every CUDA kernel is launched by some edge case: compute-sanitizer sees edge cases only, no sequences or sweeps."""

import re
import sys
from itertools import product

from harness import cuda
from harness.discover import discover
from tests.tier import full
from tools.sanitizer_run import run_point

CATALOG = discover()


def entry_points(source):
    """The kernels of a source, from the sections of its cubin, so that kernels made by macros count."""
    return {
        name.decode()
        for name in re.findall(rb"\.text\.(\w+)\x00", bytes(cuda.compile_source(source, cuda.ARCHITECTURES[0]).code))
    }


def launched(monkeypatch, variants):
    """(source, kernel) of all launches that tools/sanitizer_run.py would make of these variants, with CPU tensors."""
    launches, original = set(), cuda.launcher

    def record(source, kernel, grid, block, *arguments):
        launches.add((source, kernel))
        return lambda: None

    for module in list(sys.modules.values()):
        if getattr(module, "launcher", None) is original:
            monkeypatch.setattr(module, "launcher", record)
    for operator in CATALOG.operators.values():
        own = [variant for variant in variants if variant.operator == operator.name]
        for case, shift in product(operator.edge_cases, (0, 1)):
            list(run_point(operator, own, case, "cpu", shift))
    return launches


@full
def test_every_cuda_kernel_is_launched_at_a_edge_case(monkeypatch):
    # cuda_replayed captures a graph, which needs a GPU; its kernel is that of cuda_fused.
    variants = [v for v in CATALOG.variants if v.sources and v.defect is None and v.name != "cuda_replayed"]
    sources = set((cuda.ROOT / "kernels").glob("*/*.cu"))
    kernels = {(source, name) for source in sources for name in entry_points(source)}
    assert {source for source, _ in kernels} == sources != set()
    assert kernels - launched(monkeypatch, variants) == set()
