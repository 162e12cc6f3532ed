"""CUDA C++ kernels without nvcc: compiled by NVRTC through cuda-core, launched on torch's current stream."""

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
    """The cubin of one .cu file for one architecture such as ``sm_90``, compiled once per process. Needs no GPU.

    Include paths: the folder of the file, and the one above for ``"other_operator/header.cuh"``. Raises CompileError.
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
    """Path of the source (relative to the repository where it lies in it) -> architecture -> "ok" or NVRTC's error."""
    return {
        str(source.relative_to(ROOT) if source.is_relative_to(ROOT) else source): {
            arch: _result(source, arch) for arch in ARCHITECTURES
        }
        for source in dict.fromkeys(sources)
    }


def _result(source: Path, arch: str) -> str:
    try:
        compile_source(source, arch)
        return "ok"
    except CompileError as error:
        return str(error)


@cache
def _current_arch() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


@cache
def _stream(handle: int) -> Stream:
    return Stream.from_handle(handle)


def _argument(value: Any) -> Any:
    """A tensor becomes its address, a Python int a C ``int``: no kernel of this suite has another integer parameter."""
    if hasattr(value, "data_ptr"):
        return value.data_ptr()
    if isinstance(value, int):
        return ctypes.c_int(value)
    return value


def launcher(source: Path, kernel: str, grid: int | tuple[int, ...], block: int, *arguments: Any) -> Callable[[], None]:
    """A closure that launches ``kernel`` of ``source`` on torch's current stream with fixed arguments.

    arguments: tensors (passed as pointers, kept alive by the closure), Python ints (passed as C ``int``) or ctypes
               values.

    Raises OverflowError for an int beyond 32 bits, and CompileError.
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
