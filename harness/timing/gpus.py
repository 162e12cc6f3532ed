"""The GPUs of this machine and who uses them, from NVML, which does not initialize any of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path

import pynvml

from spec_decode_bench.harness.wording import counted, printable

#: "device=0,2" of --gpus.
_DEVICES = re.compile(r"device=(\d+(?:,\d+)*)")


@dataclass(frozen=True)
class VisibleGpu:
    """index: among the GPUs that this process may use. visible: its entry for CUDA_VISIBLE_DEVICES. used_by: processes
    that compute on it, in words.
    """

    index: int
    visible: str
    used_by: tuple[str, ...] = ()


def visible_gpus() -> list[VisibleGpu]:
    """In the order of CUDA_VISIBLE_DEVICES, or else of nvidia-smi. Empty where there is no driver."""
    try:
        pynvml.nvmlInit()
        present = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in present]
    except pynvml.NVMLError:
        return []
    entries = uuids
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        entries = [entry.strip() for entry in chosen.split(",") if entry.strip()]
        # CUDA ignores an index that no GPU has, such as -1, and all entries behind it.
        is_there = lambda entry: not entry.lstrip("-").isdecimal() or 0 <= int(entry) < len(present)  # noqa: E731
        entries = list(takewhile(is_there, entries))
    return [VisibleGpu(i, entry, _used_by(_handle(entry, present, uuids))) for i, entry in enumerate(entries)]


def _handle(entry: str, present: list, uuids: list[str]):
    """NVML's handle of an entry of CUDA_VISIBLE_DEVICES; None for one that NVML does not list, such as a MIG device."""
    if entry.isdecimal():
        return present[int(entry)] if int(entry) < len(present) else None
    return next((handle for handle, uuid in zip(present, uuids, strict=True) if uuid.startswith(entry)), None)


def _used_by(handle) -> tuple[str, ...]:
    try:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if handle is not None else []
    except pynvml.NVMLError:  # it does not tell this user
        return ()
    return tuple(f"process {process.pid}{_command(process.pid)}" for process in running)


def _command(pid: int) -> str:
    try:
        return f" ({printable(Path(f'/proc/{pid}/comm').read_text().strip())})"
    except (OSError, ValueError):  # of another container
        return ""


def choose_device(wanted: str) -> str:
    """ "cuda" or "cpu" for "auto", "cuda" or "cpu". Raises RuntimeError for "cuda" without a GPU."""
    if wanted == "cpu":
        return "cpu"
    if version("torch").endswith("+cpu"):
        missing = "torch is built for the CPU; install a CUDA build,"
    elif not visible_gpus():
        missing = "the driver shows no GPU; make one visible,"
    else:
        return "cuda"
    if wanted == "cuda":
        raise RuntimeError(f"--device cuda: {missing} or use --device cpu")
    return "cpu"


def choose_gpus(wanted: str) -> list[VisibleGpu]:
    """The GPUs of ``--gpus``: a number, of those that nobody uses; ``all``; or ``device=0,2``.

    Raises RuntimeError with one sentence.
    """
    gpus, flag = visible_gpus(), f"--gpus {wanted}"
    if not gpus:
        raise RuntimeError(f"{flag}: the driver shows no GPU; drop --gpus to run without one")
    here = f"this machine shows {counted(len(gpus), 'GPU')}"
    if wanted == "all":
        chosen = gpus
    elif devices := _DEVICES.fullmatch(wanted):
        indices = list(dict.fromkeys(int(index) for index in devices[1].split(",")))
        if (missing := next((index for index in indices if index >= len(gpus)), None)) is not None:
            raise RuntimeError(f"{flag}: there is no GPU {missing}; {here}, counted from 0")
        chosen = [gpus[index] for index in indices]
    elif wanted.isdecimal() and int(wanted):
        if int(wanted) > len(gpus):
            raise RuntimeError(f"{flag}: {here}; ask for {len(gpus)} or fewer")
        # The free ones first, so that the others are named where these are too few.
        chosen = sorted(gpus, key=lambda gpu: bool(gpu.used_by))[: int(wanted)]
    else:
        raise RuntimeError(f"{flag}: expected a number of GPUs, all, or device=0,2")
    if busy := [gpu for gpu in chosen if gpu.used_by]:
        users = "; ".join(f"GPU {gpu.index} by {', '.join(gpu.used_by)}" for gpu in busy)
        raise RuntimeError(
            f"{flag}: in use: {users}; wait until they are free, or name idle GPUs, such as --gpus device=0,2"
        )
    return chosen
