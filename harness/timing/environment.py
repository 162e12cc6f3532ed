"""Describes the machine and the software of a run. Read once, by the process that owns the device."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from msgspec import structs

from spec_decode_bench.harness.addresses import has_fixed_addresses
from spec_decode_bench.harness.dependencies import file_hash
from spec_decode_bench.harness.git import git
from spec_decode_bench.harness.import_by_content import ROOT
from spec_decode_bench.harness.records.schema import Checkout, Environment

if TYPE_CHECKING:
    from spec_decode_bench.harness.timing.clocks import Clocks

#: Beginnings of the names of variables that change what Triton, torch.compile, LLVM and ptxas make. Where their caches
#: and dumps lie changes nothing.
COMPILER_VARIABLES = ("TRITON_", "TORCHINDUCTOR_", "TORCH_COMPILE", "LLVM_", "MLIR_", "PTXAS_", "DISABLE_PTXAS_")
PLACES = ("_CACHE_DIR", "_HOME", "_DUMP_DIR")
#: ((major, minor or None for any), generation); the first match counts.
_GENERATIONS = (
    ((7, 5), "Turing"),
    ((8, 9), "Ada"),
    ((8, None), "Ampere"),
    ((9, None), "Hopper"),
    ((10, None), "Blackwell"),
    ((11, None), "Blackwell"),
    ((12, None), "Blackwell"),
)


def generation(major: int, minor: int) -> str:
    """GPU generation of a compute capability, or ``sm_XY`` for an unknown one."""
    for (known_major, known_minor), name in _GENERATIONS:
        if major == known_major and known_minor in (None, minor):
            return name
    return f"sm_{major}{minor}"


def describe(
    device: str,
    clocks: Clocks | None = None,
    packages: Mapping[str, str] = MappingProxyType({}),
    checkouts: Mapping[str, Checkout] = MappingProxyType({}),
) -> Environment:
    """clocks: of a GPU, for what NVML refuses to it. packages, checkouts: of wrapped packages."""
    commit, dirty = _git_state()
    found = Environment(
        device=device,
        processor=_processor(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=_version("triton"),
        cuda_core=_version("cuda-core"),
        nvrtc=_version("nvidia-cuda-nvrtc"),
        compiler_settings=_compiler_settings(),
        generation="CPU",
        commit=commit,
        dirty=dirty,
        packages=dict(packages),
        checkouts=dict(checkouts),
        fixed_addresses=has_fixed_addresses(),
    )
    if device == "cpu":
        return found
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    readings, refused, notes = _nvml()
    if clocks is not None:
        refused, notes = (*refused, *clocks.refused), (*notes, *clocks.notes)
    return structs.replace(
        found,
        gpu=gpu.name,
        gpu_id=gpu_id(str(gpu.uuid)),
        generation=generation(gpu.major, gpu.minor),
        sm=f"sm_{gpu.major}{gpu.minor}",
        sm_count=gpu.multi_processor_count,
        l2_bytes=gpu.L2_cache_size,
        memory_bytes=gpu.total_memory,
        driver=readings.get("driver"),
        cuda=torch.version.cuda,
        sm_clock_mhz=readings.get("sm_clock_mhz"),
        max_sm_clock_mhz=readings.get("max_sm_clock_mhz"),
        memory_clock_mhz=readings.get("memory_clock_mhz"),
        power_limit_w=readings.get("power_limit_w"),
        nvml_refused=refused,
        notes=notes,
    )


def gpu_id(uuid: str) -> str:
    """Tells GPUs apart without naming one: twelve hexadecimal digits of a hash of the UUID."""
    return hashlib.sha256(f"spec-decode-bench {uuid}".encode()).hexdigest()[:12]


def nvml_handle():
    """NVML's handle of torch's current device, by UUID, since CUDA_VISIBLE_DEVICES renumbers the GPUs.

    Raises NVMLError.
    """
    import pynvml

    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}")


def nvml_readings(queries: Mapping[str, Callable[[Any], Any]]) -> tuple[dict[str, Any], dict[str, Exception]]:
    """(what NVML says of torch's current device, what it refuses). One query after the other, since it refuses some of
    them on some GPUs and to some users.
    """
    import pynvml

    readings, refused = {}, {}
    try:
        handle = nvml_handle()
    except pynvml.NVMLError as error:
        return {}, dict.fromkeys(queries, error)
    for name, query in queries.items():
        try:
            readings[name] = query(handle)
        except pynvml.NVMLError as error:
            refused[name] = error
    return readings, refused


def refusal(refused: Mapping[str, Exception], consequence: str) -> tuple[str, ...]:
    """A note for the record; none where nothing was refused."""
    why = "; ".join(dict.fromkeys(map(str, refused.values())))
    return (f"NVML refuses {', '.join(refused)} ({why}): {consequence}",) if refused else ()


def _nvml() -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """(readings by field of Environment, those that NVML refuses, a note on them)."""
    import pynvml

    queries = {
        "driver": lambda handle: pynvml.nvmlSystemGetDriverVersion(),
        "sm_clock_mhz": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "max_sm_clock_mhz": lambda handle: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "power_limit_w": lambda handle: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    }
    readings, refused = nvml_readings(queries)
    return readings, tuple(refused), refusal(refused, "not recorded")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()} ({os.cpu_count()} cores)"
    except OSError:
        pass  # not Linux
    return f"{platform.processor() or platform.machine()} ({os.cpu_count()} cores)"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _compiler_settings() -> dict[str, str]:
    """Environment.compiler_settings, without what Inductor itself sets to a file of torch when it first compiles."""
    own = str(Path(torch.__file__).parent)
    return {
        name: f"{value}#{file_hash(Path(value))}" if Path(value).is_file() else value
        for name, value in sorted(os.environ.items())
        if name.startswith(COMPILER_VARIABLES) and not name.endswith(PLACES) and not value.startswith(own)
    }


def _git_state() -> tuple[str | None, bool]:
    """Ten digits of the commit hash, and whether the tree differs from it. From BENCH_COMMIT if that is set, where a
    plus follows the hash of a tree that differs; else from git, if it tracks this tree: one that was unpacked inside
    another repository is not at that repository's commit.
    """
    if given := os.environ.get("BENCH_COMMIT", ""):
        return given.removesuffix("+")[:10] or None, given.endswith("+")
    try:
        tracked = git(ROOT, "cat-file", "-e", "HEAD:./bench.py", limit_s=10)
        commit = git(ROOT, "rev-parse", "--short=10", "HEAD", limit_s=10)
        changes = git(ROOT, "status", "--porcelain", "--untracked-files=no", "--", ".", limit_s=10)
    except (OSError, subprocess.SubprocessError):
        return None, False
    if tracked.returncode or commit.returncode:
        return None, False
    return commit.stdout.strip(), bool(changes.stdout)
