"""The GPUs of this machine and who uses them, from NVML, which does not initialize any of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pynvml

from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.printable import printable

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
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = []
    for entry in uuids if wanted is None else filter(None, map(str.strip, wanted.split(","))):
        if entry.lstrip("-").isdecimal():
            if not 0 <= int(entry) < len(present):  # CUDA ignores all entries from there on
                break
            handle = present[int(entry)]
        else:  # NVML does not list some, such as a MIG device
            handle = next((found for found, uuid in zip(present, uuids, strict=True) if uuid.startswith(entry)), None)
        gpus.append(VisibleGpu(len(gpus), entry, _used_by(handle)))
    return gpus


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
