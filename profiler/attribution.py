"""Attributes a trace to cells: what each cell did on host and device, call by call.

An operation of the device belongs to the cell in whose range the API call that submitted it began, on the same thread;
ranges of other domains inside of that range make no difference. A replayed graph's nodes carry the correlation of the
graph's launch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from spec_decode_bench.profiler.records import Outside, Row, Share, Span, Step
from spec_decode_bench.profiler.trace import CALL, ApiCall, Operation, Range, Trace

#: Names of what lies in no cell that a profile keeps, those with the most time first.
MAX_OUTSIDE = 20
_DECIMALS = 3


@dataclass
class Attribution:
    """As the fields of Profile. rows: in the order in which the cells ran."""

    rows: list[Row]
    share: Share
    outside: list[Outside]
    steps: list[Step]


@dataclass
class _Call:
    """A range that holds one call of a cell; for a run that is not `bench.py profile`, a whole phase."""

    cell: str
    phase: str
    start: int
    end: int
    api: list[ApiCall] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


class _Intervals:
    """Which of some intervals, per thread and not overlapping, holds a moment."""

    def __init__(self, intervals: Iterable[tuple[int, int, int, int]]) -> None:
        """intervals: (thread, start, end, number)."""
        self._starts: dict[int, list[int]] = {}
        self._rest: dict[int, list[tuple[int, int]]] = {}
        for thread, start, end, number in sorted(intervals):
            self._starts.setdefault(thread, []).append(start)
            self._rest.setdefault(thread, []).append((end, number))

    def at(self, thread: int, moment: int) -> int | None:
        starts = self._starts.get(thread, [])
        place = bisect_right(starts, moment) - 1
        if place < 0:
            return None
        end, number = self._rest[thread][place]
        return number if moment <= end else None


def attribute(trace: Trace) -> Attribution:
    """Every range of the suite's domain is a cell's."""
    calls = _calls(trace.ranges)
    inside = _Intervals((span.thread, span.start, span.end, number) for number, (span, _) in enumerate(calls))
    cell_calls = [call for _, call in calls]
    by_correlation: dict[tuple[int, int], ApiCall] = {}
    lost: Counter[str] = Counter()
    lost_us: Counter[str] = Counter()
    for call in _not_nested(trace.calls):
        number = inside.at(call.thread, call.start)
        if number is None:
            lost[call.name] += 1
            lost_us[call.name] += _us(call.end - call.start)
        else:
            cell_calls[number].api.append(call)
    for call in trace.calls:
        by_correlation[call.correlation] = call
    device_ns = device_ns_attributed = attributed = 0
    for operation in trace.operations:
        device_ns += operation.end - operation.start
        submitted = by_correlation.get(operation.correlation)
        number = None if submitted is None else inside.at(submitted.thread, submitted.start)
        if number is None:
            lost[operation.name] += 1
            lost_us[operation.name] += _us(operation.end - operation.start)
            continue
        attributed += 1
        device_ns_attributed += operation.end - operation.start
        cell_calls[number].operations.append(operation)
    host_ns, host_ns_attributed = _host_time(trace)
    share = Share(
        operations=len(trace.operations),
        operations_attributed=attributed,
        device_us=_us(device_ns),
        device_us_attributed=_us(device_ns_attributed),
        host_us=_us(host_ns),
        host_us_attributed=_us(host_ns_attributed),
    )
    outside = [Outside(name=name, count=lost[name], us=round(us, _DECIMALS)) for name, us in lost_us.most_common()]
    groups: dict[tuple[str, str], list[_Call]] = {}
    for call in cell_calls:
        groups.setdefault((call.cell, call.phase), []).append(call)
    rows = [_row(cell, phase, of_cell) for (cell, phase), of_cell in groups.items()]
    steps = [_step(cell, phase, of_cell) for (cell, phase), of_cell in groups.items()]
    return Attribution(rows, share, outside[:MAX_OUTSIDE], steps)


def _host_time(trace: Trace) -> tuple[int, int]:
    """(ns from the first to the last range of a cell, on each thread that has any; ns of it in such ranges)."""
    total = attributed = 0
    for thread in {span.thread for span in trace.ranges}:
        of_thread = [(span.start, span.end) for span in trace.ranges if span.thread == thread]
        total += max(end for _, end in of_thread) - min(start for start, _ in of_thread)
    for _, start, end in _outermost((span.thread, span.start, span.end) for span in trace.ranges):
        attributed += end - start
    return total, attributed


def _us(ns: float) -> float:
    return round(ns / 1000, _DECIMALS)


def _calls(ranges: Sequence[Range]) -> list[tuple[Range, _Call]]:
    """The innermost ranges with what they hold: calls in the phase of the range around them, and phases without any."""
    phases = [span for span in ranges if span.phase != CALL]
    around = _Intervals((span.thread, span.start, span.end, number) for number, span in enumerate(phases))
    calls, with_calls = [], set()
    for span in ranges:
        if span.phase == CALL:
            number = around.at(span.thread, span.start)
            with_calls.add(number)
            phase = CALL if number is None else phases[number].phase
            calls.append((span, _Call(span.name, phase, span.start, span.end)))
    calls += [
        (span, _Call(span.name, span.phase, span.start, span.end))
        for number, span in enumerate(phases)
        if number not in with_calls
    ]
    return sorted(calls, key=lambda pair: pair[0].start)


def _outermost(intervals: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Without those that lie in another of the same thread."""
    outermost: list[tuple[int, int, int]] = []
    for thread, start, end in sorted(intervals, key=lambda interval: (interval[0], interval[1], -interval[2])):
        if not outermost or outermost[-1][0] != thread or end > outermost[-1][2]:
            outermost.append((thread, start, end))
    return outermost


