"""Finds the profilers on this machine, their versions, and what prevents their use."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from spec_decode_bench.harness.errors import first_line
from spec_decode_bench.harness.report.console import print_rows

#: Where installers put the tools, the newest version last in the order of names.
_FOLDERS: Mapping[str, Sequence[str]] = {
    "nsys": (
        "/usr/local/cuda*/bin",
        "/opt/nvidia/nsight-systems/*/bin",
        "/opt/nvidia/nsight-systems/*/target-linux-*",
        "/opt/nvidia/nsight-compute/*/host/target-linux-*",
        "/usr/local/cuda*/nsight-compute*/host/target-linux-*",
    ),
    "ncu": (
        "/usr/local/cuda*/bin",
        "/opt/nvidia/nsight-compute/*",
        "/usr/local/cuda*/nsight-compute*",
    ),
    "compute-sanitizer": ("/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer"),
}
#: The oldest versions that know the flags and metrics used here.
OLDEST = {"nsys": (2023, 1), "ncu": (2023, 1), "compute-sanitizer": (2022, 1)}
NAMES = {"nsys": "Nsight Systems", "ncu": "Nsight Compute", "compute-sanitizer": "Compute Sanitizer"}
DOWNLOADS = {
    "nsys": "https://developer.nvidia.com/nsight-systems",
    "ncu": "https://developer.nvidia.com/nsight-compute",
    "compute-sanitizer": "https://developer.nvidia.com/cuda-toolkit",
}
#: Those that `bench.py profile` runs.
PROFILERS = ("nsys", "ncu")
#: Seconds that a tool may take to print its version.
_VERSION_LIMIT_S = 60
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")


@dataclass(frozen=True)
class Tool:
    """A profiler. path: None where it was not found. problem: why it cannot be used, with the remedy; None where it
    can.
    """

    name: str
    path: str | None
    version: str
    problem: str | None

    @property
    def complaint(self) -> str:
        """The problem as a sentence of its own."""
        return self.problem if self.path is not None else f"{NAMES[self.name]} ({self.name}): {self.problem}"


def find(name: str, given: str | None = None) -> Tool:
    """A tool by name: at ``given``, else in PATH, else in the folders of CUDA and Nsight."""
    if given is not None:
        path = shutil.which(given) or (shutil.which(str(Path(given) / name)) if Path(given).is_dir() else None)
        if path is None:
            return Tool(name, None, "", f"--{name} {given}: no such program")
        return _examined(name, path)
    path = shutil.which(name)
    if path is None:
        paths = [path for pattern in _FOLDERS[name] for path in sorted(glob.glob(f"{pattern}/{name}"), key=_natural)]
        path = next((path for path in reversed(paths) if os.access(path, os.X_OK)), None)
    if path is None:
        hint = f", or name it with profile --{name} PATH" if name in PROFILERS else ""
        remedy = f"install it ({DOWNLOADS[name]}) or add it to PATH{hint}"
        return Tool(name, None, "", f"not found; {remedy}")
    return _examined(name, path)


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", path)]


def _examined(name: str, path: str) -> Tool:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_VERSION_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return Tool(name, path, "", f"cannot start {path}: {first_line(error)}")
    output = f"{done.stdout}\n{done.stderr}".strip()
    match = re.search(r"(?i)version\s+(\d[\d.]*)", output)
    if done.returncode or not match:
        return Tool(name, path, "", f"{path} does not work: {_last_line(output) or f'exit code {done.returncode}'}")
    version = match[1]
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST[name]:
        oldest = ".".join(map(str, OLDEST[name]))
        return Tool(name, path, version, f"{path} is version {version}; {oldest} or newer is needed: {DOWNLOADS[name]}")
    return Tool(name, path, version, None)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def print_tools(console: Console, device: str) -> None:
    """A row for each tool that looks into a run: its version and place, or why it is not usable and the remedy."""
    import torch

    from spec_decode_bench.harness.nvtx_ranges import is_listened_to, version

    rows = []
    refused = counters_refused() if device == "cuda" else None
    for name, title in NAMES.items():
        tool = find(name)
        state = tool.problem or f"{tool.version}, {tool.path}"
        if name == "ncu" and tool.problem is None and refused:
            state += f"; not usable: {refused}"
        rows.append((title, state))
    activities = torch.profiler.supported_activities()
    cupti = torch.profiler.ProfilerActivity.CUDA in activities
    without = "; sees no GPU" if torch.version.cuda else "; sees no GPU: needs a CUDA build of torch"
    rows.append(("torch.profiler", f"{torch.__version__}{', with CUPTI' if cupti else without}"))
    rows.append(("NVTX", f"{version()}{', a tool listens' if is_listened_to() else ''}"))
    print_rows(console, ("to profile", ""), rows)


# --- permissions ------------------------------------------------------------------------------------------------------

#: What an administrator does so that every user may read hardware counters.
COUNTER_REMEDY = (
    "run as root, or have an administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0 "
    "(a line in /etc/modprobe.d, then a reboot); in a container, add --cap-add=SYS_ADMIN"
)


def counters_refused() -> str | None:
    """Why this user may not read the GPU's hardware counters, as far as the driver's settings tell; None where they do
    not refuse it.
    """
    try:
        parameters = _DRIVER_PARAMETERS.read_text(encoding="utf-8")
    except OSError:
        return None
    if re.search(r"^RmProfilingAdminOnly:\s*1", parameters, re.MULTILINE) and not _is_admin():
        return f"the driver restricts hardware counters to administrators; {COUNTER_REMEDY}"
    return None


def _is_admin() -> bool:
    """Root with the capability that the driver asks for."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    except OSError:
        return os.geteuid() == 0
    cap_sys_admin = 21
    return effective is not None and bool(int(effective[1], 16) >> cap_sys_admin & 1)
