"""Nsight Systems: its commands, and a reader of its reports, exported to SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spec_decode_bench.harness.nvtx_ranges import DOMAIN
from spec_decode_bench.profiler.trace import ApiCall, Operation, Range, ReportError, Trace

#: Bits of a global thread id that hold the thread; the others are the process.
_THREAD_BITS = 0xFFFFFF
#: NVTX_EVENTS.eventType: a category's name, a domain's name, and ranges (pushed, started).
_CATEGORY, _DOMAIN, _PUSHED, _STARTED = 33, 75, 59, 60
_MAGIC = b"SQLite format 3\0"
#: Kind of an operation -> its table. Those that a report has nothing of are missing in it.
_OPERATIONS = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "graph": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}


def profile_command(nsys: str, report: Path, workload: Sequence[str]) -> list[str]:
    """Records ``report``.nsys-rep of the part that the workload marks for the profiler."""
    options = [
        "--trace=cuda,nvtx",
        "--cuda-graph-trace=node",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--sample=none",
        "--cpuctxsw=none",
        "--force-overwrite=true",
        f"--output={report}",
    ]
    return [nsys, "profile", *options, *workload]


def export_command(nsys: str, report: Path, database: Path) -> list[str]:
    return [nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={database}", str(report)]


def read(path: Path) -> Trace:
    """An exported report."""
    try:
        with open(path, "rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from None
    if magic != _MAGIC:
        raise ReportError(f"{path} is not an SQLite file; create one with: nsys export --type sqlite REPORT.nsys-rep")
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            return _read(connection, path)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ReportError(f"cannot read {path} as an Nsight Systems report: {error}") from None


def _read(connection: sqlite3.Connection, path: Path) -> Trace:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "StringIds" not in tables:
        raise ReportError(f"{path} is not an Nsight Systems report: it has no table StringIds")
    if "NVTX_EVENTS" not in tables:
        raise ReportError(f"{path} has no NVTX ranges; record it with --trace=cuda,nvtx")
    trace = Trace("nsys", _version(connection, tables))
    strings = dict(connection.execute("SELECT id, value FROM StringIds"))
    _add_ranges(connection, strings, trace, path)
    if "CUPTI_ACTIVITY_KIND_RUNTIME" in tables:
        rows = connection.execute(
            'SELECT nameId, globalTid, start, "end", correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME'
        )
        for name, thread, start, end, correlation in rows:
            key = (thread & ~_THREAD_BITS, correlation)
            trace.calls.append(ApiCall(_api_name(strings.get(name, "")), thread, start, end, key))
    for kind, table in _OPERATIONS.items():
        if table in tables:
            trace.operations += _operations(connection, strings, kind, table)
    return trace


def _version(connection: sqlite3.Connection, tables: set[str]) -> str:
    """Of the tool that exported the report; "" where it does not say."""
    if "META_DATA_EXPORT" not in tables:
        return ""
    metadata = dict(connection.execute("SELECT name, value FROM META_DATA_EXPORT"))
    return str(metadata.get("EXPORT_PRODUCT_VERSION") or metadata.get("EXPORT_VERSION") or "")


def _api_name(name: str) -> str:
    """Without the version of the entry point: cudaLaunchKernel_v7000 is cudaLaunchKernel."""
    stem, separator, version = name.rpartition("_v")
    return stem if separator and version.isdecimal() and int(version) > 999 else name


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _add_ranges(connection: sqlite3.Connection, strings: Mapping[int, str], trace: Trace, path: Path) -> None:
    """Ranges of the suite's domain with their categories."""
    query = (
        'SELECT eventType, start, "end", text, textId, globalTid, domainId, category FROM NVTX_EVENTS ORDER BY start'
    )
    domains: set[tuple[int, int]] = set()
    categories: dict[tuple[int, int, int], str] = {}
    rows: list[tuple[Any, ...]] = []
    for kind, start, end, text, text_id, thread, domain, category in connection.execute(query):
        name = text if text is not None else strings.get(text_id, "")
        process = (thread or 0) & ~_THREAD_BITS
        if kind == _DOMAIN and name == DOMAIN:
            domains.add((process, domain))
        elif kind == _CATEGORY:
            categories[process, domain, category] = name
        elif kind in (_PUSHED, _STARTED) and end is not None:
            rows.append((process, domain, category, name, thread, start, end))
    if not domains:
        raise ReportError(f"{path} has no range in the domain {DOMAIN}; is it a profile of this suite?")
    for process, domain, category, name, thread, start, end in rows:
        if (process, domain) in domains:
            phase = categories.get((process, domain, category), "")
            trace.ranges.append(Range(name, phase, thread, start, end))


def _operations(
    connection: sqlite3.Connection, strings: Mapping[int, str], kind: str, table: str
) -> Iterator[Operation]:
    columns = _columns(connection, table)
    name = next((column for column in ("shortName", "copyKind") if column in columns), "NULL")
    process = "globalPid" if "globalPid" in columns else "globalTid" if "globalTid" in columns else "0"
    for start, end, correlation, owner, what in connection.execute(
        f'SELECT start, "end", correlationId, {process}, {name} FROM {table}'
    ):
        if kind == "kernel":
            label = strings.get(what, "kernel")
        elif kind == "memcpy":
            label = f"memcpy {_COPY_KINDS.get(what, '')}".strip()
        else:
            label = kind
        yield Operation(kind, label, start, end, ((owner or 0) & ~_THREAD_BITS, correlation))
