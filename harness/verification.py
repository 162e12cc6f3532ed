"""`bench.py verify`: every variant on hard points, sequences and the points of a sweep; every historic defect rejected."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from harness.console import print_compiled, print_counts, print_rows, progress_bar
from harness.contract import Variant
from harness.discover import Catalog, unavailable
from harness.proof import Finding, proved_nothing
from harness.protocol import Job, Proof
from harness.records import Cell, sources_compile
from harness.run import Runner
from harness.sweep import Group
from harness.worker import WorkerDied


def verify_all(console: Console, job: Job, catalog: Catalog, groups: Sequence[Group]) -> bool:
    """Print what was checked; True where a healthy variant was rejected or a defect was not."""
    healthy = list(dict.fromkeys(variant for group in groups for variant in group.variants))
    operators = {variant.operator for variant in healthy}
    defects = [v for v in catalog.variants if v.defect is not None and v.operator in operators]
    cells: list[Cell] = []
    findings: dict[str, list[Finding]] = {}
    steps = len(healthy) + len(defects)
    with progress_bar(console, steps + sum(len(group.variants) for group in groups)) as update:
        runner = Runner(job, cells.append, lambda p: update(steps + p.done, p.doing))
        try:
            for i, variant in enumerate([*healthy, *defects]):
                update(i, variant.id)
                if unavailable(variant, job.device) is None:
                    findings[variant.id] = _prove(runner, variant)
            runner.run(groups)
        except KeyboardInterrupt:
            runner.close(wait_s=0)
            raise
        runner.close()
    console.print(Text(f"seed {job.seed}, device {job.device}"))
    rows = [_summary(v, findings.get(v.id), [c for c in cells if (c.operator, c.variant) == (v.operator, v.name)], job) for v in healthy]
    print_rows(console, ("variant", "hard points and sequences", "points of the sweep"), rows)
    if defects:
        console.print()
        print_rows(console, ("historic defect", "rejected by", "first seen at"), [_rejection(v, findings.get(v.id), job) for v in defects])
    console.print()
    print_compiled(console, runner.ready.compiled)
    print_counts(console, cells)
    _print_rejections(console, healthy, findings)
    slipped = [v.id for v in defects if v.id in findings and not _bad(findings[v.id])]
    for name in slipped:
        console.print(Text(f"{name}: a known defect passed every check", style="red"))
    broken_source = not sources_compile(runner.ready.compiled)
    rejected = any(_bad(findings[v.id]) or proved_nothing(findings[v.id]) for v in healthy if v.id in findings)
    return bool(slipped) or rejected or broken_source or any(cell.status in ("mismatch", "failed") for cell in cells)


def _prove(runner: Runner, variant: Variant) -> list[Finding]:
    try:
        return runner.ask(Proof(variant.operator, variant.name))
    except WorkerDied as death:
        return [Finding("process", "failed", "survival", str(death))]


def _bad(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.outcome in ("rejected", "failed")]


def _counted(outcomes: Sequence[str]) -> str:
    counts = {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)}
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def _summary(variant: Variant, findings: Sequence[Finding] | None, cells: Sequence[Cell], job: Job) -> tuple[str, str, str]:
    if findings is None:
        return variant.id, f"unavailable: {unavailable(variant, job.device)}", ""
    return variant.id, _counted([f.outcome for f in findings]), _counted([c.status for c in cells])


def _rejection(variant: Variant, findings: Sequence[Finding] | None, job: Job) -> tuple[str, str, str]:
    name = f"{variant.id}: {variant.defect}"
    if findings is None:
        return name, f"unavailable: {unavailable(variant, job.device)}", ""
    bad = _bad(findings)
    if not bad:
        return name, "NOTHING", ""
    return name, ", ".join(dict.fromkeys(str(finding.check) for finding in bad)), bad[0].name


def _print_rejections(console: Console, healthy: Sequence[Variant], findings: dict[str, list[Finding]]) -> None:
    for variant in healthy:
        for finding in _bad(findings.get(variant.id, [])):
            console.print(Text(f"{variant.id} at hard point {finding.name!r}: {finding.message}", style="red"))
