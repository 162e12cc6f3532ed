"""The Chrome trace that torch.profiler writes, with the suite's ranges as annotations.

An annotation has no category: a cell's range holds one named after the phase, and that one a range for each call.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any

from spec_decode_bench.profiler.records import PHASES
from spec_decode_bench.profiler.trace import CALL, ApiCall, Operation, Range, ReportError, Trace

_OPERATIONS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
#: The driver's kernels for the copies and memsets of a graph.
_COPY_KERNEL = re.compile(r"mem(cpy|set)\d*_post")
_API = ("cuda_runtime", "cuda_driver")
#: On a CPU: operators of PyTorch.
_OPERATOR = "cpu_op"


def read(path: Path) -> Trace:
    """A trace, plain or compressed by gzip."""
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        document = json.loads(content)
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ReportError(f"{path} is not a complete Chrome trace: {error}") from None
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise ReportError(f"{path} is not a Chrome trace: it has no traceEvents")
    trace = Trace("torch", "")
    try:
        _add(trace, [event for event in events if isinstance(event, dict) and event.get("ph") == "X"])
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{path} is not a torch.profiler trace: {error!r}") from None
    return trace


def _ns(us: float) -> int:
    return round(us * 1000)


def _add(trace: Trace, events: list[dict[str, Any]]) -> None:
    annotations = []
    calls = _API if any(event.get("cat") in _OPERATIONS for event in events) else (*_API, _OPERATOR)
    for event in events:
        category, start = event.get("cat"), _ns(float(event["ts"]))
        end = start + _ns(float(event.get("dur", 0)))
        correlation = (0, int(event.get("args", {}).get("correlation", -1)))
        if category in _OPERATIONS:
            name = str(event["name"])
            copies = _COPY_KERNEL.match(name)
            kind = f"mem{copies[1]}" if copies else _OPERATIONS[category]
            trace.operations.append(Operation(kind, name, start, end, correlation))
        elif category in calls:
            trace.calls.append(ApiCall(str(event["name"]), int(event["tid"]), start, end, correlation))
        elif category == "user_annotation":
            annotations.append((int(event["tid"]), start, -end, str(event["name"])))
    _add_ranges(trace, annotations)


def _add_ranges(trace: Trace, annotations: list[tuple[int, int, int, str]]) -> None:
    """annotations: (thread, start, -end, name). Those of a cell nest: the cell, the phase, its calls."""
    cell: tuple[int, int, str] | None = None  # thread, end, name
    for thread, start, minus_end, name in sorted(annotations):
        end = -minus_end
        if cell is None or thread != cell[0] or start >= cell[1]:
            cell = (thread, end, name)
        elif name in PHASES:
            trace.ranges.append(Range(cell[2], name, thread, start, end))
        elif name == CALL:
            trace.ranges.append(Range(cell[2], CALL, thread, start, end))
