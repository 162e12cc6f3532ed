"""Launches whose arguments are fixed at set-up: packed once, so that no argument costs host time at a launch.

``packed`` is one call of the driver on torch's current stream; harness/cuda.py uses it for CUDA C++ and
``fixed_launch`` for Triton. ``replayed`` launches a captured graph instead. docs/methodology.md says what of this an
engine can use.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from cuda.bindings import driver

from spec_decode_bench.harness.cuda_graph import checked, no_garbage_collection

#: Types of Triton's kernel signatures. Pointers begin with a star; no kernel of this suite has a float parameter.
_TRITON_TYPES = {
    "i1": ctypes.c_int8,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u1": ctypes.c_uint8,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
}
#: Pointers to scratch memory that Triton adds behind a kernel's own parameters, null where it needs none.
_MOST_SCRATCH_POINTERS = 2


@functools.cache
def _library() -> ctypes.CDLL:
    """The driver itself: a call through ctypes with prepared arguments takes half the time of one by cuda.bindings."""
    library = ctypes.CDLL("libcuda.so.1")
    library.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4
    library.cuGraphLaunch.argtypes = [ctypes.c_void_p] * 2
    return library


class _Configurations(dict):
    """Handle of a stream -> address of the launch configuration there."""

    def __init__(self, grid: Sequence[int], block: int, shared: int) -> None:
        self._grid, self._block, self._shared = (*grid, 1, 1)[:3], block, shared
        self._kept: list[driver.CUlaunchConfig] = []

    def __missing__(self, stream: int) -> ctypes.c_void_p:
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self._grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self._block, 1, 1
        config.sharedMemBytes, config.hStream = self._shared, driver.CUstream(stream)
        self._kept.append(config)
        self[stream] = address = ctypes.c_void_p(int(config.getPtr()))
        return address


def parameter_sizes(function: driver.CUfunction) -> list[int]:
    """Bytes of each parameter of a kernel, as the driver knows them from its cubin."""
    sizes: list[int] = []
    while True:
        error, _, size = driver.cuFuncGetParamInfo(function, len(sizes))
        if error != driver.CUresult.CUDA_SUCCESS:
            return sizes
        sizes.append(size)


def packed(
    function: driver.CUfunction,
    grid: Sequence[int],
    block: int,
    values: Sequence[Any],
    keep_alive: Any,
    shared: int = 0,
) -> Callable[[], None]:
    """A closure that launches ``function`` on the device that is current now, on torch's current stream there.

    block: threads. values: ctypes values, one for each parameter. keep_alive: what their addresses lie in. shared:
    bytes of dynamic shared memory. Raises TypeError where the values are not what the kernel takes.
    """
    given, needed = [ctypes.sizeof(value) for value in values], parameter_sizes(function)
    if given != needed:
        raise TypeError(f"the kernel has parameters of {needed} bytes, its launch gives {given}")
    addresses = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
    handle, parameters = ctypes.c_void_p(int(function)), ctypes.c_void_p(ctypes.addressof(addresses))
    configurations, launch_kernel = _Configurations(grid, block, shared), _library().cuLaunchKernelEx
    device = torch.cuda.current_device()
    current_device, current_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream

    def run(_keep_alive: tuple = (keep_alive, tuple(values), addresses)) -> None:
        if current_device() != device:
            with torch.cuda.device(device):
                return run()
        if error := launch_kernel(configurations[current_stream(device)], handle, parameters, None):
            checked((driver.CUresult(error),))

    return run


def replayed(launch: Callable[[], Any]) -> Callable[[], None]:
    """A closure that replays ``launch`` as a graph, captured now, on torch's current stream.

    Where that stream is being captured it calls ``launch``: an executable graph cannot become part of another.
    launch: allocates nothing and waits for nothing.
    """
    stream, device = torch.cuda.Stream(), torch.cuda.current_device()
    with torch.cuda.stream(stream), no_garbage_collection():
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(driver.cuStreamBeginCapture(stream.cuda_stream, mode))
        try:
            launch()
        finally:
            captured = driver.cuStreamEndCapture(stream.cuda_stream)
    graph = checked(captured)[1]
    executable = checked(driver.cuGraphInstantiate(graph, 0))[1]
    checked(driver.cuGraphDestroy(graph))
    handle, launch_graph = ctypes.c_void_p(int(executable)), _library().cuGraphLaunch
    capturing = torch.cuda.is_current_stream_capturing
    current_device, current_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream

    def run() -> None:
        if current_device() != device:
            with torch.cuda.device(device):
                return run()
        if capturing():
            launch()
        elif error := launch_graph(handle, current_stream(device)):
            checked((driver.CUresult(error),))

    weakref.finalize(run, driver.cuGraphExecDestroy, executable).atexit = False
    return run


def _parameters(kinds: Iterable[Any], arguments: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """(type, value) of a kernel's parameters, with the fields of bundles in place of the bundles."""
    for kind, argument in zip(kinds, arguments, strict=True):
        if isinstance(kind, tuple):
            yield from _parameters(kind, argument)
        elif kind != "constexpr":
            yield kind, argument


