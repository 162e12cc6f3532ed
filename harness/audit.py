"""What a launch really does: CUPTI's durations, and counts of launches, allocations, synchronisations and copies.

Runs in a process of its own, because a process in which CUPTI was attached submits launches up to a third slower ever after.
What it finds is joined to the times of the other process, cell by cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from harness.buffers import Guard
from harness.calibrate import Kernels
from harness.contract import Operator, Point, Variant
from harness.cuda import launcher
from harness.cuda_ruler import PROBES, CudaRuler
from harness.cupti import Operation, trace
from harness.discover import discover
from harness.environment import describe
from harness.graphs import Graph
from harness.promises import allocations, sync_warnings
from harness.protocol import Audited, AuditReady, Begin, Job, Task
from harness.wording import first_line

#: Graphs of a launch that a trace covers, a replay of each, eager calls, and calls before either. Many graphs, because two
#: graphs of the same launch differ by up to 7 %, and two replays of one graph by next to nothing.
GRAPHS, CALLS, WARMUP_CALLS = 12, 5, 3
#: Graphs of a long chain are fewer, as its launches average among themselves: about so many nodes in all.
NODES, FEWEST_GRAPHS = 600, 4
#: Copies of a launch in the traced graph, back to back like those whose slope is set against them. In any other cache state
#: than hot each replay is one call, as only the first would meet that state.
COPIES = 4
BLOCKED = "CUPTI delivers nothing: another profiler holds it, or the driver does not let this user at it"


class Auditor:
    """Owns the device in the second process. Same messages as a Session; nothing here is timed by a clock."""

    def __init__(self, job: Job) -> None:
        self._catalog = discover(job.variant_files)
        self._job = job
        self._ruler = CudaRuler(job.measure.graph_copies, job.measure.cache)
        self._begins, self._ends = (launcher(PROBES, name, 1, 1) for name in ("span_begins", "span_ends"))
        self._own_waits = 0
        self._copies = COPIES if job.measure.cache == "hot" else 1

    def ready(self) -> AuditReady:
        """CUPTI's view of the ruler's own kernels; ``blocked`` says why there is none."""
        environment = describe(self._job.device)
        kernels = Kernels()
        self._ruler.ramp(0.2)
        try:
            self._own_waits = trace(lambda: None).synchronizations
            own = {name: self._durations(launch) for name, launch in kernels.own.items()}
            spins = {ns: self._durations(launch) for ns, launch in kernels.spins.items()}
        except Exception as error:  # whatever the profiler raises, the run goes on without it
            return AuditReady(environment, {}, {}, f"CUPTI cannot be used: {first_line(error)}")
        if not own["null"]:
            return AuditReady(environment, {}, {}, BLOCKED)
        return AuditReady(environment, own, spins, None)

    def close(self) -> None:
        pass

    def group(self, task: Task) -> Iterator[Begin | Audited]:
        operator, point = self._catalog.operators[task.operator], Point(task.axes)
        inputs = operator.make_inputs(point, self._job.seed)
        for variant in (self._catalog.find(task.operator, name) for name in task.variants):
            yield Begin(variant.name, "audit")
            try:
                yield self._audit(operator, point, variant, inputs)
            except Exception as error:  # a variant may raise anything
                yield Audited(variant.name, rejection=("failed", f"in the second process, under CUPTI: {first_line(error)}"))

    def _audit(self, operator: Operator, point: Point, variant: Variant, inputs: Any) -> Audited:
        given, out = Guard(inputs, self._job.device), Guard(operator.make_outputs(point), self._job.device)
        staged = {name: buffer.tensor.clone() for name, buffer in given.buffers.items()}
        launch = variant.setup(point, given.view, out.view)
        for _ in range(WARMUP_CALLS):
            launch()
        made, kept_bytes = allocations(launch)
        eager = trace(lambda: [launch() for _ in range(CALLS)])
        waits = max((eager.synchronizations - self._own_waits + CALLS - 1) // CALLS, sync_warnings(launch))
        memcpys = Counter(one.direction for one in eager.operations if one.direction)
        rewrite = lambda: [buffer.tensor.data.copy_(staged[name]) for name, buffer in given.buffers.items()]  # noqa: E731
        try:
            replays = self._replays(launch, rewrite)
        except Exception:  # that it cannot be captured is a finding, which the timing process has made already
            replays = []
        counts = {
            "cupti_us": [round(sum(one.us for one in replay) / self._copies, 4) for replay in replays],
            "cupti_launches": len(replays[0]) // self._copies if replays else None,
            "eager_launches": len(eager.operations) // CALLS,
            "allocations": made,
            "synchronizations": waits,
            "memcpys": {direction: -(-count // CALLS) for direction, count in sorted(memcpys.items())},
        }
        return Audited(variant.name, counts, self._verdict(variant, counts, eager.operations, replays, kept_bytes))

    def _verdict(
        self, variant: Variant, counts: dict[str, Any], eager: list[Operation], replays: list[list[Operation]], kept_bytes: int
    ) -> tuple[str, str] | None:
        """(status, reason) where the launch breaks a promise it has not waived, or does another work in a graph."""
        broken = None
        if kept_bytes > 0:
            broken = f"no_alloc: every launch keeps {kept_bytes} bytes of device memory more; allocate in set-up"
        elif counts["allocations"] and "no_alloc" not in variant.waives:
            broken = f"no_alloc: {counts['allocations']} allocations in a launch; allocate in set-up, or declare waives=\"no_alloc\""
        elif counts["synchronizations"] and "no_sync" not in variant.waives:
            broken = f"no_sync: a launch waits {counts['synchronizations']} times for the device; or declare waives=\"no_sync\""
        elif eager and len(eager) % CALLS:
            broken = f"same_work: {CALLS} calls run {len(eager)} operations, so they do not all do the same"
        elif any(_work(replay) != _work(replays[0]) for replay in replays):
            broken = "same_work: replays of one graph run different kernels"
        elif replays and _share(_work(replays[0]), self._copies) != _share(_work(eager), CALLS):
            only = set(_work(eager)) ^ set(_work(replays[0]))
            broken = (
                f"same_work: {counts['cupti_launches']} operations in a graph, {counts['eager_launches']} outside of it"
                f"{'; only on one side: ' + sorted(only)[0][:80] if only else ''}"
            )
        return ("mismatch", broken) if broken else None

    def _durations(self, launch: Callable[[], Any]) -> list[float]:
        launch()
        return [round(sum(one.us for one in replay) / self._copies, 4) for replay in self._replays(launch, lambda: None)]

    def _replays(self, launch: Callable[[], Any], rewrite_inputs: Callable[[], Any]) -> list[list[Operation]]:
        """What each replay of the graphs of ``_copies`` calls ran, in the run's cache state."""
        try:
            graphs = [self._captured(launch)]
            nodes = sum(graphs[0].nodes.values())
            graphs += [self._captured(launch) for _ in range(min(GRAPHS, max(FEWEST_GRAPHS, NODES // max(nodes, 1))) - 1)]
        except Exception:
            torch.cuda.synchronize()
            self._ruler.renew_pool()
            raise
        for graph in graphs:
            graph.replay()

        def work() -> None:
            for graph in graphs:
                self._ruler.cache.prepare(rewrite_inputs)
                self._begins()
                graph.replay()
                self._ends()

        spans: list[list[Operation]] = []
        inside = False
        for one in trace(work).operations:
            if one.name == "span_begins":
                spans.append([])
            inside = one.name != "span_ends" and (inside or one.name == "span_begins")
            if inside and one.name != "span_begins":
                spans[-1].append(one)
        return [span for span in spans if span]

    def _captured(self, launch: Callable[[], Any]) -> Graph:
        return Graph(launch, self._copies, self._ruler.pool, self._ruler.stream)


def _work(operations: list[Operation]) -> Counter[str]:
    return Counter(one.name for one in operations)


def _share(work: Counter[str], calls: int) -> dict[str, float]:
    """Operations of one call."""
    return {name: count / calls for name, count in work.items()}
