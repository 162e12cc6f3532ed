"""The process that is profiled: prepare every cell, then run them all between cudaProfilerStart and cudaProfilerStop.

Nothing is timed or compared in between. Each call is waited for, so that its operations lie in its own range:

    KEY [eager]                       KEY [graph]
      KEY [call]  launch, wait          KEY [call]  replay, wait
      KEY [call]  launch, wait          ...
"""

from __future__ import annotations

import contextlib
import datetime
import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spec_decode_bench.harness import interpreter
from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.config.work_items import Task
from spec_decode_bench.harness.contract import Operator, Point, Variant
from spec_decode_bench.harness.discover import Catalog, unavailable
from spec_decode_bench.harness.errors import first_line
from spec_decode_bench.harness.nvtx_ranges import is_listened_to, nvtx_range, version
from spec_decode_bench.harness.records.sentences import of_reason
from spec_decode_bench.harness.timing.environment import describe
from spec_decode_bench.harness.verify.edge_cases import reason_to_skip
from spec_decode_bench.harness.verify.fixture import Fixture, synchronize, verify_cell
from spec_decode_bench.profiler.records import PROFILE_VERSION, ProfiledCell, Session
from spec_decode_bench.profiler.trace import CALL

#: Calls before the profiled part: compilation, allocation, upload of the graph.
WARMUP_CALLS = 3
#: Seconds of full load before the profiled part.
RAMP_S = 0.5


@dataclass
class _Prepared:
    """fixture: holds the buffers on which launch and replay work. replay: None without a graph."""

    cell: ProfiledCell
    payload: dict[str, Any]
    fixture: Fixture
    launch: Callable[[], Any]
    replay: Callable[[], None] | None


class Workload:
    """Cells that are ready to run. device: "cuda" or "cpu". phases: which of PHASES to run.

    left_out: key -> why the cell does not run here. failed: key -> why it should have, but could not.
    """

    def __init__(
        self, items: Sequence[Task], catalog: Catalog, device: str, seed: int, phases: Collection[str]
    ) -> None:
        self._catalog, self._device, self._phases = catalog, device, phases
        self._interpreter = interpreter.launch_counter()
        self._timer = None
        if device == "cuda":
            from spec_decode_bench.harness.timing.cuda_timer import CudaTimer

            self._timer = CudaTimer((1,))
        torch.set_num_threads(1)  # as in a worker
        self._prepared: list[_Prepared] = []
        self.left_out: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        for item in items:
            self._prepare(item, seed)

    @property
    def cells(self) -> list[ProfiledCell]:
        return [prepared.cell for prepared in self._prepared]

    def _prepare(self, item: Task, seed: int) -> None:
        fixture: Fixture | None = None
        operator, point = self._catalog.operators[item.operator], Point(item.axes)
        redundant = reason_to_skip(operator, point)
        for variant in (self._catalog.find(item.operator, name) for name in item.variants):
            key = item.key(variant.name)
            reason = unavailable(variant, self._device) or redundant or reason_to_skip(variant, point)
            if reason:
                self.left_out[key] = of_reason(reason)
                continue
            try:
                fixture = fixture or Fixture(operator, point, self._device, seed, batches=2)
                before = self._interpreter.launches
                launch = verify_cell(fixture, variant, once=True)
                if self._interpreter.launches > before:
                    self.left_out[key] = "needs a GPU: times under Triton's interpreter are meaningless"
                    continue
                self._prepared.append(self._ready(item, operator, variant, fixture, launch))
            except Mismatch as mismatch:
                self.failed[key] = f"mismatch: {mismatch}"
            except torch.cuda.OutOfMemoryError:
                self.failed[key] = "out of device memory, which earlier cells still hold; choose fewer with --only"
            except Exception as error:  # a variant may raise anything
                self.failed[key] = first_line(error)
        if fixture is not None:
            fixture.release()

    def _ready(
        self, item: Task, operator: Operator, variant: Variant, fixture: Fixture, launch: Callable[[], Any]
    ) -> _Prepared:
        for _ in range(WARMUP_CALLS):
            launch()
        synchronize(self._device)
        replay, no_graph = None, None
        if self._timer is None:
            no_graph = "CUDA graphs need a GPU"
        elif "graph" in self._phases:
            try:
                replay = self._timer.recorder(launch)
                replay()
                synchronize(self._device)
            except Exception as error:  # whatever the reason, the launch cannot be captured
                no_graph = first_line(error)
        cell = ProfiledCell(
            key=item.key(variant.name),
            operator=item.operator,
            variant=variant.name,
            point=item.point,
            axes=item.axes,
            baseline=operator.baseline,
            bytes_moved=fixture.bytes_moved,
            no_graph=no_graph,
        )
        return _Prepared(cell, operator.values(Point(item.axes)), fixture, launch, replay)

    def run(
        self,
        calls: int,
        range_of: Callable[..., AbstractContextManager] = nvtx_range,
        recorded: Callable[[], AbstractContextManager] | None = None,
    ) -> None:
        """All cells in all phases, ``calls`` calls each.

        range_of: (name, phase, axes) -> a range that can be entered several times.
        recorded: makes the context in which a profiler records; by default the one for tools with a capture range.
        """
        work = [
            (prepared.cell.key, phase, prepared.payload, run)
            for prepared in self._prepared
            for phase, run in (("eager", prepared.launch), ("graph", prepared.replay))
            if phase in self._phases and run is not None
        ]
        if self._timer is not None:
            self._timer.ramp(RAMP_S)
        wait = torch.cuda.synchronize if self._device == "cuda" else lambda: None
        wait()
        gc.collect()
        gc.disable()
        try:
            with recorded() if recorded else _capture_range(self._device):
                # Made in here, so that names and categories are registered while the profiler records.
                ranges = [(range_of(key, phase, axes), range_of(key, CALL), run) for key, phase, axes, run in work]
                for (key, *_), (around, call, run) in zip(work, ranges, strict=True):
                    try:
                        with around:
                            for _ in range(calls):
                                with call:
                                    run()
                                    wait()
                    except Exception as error:  # a variant may raise anything
                        self.failed[key] = first_line(error)
        finally:
            gc.enable()


