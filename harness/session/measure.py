"""The life of a cell."""

from __future__ import annotations

from collections.abc import Iterator

from spec_decode_bench.harness.config.work_items import Task
from spec_decode_bench.harness.records.schema import Cell
from spec_decode_bench.harness.session.evaluators import Auditors, Evaluators


def measure(task: Task, worker: Evaluators, auditor: Auditors | None) -> Iterator[Cell]:
    """Verify the variants of a point, time those that passed in turns, audit what they launch.

    Each answer is one value. A variant that ends a process has that for its finding, and the others are asked again.
    """
    if auditor:
        auditor.prepare_for(task)  # compiles meanwhile
    checked = {name: worker.verify(task, name) for name in task.variants}
    if auditor:
        auditor.finish(any(one.finding.status.is_bad for one in checked.values()))
    timed = worker.time(task.of([name for name in task.variants if checked[name].is_to_be_timed]))
    for name in task.variants:
        times = timed.get(name)
        audited = auditor.audit(task, times) if auditor and times and times.metrics else None
        yield task.cell(checked[name], times, audited)
