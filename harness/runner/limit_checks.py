"""Runs a variant at its declared limits (``limits=``), in a worker process of its own.

What an engine's kernel does there may end the process or lose the CUDA context, so each of these points gets a process
that nothing else depends on; it is replaced where it dies.
"""

from __future__ import annotations

from dataclasses import replace

from harness.contract import Operator, Variant
from harness.discover import unavailable
from harness.runner.protocol import CheckRequest, Job
from harness.runner.supervised_worker import SupervisedWorker
from harness.runner.worker import Worker, WorkerDied
from harness.verify.hard_points import Finding, judged_limit, limited_names


def check_limits(job: Job, operator: Operator, variant: Variant) -> list[Finding]:
    """Run a variant at each hard point and sequence with a declared limit; a finding with outcome "limited" for each.
    Empty where the variant is unavailable or declares no limits. Raises RunError.
    """
    names = limited_names(operator, variant) if unavailable(variant, job.device) is None else []
    if not names:
        return []
    worker = SupervisedWorker(replace(job, timed=False, role="evaluate", compiled=(), verified=False), Worker)
    found = []
    try:
        for name in names:
            worker.started()
            try:
                answers = list(worker.ask(CheckRequest(variant.operator, variant.name, name, only=True)))
                finding = _worst(name, answers)
            except WorkerDied as death:
                finding = Finding(name, "rejected", "no_crash", str(death))
                worker.restart()
            found.append(judged_limit(finding))
    finally:
        worker.close(wait_s=5.0)
    return found


def _worst(name: str, findings: list[Finding]) -> Finding:
    """The finding that fails, else the first. Far rows have a finding for each input, or none where memory is short."""
    failing = [finding for finding in findings if finding.outcome in ("rejected", "failed")]
    return next(iter([*failing, *findings]), Finding(name, "skipped", message="too little memory"))
