"""Every CUDA kernel is launched by some edge case, as compute-sanitizer sees edge cases only, no sequences or sweeps;
and with arguments of the sizes that it takes, which else only a GPU shows.
"""

import ctypes
import struct
import sys
from functools import cache
from itertools import product
from pathlib import Path

from spec_decode_bench.harness import cuda
from spec_decode_bench.harness.discover import discover
from tests.tier import full
from tools.sanitizer_run import run_point

CATALOG = discover()
#: Of a section .nv.info: one attribute for each parameter, and the format of attributes that give their own size.
PARAMETER, SIZED = 0x17, 0x04


@cache
def entry_points(source: Path) -> dict[str, list[int]]:
    """The kernels of a source, so that those made by macros count, and the bytes of each parameter: what
    cuFuncGetParamInfo gives where there is a GPU, from the cubin (64-bit ELF)."""
    cubin = bytes(cuda.compile_source(source, cuda.ARCHITECTURES[0]).code)
    (start,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<3H", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, start + number * size) for number in range(count)]
    kernels = {}
    for name, _, _, _, offset, length in sections:
        where = sections[names][4] + name
        section = cubin[where : cubin.index(b"\0", where)].decode()
        if section.startswith(".nv.info."):
            kernels[section.removeprefix(".nv.info.")] = parameters(cubin[offset : offset + length])
    return kernels


def parameters(info: bytes) -> list[int]:
    """Bytes of each parameter, in order, from the attributes of a kernel."""
    sizes, at = {}, 0
    while at < len(info):
        kind, attribute, length = struct.unpack_from("<BBH", info, at)
        if (kind, attribute) == (SIZED, PARAMETER):
            _, ordinal, _, rest = struct.unpack_from("<IHHI", info, at + 4)
            sizes[ordinal] = rest >> 18
        at += 4 + (length if kind == SIZED else 0)
    return [sizes[ordinal] for ordinal in sorted(sizes)]


def launched(monkeypatch, variants):
    """(source, kernel) -> the sizes of all arguments given to it, for the launches that tools/sanitizer_run.py would
    make of these variants, with CPU tensors.
    """
    launches, original = {}, cuda.launcher

    def record(source, kernel, grid, block, *arguments):
        sizes = tuple(ctypes.sizeof(cuda._value(argument)) for argument in arguments)
        launches.setdefault((source, kernel), set()).add(sizes)
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
def test_every_cuda_kernel_is_launched_at_an_edge_case_with_arguments_of_its_sizes(monkeypatch):
    # cuda_replayed captures a graph, which needs a GPU; its kernel is that of cuda_fused.
    variants = [v for v in CATALOG.variants if v.sources and v.defect is None and v.name != "cuda_replayed"]
    sources = set((cuda.ROOT / "kernels").glob("*/*.cu"))
    kernels = {(source, name): sizes for source in sources for name, sizes in entry_points(source).items()}
    assert {source for source, _ in kernels} == sources != set()
    launches = launched(monkeypatch, variants)
    assert kernels.keys() - launches.keys() == set()
    assert {launch: sizes for launch, sizes in launches.items() if sizes != {tuple(kernels[launch])}} == {}
