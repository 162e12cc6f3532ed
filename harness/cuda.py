"""CUDA C++ sources without nvcc: NVRTC through cuda-core, compiled once per process, launched on torch's stream."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from cuda.core import LaunchConfig, ObjectCode, Program, ProgramOptions, Stream, launch

ROOT = Path(__file__).parent.parent
#: Ampere, Hopper, datacentre Blackwell, workstation Blackwell.
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")


class CompileError(RuntimeError):
    """NVRTC refused a source; the message is its log."""


@cache
def compile_source(path: Path, arch: str) -> ObjectCode:
    """The cubin of one .cu file for one architecture such as ``sm_90``. Needs no GPU.

    It may include headers beside it, and those of another operator as ``"other_operator/header.cuh"``. Raises
    CompileError.
    """
    options = ProgramOptions(
        arch=arch, name=path.name, std="c++17", lineinfo=True, include_path=[str(path.parent), str(path.parent.parent)]
    )
    try:
        return Program(path.read_text(encoding="utf-8"), "c++", options).compile("cubin")
    except OSError as error:
        raise CompileError(f"{path}: {error.strerror}") from None
    except Exception as error:  # cuda-core raises a private class; its text holds NVRTC's log
        raise CompileError(str(error).strip()) from error


def compile_all(sources: Iterable[Path]) -> dict[str, dict[str, str]]:
    """Every source for every supported architecture: its path, from the root of this suite if it lies there ->
    architecture -> "ok" or NVRTC's error.
    """
    results: dict[str, dict[str, str]] = {}
    for source in dict.fromkeys(sources):
        of_source = results[str(source.relative_to(ROOT) if source.is_relative_to(ROOT) else source)] = {}
        for arch in ARCHITECTURES:
            try:
                compile_source(source, arch)
                of_source[arch] = "ok"
            except CompileError as error:
                of_source[arch] = str(error)
    return results


@cache
def _current_arch() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


@cache
def _stream(handle: int) -> Stream:
    return Stream.from_handle(handle)


def _argument(value: Any) -> Any:
    """Tensors become addresses; Python integers become 32-bit ones, as every integer parameter here is an ``int``."""
    if hasattr(value, "data_ptr"):
        return value.data_ptr()
    if isinstance(value, int):
        return ctypes.c_int(value)
    return value


def launcher(source: Path, kernel: str, grid: int | tuple[int, ...], block: int, *arguments: Any) -> Callable[[], None]:
    """A closure that launches ``kernel`` of ``source`` on torch's current stream with fixed arguments.

    arguments: tensors (passed as pointers, kept alive by the closure), Python ints (passed as C ``int``; raises
    OverflowError beyond 32 bits) or ctypes values. Raises CompileError.
    """
    import torch

    for value in arguments:
        if isinstance(value, int) and not -(2**31) <= value < 2**31:
            raise OverflowError(f"{value} does not fit the C int parameters of {kernel}")
    code = compile_source(source, _current_arch()).get_kernel(kernel)
    config = LaunchConfig(grid=grid, block=block)
    values = tuple(_argument(value) for value in arguments)
    current_stream, device = torch._C._cuda_getCurrentRawStream, torch.cuda.current_device()

    def run(keep_alive: tuple = arguments) -> None:
        launch(_stream(current_stream(device)), config, code, *values)

    return run
