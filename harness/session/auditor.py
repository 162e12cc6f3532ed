"""The auditor: examines each timed cell again under CUPTI.

It measures the durations of a launch's kernels, and counts launches, allocations, synchronizations and copies. The
session joins its results to the times of the evaluator. It has its own process because attaching CUPTI slows down
launches on the host until the process ends.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any

from msgspec import structs

from spec_decode_bench.harness.analysis.cache_states import HOT
from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.config.work_items import Result, Task
from spec_decode_bench.harness.contract import Point, Variant
from spec_decode_bench.harness.cuda import launcher
from spec_decode_bench.harness.cuda_graph import Graph
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.engine_launch import own_launches
from spec_decode_bench.harness.errors import UsageError, first_line
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.schema import Metrics
from spec_decode_bench.harness.session.messages import AuditReady, Heartbeat, Job, Loaded
from spec_decode_bench.harness.session.sampling import is_context_lost
from spec_decode_bench.harness.timing.cache import CALIBRATION_KERNELS
from spec_decode_bench.harness.timing.calibrate import Kernels
from spec_decode_bench.harness.timing.cuda_timer import CudaTimer
from spec_decode_bench.harness.timing.cupti import Operation, trace
from spec_decode_bench.harness.timing.rounds import SAMPLE_DECIMALS
from spec_decode_bench.harness.verify.alloc_sync_checks import check_allocations, sync_warnings
from spec_decode_bench.harness.verify.edge_cases import wrong
from spec_decode_bench.harness.verify.fixture import Fixture
from spec_decode_bench.harness.verify.process_state import ProcessState

#: Graphs that are traced (one replay each), eager calls that are traced, and calls before both. Many graphs, because
#: two graphs of the same launch differ in time, while two replays of one graph hardly do.
GRAPHS, CALLS, WARMUP_CALLS = 8, 5, 3
#: Sets of buffers on which they work, unless these are large.
PLACEMENTS = 4
#: For a long chain, whose launches average among themselves, there are fewer graphs: of about MAX_NODES nodes together.
MAX_NODES, MIN_GRAPHS = 600, 4
#: Calls in a traced graph, back to back as in the graphs of the timer. In a cache state other than hot it is one call,
#: since only the first would find that state.
COPIES = 4
#: Seconds of full load before the first trace.
RAMP_S = 0.05
BLOCKED = "CUPTI returns no data: another profiler is using it, or the driver denies this user access"


class Auditor:
    """Owns the device in the second process. It times nothing by a clock.

    tell, lost: as of Evaluator.
    """

    tell: Callable[[Heartbeat], None] = staticmethod(lambda event: None)
    lost = False

    def __init__(self, job: Job) -> None:
        self._job = job
        self._discover(job.variant_files)
        self._own_waits = 0
        #: The last one, whose buffers its variants share.
        self._task: Task | None = None
        self._buffer_sets: list[Fixture] = []

    def _discover(self, files: Sequence[str]) -> None:
        settings = ProcessState("cpu")  # the first process has reported what an import changes; here it is only undone
        self._catalog = discover(files, operators=self._job.operators)
        settings.restore()

    def load(self, files: tuple[str, ...]) -> Loaded:
        """Import further files of --variants, once; the first process says what is wrong with them."""
        sys.dont_write_bytecode = True
        with suppress(UsageError):
            self._discover(files)
        return Loaded()

    def bring_up(self) -> None:
        """Up to the first trace, at which CUPTI is attached."""
        self._timer = CudaTimer(self._job.measure.graph_copies, self._job.measure.cache)
        self._begins, self._ends = (launcher(CALIBRATION_KERNELS, name, 1, 1) for name in ("span_begins", "span_ends"))
        self._copies = COPIES if self._timer.cache.state is HOT else 1
        self._kernels: Kernels | None = Kernels()
        with suppress(Exception):  # ``ready`` says why
            trace(self._kernels.own["null"][0])
            self._own_waits = trace(lambda: None).synchronizations

    def ready(self, timed: bool = True) -> AuditReady:
        """CUPTI's times of the calibration kernels, or why there are none."""
        kernels, self._kernels = self._kernels, None
        self._timer.ramp(RAMP_S)
        try:
            own = {name: self._kernel_samples(launches) for name, launches in kernels.own.items()}
            spins = {ns: self._kernel_samples([launch]) for ns, launch in kernels.spins.items()}
        except Exception as error:  # whatever the profiler raises, the run goes on without it
            return AuditReady({}, {}, f"CUPTI cannot be used: {first_line(error)}")
        if not own["null"]:
            return AuditReady({}, {}, BLOCKED)
        return AuditReady(own, spins, None)

    def close(self) -> None:
        pass

    def _place(self, task: Task) -> None:
        """Buffers for the variants of a point."""
        if self._task is None or self._task.key("") != task.key(""):
            self._task, self._buffer_sets = None, []
            operator, point = self._catalog.operators[task.operator], Point(task.axes)
            first = Fixture(operator, point, self._job.device, self._job.seed, batches=1, placement=0)
            self._task, self._buffer_sets = task, first.buffer_sets(PLACEMENTS)

    def audit(self, task: Task, timed: Result) -> list[Result]:
        """Of a variant at a point."""
        variant = self._catalog.find(task.operator, timed.variant)
        self.tell(Heartbeat((variant.name,)))
        try:
            self._place(task)
            return [structs.replace(timed, metrics=self._examined(self._buffer_sets, variant, timed.metrics))]
        except Exception as error:  # a variant may raise anything
            self.lost = is_context_lost(self._job.device)
            finding = structs.replace(wrong(task.where, error), when="audit")
            return [structs.replace(timed, finding=finding, metrics=None)]

    def _examined(self, buffer_sets: list[Fixture], variant: Variant, timed: Metrics) -> Metrics:
        """With counts and CUPTI's samples. Raises Mismatch where the launch fails a check that it does not waive, or
        does different work in a graph.
        """
        launches = []
        for buffers in buffer_sets:
            buffers.fill(0)
            launches.append(buffers.setup(variant))
            for _ in range(WARMUP_CALLS):
                launches[-1]()
        launch = launches[0]
        allocations = check_allocations(variant, launch)
        eager = trace(lambda: [launch() for _ in range(CALLS)])
        waits = max((eager.synchronizations - self._own_waits + CALLS - 1) // CALLS, sync_warnings(launch))
        if waits and "no_sync" not in variant.waives:
            seen = f"a launch waits for the device {counted(waits, 'time')}"
            raise Mismatch("no_sync", f'{seen}; remove the waits, or declare waives="no_sync"')
        memcpys = Counter(operation.direction for operation in eager.operations if operation.direction)
        try:
            graphs = self._graphs(launches)
        except Exception:  # it cannot be captured, which the first process has recorded
            graphs = []
        replays = self._replays(graphs, [buffers.rewrite_inputs for buffers in buffer_sets])
        self._check_same_work(eager.operations, replays)
        found = structs.replace(
            timed,
            cupti_us=self._samples(replays),
            cupti_launches=len(replays[0]) // self._copies if replays else None,
            eager_launches=len(eager.operations) // CALLS,
            allocations=allocations,
            synchronizations=waits,
            memcpys={direction: -(-count // CALLS) for direction, count in sorted(memcpys.items())},
        )
        return self._without_own(found, launches, buffer_sets)

    def _without_own(
        self, found: Metrics, launches: Sequence[Callable[[], Any]], buffer_sets: Sequence[Fixture]
    ) -> Metrics:
        """What was found, less the suite's own launches beside an engine's."""
        own = [own_launches(launch) for launch in launches]
        if None in own:
            return found
        if not (operations := trace(own[0]).operations):
            return found
        copies = Counter(operation.direction for operation in operations if operation.direction)
        found = structs.replace(
            found,
            eager_launches=found.eager_launches - len(operations),
            memcpys=dict(Counter(found.memcpys) - copies),
        )
        if found.cupti_launches is None:
            return found
        replays = self._replays(self._graphs(own), [buffers.rewrite_inputs for buffers in buffer_sets])
        pairs = zip(found.cupti_us, cycle(self._samples(replays)))
        return structs.replace(
            found,
            cupti_launches=found.cupti_launches - len(replays[0]) // self._copies,
            cupti_us=[round(us - own_us, SAMPLE_DECIMALS) for us, own_us in pairs],
        )

    def _check_same_work(self, eager: list[Operation], replays: list[list[Operation]]) -> None:
        """Raise Mismatch unless calls do the same work every time, in a graph and outside of one.

        eager: operations of CALLS calls. replays: operations of each graph of ``_copies`` calls; empty where the launch
        cannot be captured.
        """
        if len(eager) % CALLS:
            raise Mismatch("same_work", f"{CALLS} calls ran {len(eager)} operations, so the calls do different work")
        if not replays:
            return
        outside, inside = _work(eager), _work(replays[0])
        if any(_work(replay) != inside for replay in replays):
            raise Mismatch("same_work", "replays of one graph ran different kernels")
        if _share(inside, self._copies) != _share(outside, CALLS):
            only = sorted(set(outside) ^ set(inside))
            raise Mismatch(
                "same_work",
                f"{len(replays[0]) // self._copies} operations in a graph, {len(eager) // CALLS} outside of it"
                f"{'; only on one side: ' + only[0][:80] if only else ''}",
            )

    def _kernel_samples(self, launches: Sequence[Callable[[], Any]]) -> list[float]:
        """Of a calibration kernel in several places, as KernelTimes.cupti_us."""
        for launch in launches:
            launch()
        return self._samples(self._replays(self._graphs(launches), [lambda: None]))

    def _samples(self, replays: list[list[Operation]]) -> list[float]:
        """Microseconds of one call, by CUPTI: one sample for each replay."""
        cupti_us = [sum(operation.us for operation in replay) / self._copies for replay in replays]
        return [round(us, SAMPLE_DECIMALS) for us in cupti_us]

    def _graphs(self, launches: Sequence[Callable[[], Any]]) -> list[Graph]:
        """Graphs of ``_copies`` calls of one launch on several sets of buffers in turns, replayed once to upload them.
        Raises whatever the capture raises.
        """
        capture, turns = self._timer.recorder.graph, cycle(launches)
        graphs = [capture(next(turns), self._copies)]
        nodes = sum(graphs[0].nodes.values())
        wanted = min(GRAPHS, max(MIN_GRAPHS, MAX_NODES // max(nodes, 1)))
        graphs += [capture(next(turns), self._copies) for _ in range(wanted - 1)]
        for graph in graphs:
            graph.replay()
        return graphs

    def _replays(self, graphs: list[Graph], rewrite_inputs: Sequence[Callable[[], Any]]) -> list[list[Operation]]:
        """Operations of one replay of each graph, in the run's cache state.

        rewrite_inputs: of each set of buffers, as in CudaTimer.
        """
        if not graphs:
            return []

        def work() -> None:
            for graph, rewrite in zip(graphs, cycle(rewrite_inputs)):
                if self._timer.cache.state is HOT:
                    graph.replay()  # the one before was on other buffers
                self._timer.cache.prepare(rewrite)
                self._begins()
                graph.replay()
                self._ends()

        spans: list[list[Operation]] = []
        inside = False
        for operation in trace(work).operations:
            if operation.name == "span_begins":
                spans.append([])
            inside = operation.name != "span_ends" and (inside or operation.name == "span_begins")
            if inside and operation.name != "span_begins":
                spans[-1].append(operation)
        return [span for span in spans if span]


def _work(operations: list[Operation]) -> Counter[str]:
    return Counter(operation.name for operation in operations)


def _share(work: Counter[str], calls: int) -> dict[str, float]:
    """Operations of one call."""
    return {name: count / calls for name, count in work.items()}
