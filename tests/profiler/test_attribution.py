"""Traces of a made-up session, whose attribution is known."""

from spec_decode_bench.profiler.attribution import attribute
from spec_decode_bench.profiler.trace import CALL, ApiCall, Operation, Range, Trace

CELL, OTHER = "o/chain/default", "o/fused/default"
THREAD, ELSEWHERE = 1, 2


def api(name, start, end, correlation, thread=THREAD):
    return ApiCall(name, thread, start, end, (0, correlation))


def kernel(start, end, correlation, name="k", kind="kernel"):
    return Operation(kind, name, start, end, (0, correlation))


def trace(**parts) -> Trace:
    """Two calls of a chain, each of which launches two kernels and waits, and one replay of a graph of two nodes."""
    made = Trace("nsys", "1")
    made.ranges = [
        Range(CELL, "eager", THREAD, 0, 2000),
        Range(CELL, CALL, THREAD, 0, 1000),
        Range(CELL, CALL, THREAD, 1000, 2000),
        Range(OTHER, "graph", THREAD, 3000, 4000),
        Range(OTHER, CALL, THREAD, 3000, 3900),
    ]
    for call in (0, 1000):
        made.calls += [api("cudaLaunchKernel", call + 100, call + 200, call + 1)]
        made.calls += [api("cudaLaunchKernel", call + 300, call + 400, call + 2)]
        made.calls += [api("cudaDeviceSynchronize", call + 400, call + 900, call + 3)]
        made.operations += [kernel(call + 250, call + 350, call + 1), kernel(call + 500, call + 700, call + 2)]
    made.calls += [api("cudaGraphLaunch", 3100, 3200, 3001), api("cudaDeviceSynchronize", 3200, 3800, 3002)]
    made.operations += [kernel(3300, 3400, 3001), kernel(3450, 3500, 3001)]
    for name, more in parts.items():
        getattr(made, name).extend(more)
    return made


def test_calls_are_told_apart_and_gaps_are_between_the_operations_of_one():
    eager, graph = attribute(trace()).rows
    assert (eager.cell, eager.phase, eager.calls, eager.kernels, eager.api_calls) == (CELL, "eager", 2, 4, 6)
    assert eager.host_us == [1.0, 1.0]
    assert eager.submit_us == [0.2, 0.2]
    assert eager.wait_us == [0.5, 0.5]
    assert eager.device_us == [0.3, 0.3]
    assert eager.gap_us == [0.15, 0.15]
    assert (graph.cell, graph.phase, graph.kernels, graph.api_calls) == (OTHER, "graph", 2, 2)
    assert (graph.device_us, graph.gap_us) == ([0.15], [0.05])


def test_a_kernel_that_runs_after_its_range_belongs_to_the_range_that_launched_it():
    late = trace(calls=[api("cuLaunchKernel", 3850, 3860, 9)], operations=[kernel(5000, 5100, 9)])
    assert attribute(late).rows[1].kernels == 3


def test_what_lies_in_no_cell_is_named_and_counted():
    """A launch between two cells, one of another thread during a cell, and a kernel whose launch is missing."""
    found = attribute(
        trace(
            calls=[api("cudaLaunchKernel", 2500, 2600, 90), api("cudaLaunchKernel", 100, 150, 91, ELSEWHERE)],
            operations=[kernel(2600, 2700, 90, "spin"), kernel(160, 170, 91, "spin"), kernel(20, 30, 92, "lost")],
        )
    )
    share = found.share
    assert (share.operations, share.operations_attributed) == (9, 6)
    assert share.of_operations == 6 / 9
    assert {one.name: (one.count, one.us) for one in found.outside} == {
        "spin": (2, 0.11),
        "lost": (1, 0.01),
        "cudaLaunchKernel": (2, 0.15),
    }
    assert (share.device_us_attributed, share.device_us) == (0.75, 0.87)
    assert (share.host_us_attributed, share.host_us) == (3.0, 4.0)
    assert share.of_time == 3.75 / 4.87


def test_a_driver_call_inside_of_a_runtime_call_counts_once():
    nested = trace(calls=[api("cuLaunchKernel", 110, 190, 77)], operations=[kernel(950, 960, 77)])
    eager = attribute(nested).rows[0]
    assert (eager.api_calls, eager.kernels) == (6, 5)
    assert eager.submit_us[0] == 0.2


def test_operations_that_overlap_are_busy_once():
    both = trace(operations=[kernel(300, 550, 1)])
    eager = attribute(both).rows[0]
    assert (eager.device_us[0], eager.gap_us[0]) == (0.45, 0.0)


def test_a_run_without_ranges_for_calls_counts_its_phases():
    made = trace()
    made.ranges = [Range(CELL, "measure", THREAD, 0, 1000), Range(CELL, "measure", THREAD, 1000, 2000)]
    (row,) = attribute(made).rows
    assert (row.phase, row.calls, row.kernels) == ("measure", 2, 4)


def test_the_step_is_the_call_of_median_length():
    made = trace()
    made.ranges[2] = Range(CELL, CALL, THREAD, 1000, 1950)
    made.ranges.append(Range(CELL, CALL, THREAD, 1951, 1999))
    step = attribute(made).steps[0]
    assert step.us == 0.95
    assert [(one.kind, one.start_us) for one in step.host] == [("submit", 0.1), ("submit", 0.3), ("wait", 0.4)]
    assert [(one.start_us, one.end_us) for one in step.device] == [(0.25, 0.35), (0.5, 0.7)]