@contextmanager
def _capture_range(device: str) -> Iterator[None]:
    """What a profiler with --capture-range=cudaProfilerApi records."""
    if device != "cuda":
        yield
        return
    torch.cuda.profiler.start()
    try:
        yield
    finally:
        torch.cuda.profiler.stop()


class _Annotations:
    """Annotations of torch.profiler in place of NVTX ranges. They have no category, so a phase is one of its own."""

    def __init__(self, name: str, phase: str, axes: Any = None) -> None:
        self._names = [CALL] if phase == CALL else [name, phase]
        self._open: list[contextlib.ExitStack] = []

    def __enter__(self) -> None:
        stack = contextlib.ExitStack()
        for name in self._names:
            stack.enter_context(torch.profiler.record_function(name))
        self._open.append(stack)

    def __exit__(self, *error: Any) -> None:
        self._open.pop().__exit__(*error)


def run_traced(workload: Workload, calls: int, path: Path) -> None:
    """``run`` under torch.profiler; its Chrome trace goes to ``path``. Raises OSError."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities, acc_events=True)
    workload.run(calls, _Annotations, lambda: profiler)
    profiler.export_chrome_trace(str(path))


def session_of(
    workload: Workload,
    name: str,
    command: str,
    seed: int,
    calls: int,
    device: str,
    sources: dict[str, str],
) -> Session:
    """What ran."""
    listened = "a tool listens" if is_listened_to() else "no tool listens"
    return Session(
        version=PROFILE_VERSION,
        name=name,
        command=command,
        started=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}",
        seed=seed,
        calls=calls,
        environment=describe(device),
        sources=sources,
        cells=workload.cells,
        left_out=workload.left_out,
        failed=workload.failed,
        nvtx=f"nvtx {version()}, {listened}",
    )
