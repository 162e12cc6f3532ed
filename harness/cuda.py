"""CUDA C++ kernels without nvcc: compiled by NVRTC through cuda-core, launched on torch's current stream.

Cubins are kept in ``$XDG_CACHE_HOME/spec-decode-bench`` (default ``~/.cache/spec-decode-bench``), under a key of
everything that goes into them. ``BENCH_CUBIN_CACHE=off`` switches that off.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cuda.bindings import driver
from cuda.core import Kernel, ObjectCode, Program, ProgramOptions
from cuda.core.utils import FileStreamProgramCache, make_program_cache_key

from spec_decode_bench.harness.bundle import bundle_type, cuda_struct, struct_name
from spec_decode_bench.harness.compile_time import compile_time
from spec_decode_bench.harness.cuda_graph import checked
from spec_decode_bench.harness.dependencies import headers, include_path
from spec_decode_bench.harness.import_by_content import ROOT
from spec_decode_bench.harness.launch import packed
from spec_decode_bench.harness.tensors import Tensors

#: Ampere, Ada, Hopper, datacentre Blackwell (B200, B300), workstation Blackwell.
ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
#: Environment variable that switches the cache on disk off.
CACHE_SWITCH = "BENCH_CUBIN_CACHE"
#: Bytes of all cubins on disk; those not read for longest go first.
MAX_CACHE_BYTES = 256 * 2**20


class CompileError(RuntimeError):
    """NVRTC refused a source; the message is its log."""


@dataclass(frozen=True)
class _Declared:
    """What a source declares besides its text."""

    structs: tuple[type[tuple], ...]
    constants: Mapping[str, int]
    uses: tuple[Path, ...]


_DECLARED: dict[Path, _Declared] = {}
#: Struct -> its qualified name.
_STRUCTS: dict[type, str] = {}


def cuda_source(
    path: Path,
    *structs: type[tuple] | type[Tensors],
    constants: Mapping[str, int] = MappingProxyType({}),
    uses: Sequence[Path] = (),
) -> Path:
    """A .cu file in which these structs and constants are declared already, in a namespace with the name of the file;
    ``source_text`` shows them. A CUDA C++ kernel then says neither types nor order of what its launch passes again.

    structs: types of bundles (harness/bundle.py), in an order in which each knows its fields; Inputs for the bundle of
             all its fields.
    uses: the sources whose structs and constants this one, or a header that it includes, needs as well.
    """
    bundles = tuple(bundle_type(kind) if issubclass(kind, Tensors) else kind for kind in structs)
    _DECLARED[path] = _Declared(bundles, constants, tuple(uses))
    _STRUCTS.update({kind: f"{path.stem}::{struct_name(kind)}" for kind in bundles})
    return path


def source_text(path: Path) -> str:
    """What NVRTC compiles: what is declared of the source, then its text. Raises OSError."""
    text, declarations = path.read_text(encoding="utf-8"), [_declarations(one) for one in _used(path)]
    return "".join([*declarations, f'#line 1 "{path.name}"\n', text]) if declarations else text


def _used(path: Path) -> list[Path]:
    """The sources whose declarations a source needs, in their order; its own are the last."""
    declared = _DECLARED.get(path)
    return list(dict.fromkeys([*(file for one in declared.uses for file in _used(one)), path])) if declared else []


def _declarations(path: Path) -> str:
    declared = _DECLARED[path]
    constants = [f"constexpr int {name} = {value};" for name, value in declared.constants.items()]
    structs = [cuda_struct(kind, _STRUCTS) for kind in declared.structs]
    return "\n".join([f"namespace {path.stem} {{", *constants, *structs, "}", ""])


@cache
def compile_source(path: Path, arch: str) -> ObjectCode:
    """The cubin of one .cu file for one architecture such as ``sm_90``, compiled once per process, and on this machine
    only where it is not in the cache on disk. Needs no GPU.

    Raises CompileError.
    """
    lineinfo = '"' not in str(path)  # NVRTC writes the paths of headers into it, and ptxas stumbles over a quote
    folders = [str(folder) for folder in include_path(path)]
    options = ProgramOptions(arch=arch, name=path.name, std="c++17", lineinfo=lineinfo, include_path=folders)
    try:
        text = source_text(path)
        key = _cache_key(path, text, options)
        if (cubin := _cached(key)) is not None:
            return ObjectCode.from_cubin(cubin, name=path.name)
        with compile_time().counted():
            code = Program(text, "c++", options).compile("cubin")
    except OSError as error:
        raise CompileError(f"{path}: {error.strerror}") from None
    except Exception as error:  # cuda-core raises a private class; its text holds NVRTC's log
        raise CompileError(str(error).replace("\0", "").strip()) from error
    _store(key, bytes(code.code))
    return code


def compile_all(sources: Iterable[Path]) -> dict[str, dict[str, str]]:
    """Path of the source (relative to the repository where it lies in it) -> architecture -> "ok" or NVRTC's error.

    NVRTC compiles without Python's lock, so several threads use several cores.
    """
    jobs = [(source, arch) for source in dict.fromkeys(sources) for arch in ARCHITECTURES]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        results = list(threads.map(lambda job: _result(source=job[0], arch=job[1]), jobs))
    compiled: dict[str, dict[str, str]] = {}
    for (source, arch), result in zip(jobs, results, strict=True):
        name = str(source.relative_to(ROOT) if source.is_relative_to(ROOT) else source)
        compiled.setdefault(name, {})[arch] = result
    return compiled


def _result(source: Path, arch: str) -> str:
    try:
        compile_source(source, arch)
        return "ok"
    except CompileError as error:
        return str(error)


# --- the cache on disk ------------------------------------------------------------------------------------------------


@cache
def _disk_cache() -> FileStreamProgramCache | None:
    """None where it is switched off, or its folder cannot be made."""
    if os.environ.get(CACHE_SWITCH, "").lower() in ("off", "0", "no", "false"):
        return None
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return FileStreamProgramCache(root / "spec-decode-bench", max_size_bytes=MAX_CACHE_BYTES)
    except (OSError, RuntimeError):  # the latter from a user without a home
        return None


def _cache_key(path: Path, text: str, options: ProgramOptions) -> bytes | None:
    """Of source, headers, options, architecture and compiler; None where the headers are not known before compiling."""
    included = headers(path, text, include_path(path))
    if included is None or _disk_cache() is None:
        return None
    digest = hashlib.sha256(_compiler_version().encode())
    for name, content in included:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return make_program_cache_key(
        code=text, code_type="c++", options=options, target_type="cubin", extra_digest=digest.digest()
    )


@cache
def _compiler_version() -> str:
    """cuda-core's key holds NVRTC's version to two places only."""
    versions = []
    for package in ("cuda-core", "nvidia-cuda-nvrtc"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(versions)


def _cached(key: bytes | None) -> bytes | None:
    """The cubin under a key; None where there is none."""
    if key is not None:
        with suppress(OSError):
            return _disk_cache().get(key)
    return None


def _store(key: bytes | None, cubin: bytes) -> None:
    if key is not None:
        with suppress(OSError):  # a full disk or a read-only home only costs time
            _disk_cache()[key] = cubin


# --- launches ---------------------------------------------------------------------------------------------------------


@cache
def current_arch() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def _value(argument: Any) -> Any:
    """A tensor becomes its address and None a null pointer, a Python int a C ``int``, a bundle a struct of its fields:
    no kernel of this suite has another integer parameter.
    """
    if argument is None:
        return ctypes.c_void_p()
    if hasattr(argument, "data_ptr"):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, int):
        if not -(2**31) <= argument < 2**31:
            raise OverflowError(f"{argument} does not fit a C int")
        return ctypes.c_int(argument)
    if isinstance(argument, tuple):
        values = [_value(field) for field in argument]
        layout = [(name, type(value)) for name, value in zip(argument._fields, values, strict=True)]
        return type(type(argument).__name__, (ctypes.Structure,), {"_fields_": layout})(*values)
    return argument


def launcher(source: Path, kernel: str, grid: int | tuple[int, ...], block: int, *arguments: Any) -> Callable[[], None]:
    """A closure that launches ``kernel`` of ``source`` on torch's current stream with fixed arguments.

    arguments: tensors (passed as pointers, kept alive by the closure), None (a null pointer), Python ints (passed as C
               ``int``), ctypes values, or bundles of them (passed as structs by value, harness/bundle.py).

    Raises OverflowError for an int beyond 32 bits, TypeError for arguments that are not the kernel's parameters, and
    CompileError.
    """
    values = [_value(argument) for argument in arguments]
    code = compile_source(source, current_arch()).get_kernel(kernel)
    grid = (grid,) if isinstance(grid, int) else grid
    return packed(function_of(code), grid, block, values, (code, arguments))


def function_of(kernel: Kernel) -> driver.CUfunction:
    """The kernel on the current device, whose context torch makes current here in case nothing has used it yet."""
    import torch

    torch.cuda.set_device(torch.cuda.current_device())
    return checked(driver.cuKernelGetFunction(kernel.handle))[1]