def _is_on_gpu(argument: Any) -> bool:
    if isinstance(argument, tuple):
        return any(map(_is_on_gpu, argument))
    return getattr(argument, "is_cuda", False)


def for_any_size(argument: Any, in_bundle: bool = False) -> Any:
    """What to compile for. Triton specialises on integers of 1 in a tuple even under do_not_specialize."""
    if isinstance(argument, tuple):
        return type(argument)._make(for_any_size(field, in_bundle=True) for field in argument)
    if in_bundle and isinstance(argument, int):
        return 3 if -(2**31) <= argument < 2**31 else 2**31 + 3
    return argument


def fixed_launch(kernel: Any, grid: Sequence[int], *arguments: Any, **options: Any) -> Callable[[], None]:
    """``kernel[grid](*arguments, **options)`` of a Triton kernel as a closure that is compiled now.

    An argument may be a bundle (harness/bundle.py). The kernel is not specialised on its integers: it is compiled once
    for all sizes.

    It launches the compiled kernel without Triton's launcher, which looks at every argument again each time. The
    ordinary launch remains where Triton interprets, where no argument is on a GPU, for an empty grid, and where the
    compiled kernel is not as expected: one that needs scratch memory, a cluster or a launch attribute, or has a
    parameter of another size. Triton's launch hooks do not hear of these launches.
    """
    from triton.runtime.jit import JITFunction

    ordinary = functools.partial(kernel[grid], *arguments, **options)
    if 0 in grid or not isinstance(kernel, JITFunction) or not _is_on_gpu(arguments):
        return ordinary
    compiled = kernel.warmup(*map(for_any_size, arguments), grid=grid, **options)
    try:
        compiled.run  # noqa: B018  loads the cubin; compiled.function is None before
        about, function = compiled.metadata, driver.CUfunction(compiled.function)
        bound = dict(zip(kernel.arg_names, arguments, strict=False)) | options
        kinds = compiled.src.signature
        values = [
            ctypes.c_void_p(value.data_ptr()) if kind.startswith("*") else _TRITON_TYPES[kind](value)
            for kind, value in _parameters(kinds.values(), [bound[name] for name in kinds])
        ]
        plain = not (about.global_scratch_size or about.profile_scratch_size or about.launch_cooperative_grid)
        plain = plain and not about.launch_pdl and about.num_ctas == 1
        block, shared = 32 * about.num_warps, about.shared
    except (AttributeError, KeyError, TypeError):  # another version of Triton
        return ordinary
    needed, sizes = parameter_sizes(function), [ctypes.sizeof(value) for value in values]
    scratch = needed[len(sizes) :]
    if not plain or needed[: len(sizes)] != sizes or scratch != [8] * len(scratch[:_MOST_SCRATCH_POINTERS]):
        return ordinary
    values += [ctypes.c_void_p()] * len(scratch)
    return packed(function, grid, block, values, (compiled, arguments, options), shared)
