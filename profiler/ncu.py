"""Nsight Compute: its commands, and the counters of each kernel from its raw page in CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from spec_decode_bench.harness.nvtx_ranges import DOMAIN
from spec_decode_bench.profiler.records import KernelCounters
from spec_decode_bench.profiler.tools import COUNTER_REMEDY
from spec_decode_bench.profiler.trace import ReportError

#: Field of KernelCounters -> metric. L2 metrics count what the SMs ask of it, in sectors of 32 bytes.
METRICS = {
    "us": "gpu__time_duration.sum",
    "dram_read": "dram__bytes_read.sum",
    "dram_write": "dram__bytes_write.sum",
    "l2_read": "lts__t_sectors_srcunit_tex_op_read.sum",
    "l2_write": "lts__t_sectors_srcunit_tex_op_write.sum",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "theoretical": "sm__maximum_warps_per_active_cycle_pct",
    "registers": "launch__registers_per_thread",
}
_SECTOR_BYTES = 32
_SCALE = {
    "us": 1e-3,
    "l2_read": _SECTOR_BYTES,
    "l2_write": _SECTOR_BYTES,
    "occupancy": 0.01,
    "theoretical": 0.01,
}
#: Said where the driver refuses hardware counters.
_REFUSED = "ERR_NVGPUCTRPERM"


def profile_command(ncu: str, report: Path, workload: Sequence[str]) -> list[str]:
    """Records ``report``.ncu-rep of the kernels in the part that the workload marks for the profiler, with the suite's
    ranges in which each was launched.
    """
    options = [
        "--profile-from-start=off",
        "--nvtx",
        f"--nvtx-include=regex:{DOMAIN}@.+/",
        "--clock-control=none",
        "--metrics",
        ",".join(METRICS.values()),
        "--force-overwrite",
        f"--export={report}",
    ]
    return [ncu, *options, *workload]


def export_command(ncu: str, report: Path) -> list[str]:
    """Prints the report as CSV, in base units (ns, bytes)."""
    return [ncu, f"--import={report}", "--csv", "--page=raw", "--print-units=base"]


def problem_in(log: str) -> str | None:
    """Why ncu counted nothing, if its log says so."""
    if _REFUSED in log:
        return f"the driver denies this user access to hardware counters ({_REFUSED}); {COUNTER_REMEDY}"
    errors = re.findall(r"^==ERROR==\s*(.+)$", log, re.MULTILINE)
    return errors[0].strip() if errors else None


def read(path: Path, cells: Collection[str]) -> list[KernelCounters]:
    """A raw page in CSV. cells: their keys."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from None
    start = text.find('"ID"')
    if start < 0:
        raise ReportError(
            f"{path} is not a raw page of Nsight Compute; create one with: ncu --import REPORT.ncu-rep --csv --page "
            "raw --print-units base"
        )
    rows = list(csv.reader(io.StringIO(text[start:])))
    heads = rows[0]
    missing = [metric for metric in METRICS.values() if metric not in heads]
    if "Kernel Name" not in heads or len(missing) == len(METRICS):
        raise ReportError(f"{path} has none of the metrics that `bench.py profile --tool ncu` collects")
    counters = []
    for row in rows[1:]:
        values = dict(zip(heads, row, strict=False))
        if not values.get("ID", "").isdecimal():  # the row of units
            continue
        nvtx = " ".join(value for head, value in values.items() if DOMAIN in head or DOMAIN in value)
        cell = max((key for key in cells if key in nvtx), key=len, default=None)
        if cell is not None:
            counters.append(_counters(cell, values))
    return counters


def _counters(cell: str, values: Mapping[str, str]) -> KernelCounters:
    values_by_field = {
        field: number * _SCALE.get(field, 1)
        for field, metric in METRICS.items()
        if (number := _number(values.get(metric, ""))) is not None
    }
    name = values["Kernel Name"]
    grid, block = values.get("Grid Size", ""), values.get("Block Size", "")
    return KernelCounters(cell=cell, name=name, grid=_shape(grid), block=_shape(block), **values_by_field)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _shape(text: str) -> str:
    """``(12, 1, 1)`` -> ``12``; ``(4, 2, 1)`` -> ``4×2``."""
    sizes = re.findall(r"\d+", text)
    while len(sizes) > 1 and sizes[-1] == "1":
        sizes.pop()
    return "×".join(sizes)
