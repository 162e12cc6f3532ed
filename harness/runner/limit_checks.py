"""Runs a variant where it declares that it does not hold (``limits=``), in a worker process of its own.

What a wrapped kernel does there may end the process or lose the CUDA context, so each of these points gets a process
that nothing else depends on; it is replaced where it dies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.contract import Operator, Variant
from harness.discover import unavailable
from harness.runner.protocol import CheckRequest, Job
from harness.runner.supervised_worker import SupervisedWorker
from harness.runner.worker import Worker, WorkerDied
from harness.verify.hard_points import Finding, judged_limit, limited_names


class LimitChecks:
    """The findings where variants declare limits, each variant once."""

    def __init__(self, job: Job, start: Callable[[Job], Worker]) -> None:
        self._job = replace(job, timed=False, role="evaluate", compiled=(), verified=False)
        self._start = start
        self._known: dict[str, list[Finding]] = {}

    def findings(self, operator: Operator, variant: Variant) -> list[Finding]:
        """A finding for each hard point and sequence with a limit: "limited" where the variant fails as declared,
        "failed" where it passes after all. None where the variant is unavailable. Raises RunError.
        """
        if variant.id not in self._known:
            names = limited_names(operator, variant) if unavailable(variant, self._job.device) is None else []
            self._known[variant.id] = self._ask(variant, names) if names else []
        return self._known[variant.id]

    def wrong_limit(self, operator: Operator, variant: Variant) -> str | None:
        """Why the declaration is wrong; None where it is right, or there is none."""
        wrong = [finding for finding in self.findings(operator, variant) if finding.outcome == "failed"]
        return f"limits: hard point {wrong[0].name!r} {wrong[0].message}" if wrong else None

    def _ask(self, variant: Variant, names: list[str]) -> list[Finding]:
        worker = SupervisedWorker(self._job, self._start)
        found = []
        try:
            for name in names:
                worker.started()
                try:
                    finding = _worst(
                        name, list(worker.ask(CheckRequest(variant.operator, variant.name, name, only=True)))
                    )
                except WorkerDied as death:
                    finding = Finding(name, "rejected", "no_crash", str(death))
                    worker.restart()
                found.append(judged_limit(variant, name, finding))
        finally:
            worker.close(wait_s=5.0)
        return found


def _worst(name: str, findings: list[Finding]) -> Finding:
    """The one that fails, of several; with far rows there is one for each input, and none where memory is short."""
    failing = [finding for finding in findings if finding.outcome in ("rejected", "failed")]
    return next(iter([*failing, *findings]), Finding(name, "skipped", message="too little memory"))
