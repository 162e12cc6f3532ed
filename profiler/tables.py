"""Tables of a profile: what each cell did on host and device, and what Nsight Compute counted of its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from spec_decode_bench.harness.analysis.stats import copy_bandwidth, interval
from spec_decode_bench.harness.numbers import counted, significant
from spec_decode_bench.harness.records.schema import Cell, Run, split_key
from spec_decode_bench.harness.report.table import Entry, Table, variant_table
from spec_decode_bench.harness.report.tables import NOTHING
from spec_decode_bench.profiler.records import KernelCounters, Profile, ProfiledCell, Row

_UNDER = "times under a profiler are not results, as launches are slower; counts, order and shares are right"

_NOTES = (
    "of one call; kernels, copies and API calls are means, times medians. copies: memcpys and memsets",
    "submit: host, in API calls that do not wait; wait: in those that do. gaps: between the call's operations",
    _UNDER,
)
_NOTES_CPU = ("of one call on a CPU: operators of PyTorch called by the variant, mean; host time, median", _UNDER)


def on_cpu(profile: Profile) -> bool:
    """Whether the cells ran without a GPU: then there is no device to speak of."""
    return profile.session is not None and profile.session.environment.device == "cpu"


def profile_tables(profile: Profile, record: Run | None = None) -> list[Table]:
    """A table for each operator and point. record: a run whose times stand beside the profile's."""
    measured = {cell.key: cell for cell in record.cells} if record else {}
    if profile.tool == "ncu":
        return _counter_tables(profile, record)
    heads = ("kernels", "copies", "API calls", "submit µs", "wait µs", "device µs", "gaps µs")
    heads += (f"{record.header.name}: gpu µs", "host µs") if record else ()
    if on_cpu(profile):
        heads = ("operators", "host µs")
    tables, points = [], _by_point(profile.rows)
    for number, ((operator, point), rows) in enumerate(points.items(), 1):
        shown = [((split_key(row.cell)[1], row.phase), _entries(row, measured, profile, record)) for row in rows]
        notes = () if number < len(points) else _NOTES_CPU if on_cpu(profile) else _NOTES
        tables.append(variant_table(f"{operator} at {point}", ("variant", "phase"), heads, shown, notes, "calls"))
    return tables


def _by_point(rows: Iterable[Row | KernelCounters]) -> dict[tuple[str, str], list]:
    """(operator, point) -> its rows."""
    groups: dict[tuple[str, str], list] = {}
    for row in rows:
        operator, _, point = split_key(row.cell)
        groups.setdefault((operator, point), []).append(row)
    return groups


def _per_call(row: Row, count: int) -> Entry:
    return Entry(f"{count / row.calls:g}")


def _entries(row: Row, measured: Mapping[str, Cell], profile: Profile, record: Run | None) -> tuple[Entry, ...]:
    if on_cpu(profile):
        return _per_call(row, row.api_calls), Entry(significant(median(row.host_us)))
    return (*_of_device(row), *(_times(row, measured.get(row.cell)) if record else ()))


def _of_device(row: Row) -> tuple[Entry, ...]:
    times = (row.submit_us, row.wait_us, row.device_us, row.gap_us)
    return (
        _per_call(row, row.kernels or row.graphs),
        _per_call(row, row.memcpys + row.memsets),
        _per_call(row, row.api_calls),
        *(Entry(significant(median(us))) if us else NOTHING for us in times),
    )


def _times(row: Row, cell: Cell | None) -> tuple[Entry, Entry]:
    """(gpu_us, host_us) of a measured run, the one beside replays and the other beside calls."""
    metric = "gpu_us" if row.phase == "graph" else "host_us"
    time = interval(cell, metric) if cell else None
    entry = Entry(significant(time.median)) if time else NOTHING
    return (entry, NOTHING) if row.phase == "graph" else (NOTHING, entry)