def _not_nested(calls: Sequence[ApiCall]) -> list[ApiCall]:
    """Without driver calls inside of a runtime call, whose time would count twice."""
    outer: list[ApiCall] = []
    for call in sorted(calls, key=lambda call: (call.thread, call.start, -call.end)):
        if not outer or outer[-1].thread != call.thread or call.start >= outer[-1].end:
            outer.append(call)
    return outer


def _busy(operations: Sequence[Operation]) -> tuple[int, int]:
    """(ns in which at least one operation ran, ns from the first start to the last end)."""
    busy, until = 0, None
    for operation in sorted(operations, key=lambda operation: operation.start):
        start = operation.start if until is None else max(operation.start, until)
        busy += max(operation.end - start, 0)
        until = operation.end if until is None else max(until, operation.end)
    return busy, 0 if until is None else until - min(operation.start for operation in operations)


def _row(cell: str, phase: str, calls: Sequence[_Call]) -> Row:
    kinds = Counter(operation.kind for call in calls for operation in call.operations)
    busy = [_busy(call.operations) for call in calls]
    return Row(
        cell=cell,
        phase=phase,
        calls=len(calls),
        kernels=kinds["kernel"],
        memcpys=kinds["memcpy"],
        memsets=kinds["memset"],
        graphs=kinds["graph"],
        api_calls=sum(len(call.api) for call in calls),
        host_us=[_us(call.end - call.start) for call in calls],
        submit_us=[_us(sum(api.end - api.start for api in call.api if not api.waits)) for call in calls],
        wait_us=[_us(sum(api.end - api.start for api in call.api if api.waits)) for call in calls],
        device_us=[_us(ns) for ns, _ in busy],
        gap_us=[_us(span - ns) for ns, span in busy],
    )


def _step(cell: str, phase: str, calls: Sequence[_Call]) -> Step:
    """The call of median length."""
    length = median_low(call.end - call.start for call in calls)
    call = next(call for call in calls if call.end - call.start == length)
    at = lambda moment: _us(moment - call.start)  # noqa: E731
    host = [Span("wait" if api.waits else "submit", api.name, at(api.start), at(api.end)) for api in call.api]
    device = [
        Span(operation.kind, operation.name, at(operation.start), at(operation.end)) for operation in call.operations
    ]
    return Step(
        cell=cell,
        phase=phase,
        us=_us(length),
        host=sorted(host, key=lambda span: span.start_us),
        device=sorted(device, key=lambda span: span.start_us),
    )