def _counter_tables(profile: Profile, record: Run | None) -> list[Table]:
    notes = [
        "DRAM: caches are flushed before every kernel. L2: what the SMs ask of it, in sectors of 32 bytes",
        "moved: bytes that the operator must move. L2 GB/s: over the kernels' durations, gaps left out",
    ]
    if record is not None and record.header.calibration is not None:
        bandwidth = copy_bandwidth(record.header.calibration) / 1e3
        notes.append(f"copy bandwidth of {record.header.name}: {bandwidth:.0f} GB/s")
    heads = ("µs", "DRAM kB", "L2 kB", "moved kB", "L2 / moved", "L2 GB/s", "occupancy", "registers", "shape")
    points = _by_point(profile.counters)
    tables = []
    for number, ((operator, point), rows) in enumerate(points.items(), 1):
        cells: dict[str, list[KernelCounters]] = {}
        for row in rows:
            cells.setdefault(row.cell, []).append(row)
        shown = []
        for key, kernels in cells.items():
            _, variant, _ = split_key(key)
            name = kernels[0].name if len(kernels) == 1 else f"all {len(kernels)} kernels"
            shown.append(((variant, name), _sums(kernels, profile.cell(key))))
        title, row_heads = f"{operator} at {point}", ("variant", "kernel")
        below = notes if number == len(points) else ()
        tables.append(variant_table(title, row_heads, heads, shown, below, kind="counters"))
    return tables


def _total(values: Iterable[float | None]) -> float | None:
    """None where one is missing."""
    values = list(values)
    return None if any(value is None for value in values) else sum(values)


def l2_bytes(kernels: Sequence[KernelCounters]) -> float | None:
    """What the kernels of a call asked of L2, reads and writes."""
    return _total(part for kernel in kernels for part in (kernel.l2_read, kernel.l2_write))


def _kb(value: float | None) -> Entry:
    return NOTHING if value is None else Entry(significant(value / 1000))


def _sums(kernels: Sequence[KernelCounters], cell: ProfiledCell | None) -> tuple[Entry, ...]:
    us, l2 = _total(kernel.us for kernel in kernels), l2_bytes(kernels)
    dram = _total(part for kernel in kernels for part in (kernel.dram_read, kernel.dram_write))
    moved = cell.bytes_moved if cell else None
    occupancy = registers = shape = ""
    if len(kernels) == 1:
        (kernel,) = kernels
        shape = f"{kernel.grid} × {kernel.block}"
        registers = f"{kernel.registers:g}" if kernel.registers is not None else ""
        if kernel.occupancy and kernel.theoretical:
            occupancy = f"{kernel.occupancy:.0%} of {kernel.theoretical:.0%}"
    return (
        Entry(significant(us)) if us is not None else NOTHING,
        _kb(dram),
        _kb(l2),
        _kb(moved),
        Entry(f"{l2 / moved:.2f}") if l2 is not None and moved else NOTHING,
        Entry(significant(l2 / us / 1000)) if l2 is not None and us else NOTHING,
        Entry(occupancy),
        Entry(registers),
        Entry(shape),
    )


def summary(profile: Profile) -> list[str]:
    """What was attributed, and what was not."""
    lines = []
    if profile.share is not None and not on_cpu(profile):
        share = profile.share
        lines.append(
            f"attributed to cells: {share.of_operations:.2%} of the device's {counted(share.operations, 'operation')}, "
            f"{share.of_time:.2%} of the time of host and device together"
        )
    if profile.outside:
        shown = ", ".join(f"{item.count} × {item.name} ({item.us:.0f} µs)" for item in profile.outside[:5])
        more = f" and {len(profile.outside) - 5} more" if len(profile.outside) > 5 else ""
        lines.append(f"outside: {shown}{more}")
    for what, endings in (("left out", "left_out"), ("failed", "failed")) if profile.session else ():
        reasons: dict[str, list[str]] = {}
        for key, reason in getattr(profile.session, endings).items():
            reasons.setdefault(reason, []).append(key)
        for reason, keys in reasons.items():
            others = f" and {counted(len(keys) - 1, 'more cell')}" if len(keys) > 1 else ""
            lines.append(f"{what}: {keys[0]}{others}: {reason}")
    return lines
