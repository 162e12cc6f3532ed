"""`bench.py verify`: every variant on hard points, sequences and the points of a sweep; every historic defect
rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from harness.config.sweep import Group
from harness.contract import Variant
from harness.discover import Catalog, unavailable
from harness.records.schema import Cell, sources_compile
from harness.report.console import print_checks, print_compiled, print_counts, print_rows, progress_bar
from harness.runner.protocol import CheckRequest, Job
from harness.runner.run import Runner
from harness.runner.worker import WorkerDied
from harness.verify.hard_points import Finding, nothing_checked, outcomes

#: Columns from which on the table of defects has room for the words of the rejection.
WIDE = 140
#: A name is folded from here on.
NAME_WIDTH = 32

#: Variant id -> what its proof found; a variant that is unavailable here has none.
Findings = Mapping[str, Sequence[Finding]]


def verify_all(console: Console, job: Job, catalog: Catalog, groups: Sequence[Group]) -> bool:
    """Print what was checked; True where a healthy variant was rejected or a defect was not."""
    healthy = list(dict.fromkeys(variant for group in groups for variant in group.variants))
    defects = _defects(catalog, {variant.operator for variant in healthy})
    cells: list[Cell] = []
    steps = len(healthy) + len(defects)
    with (
        progress_bar(console, steps + sum(len(group.variants) for group in groups)) as update,
        _closed(Runner(job, cells.append, lambda p: update(steps + p.done, p.doing))) as runner,
    ):
        findings = _prove_each(runner, [*healthy, *defects], job, update)
        runner.run(groups)
    _print_seed(console, job)
    rows = [
        _summary(v, findings.get(v.id), [c for c in cells if (c.operator, c.variant) == (v.operator, v.name)], job)
        for v in healthy
    ]
    print_rows(console, ("variant", "hard points and sequences", "points of the sweep"), rows)
    _print_checks(console, healthy, findings, job)
    if defects:
        _print_defects(console, defects, findings, job)
    console.print()
    print_compiled(console, runner.ready.compiled)
    print_counts(console, cells)
    _print_rejections(console, healthy, findings)
    slipped = _print_slipped(console, defects, findings)
    broken_source = not sources_compile(runner.ready.compiled)
    rejected = any(_bad(findings[v.id]) or nothing_checked(findings[v.id]) for v in healthy if v.id in findings)
    return slipped or rejected or broken_source or any(cell.status.is_bad for cell in cells)


def verify_defects(console: Console, job: Job, catalog: Catalog, operators: Collection[str]) -> bool:
    """The mutation table: every historic defect of the operators with the check that rejected it; True where one
    slipped.
    """
    defects = _defects(catalog, operators)
    with (
        progress_bar(console, len(defects)) as update,
        _closed(Runner(job, lambda line: None, lambda progress: None)) as runner,
    ):
        findings = _prove_each(runner, defects, job, update)
    _print_seed(console, job)
    _print_defects(console, defects, findings, job)
    console.print()
    slipped = _print_slipped(console, defects, findings)
    run = [findings[v.id] for v in defects if v.id in findings]
    unrun = len(defects) - len(run)
    rejected = sum(_rejected(found) is not None for found in run)
    console.print(
        Text(f"{rejected} of {len(run)} rejected" + (f", {unrun} unavailable on this machine" if unrun else ""))
    )
    return slipped


def _defects(catalog: Catalog, operators: Collection[str]) -> list[Variant]:
    return [
        v
        for operator in catalog.operators
        for v in catalog.of(operator)
        if v.defect is not None and operator in operators
    ]


@contextmanager
def _closed(runner: Runner) -> Iterator[Runner]:
    try:
        yield runner
    except KeyboardInterrupt:
        runner.close(wait_s=0)
        raise
    runner.close()


def _prove_each(runner: Runner, variants: Sequence[Variant], job: Job, update) -> dict[str, list[Finding]]:
    findings = {}
    for i, variant in enumerate(variants):
        update(i, variant.id)
        if unavailable(variant, job.device) is None:
            findings[variant.id] = _prove(runner, variant)
    return findings


def _prove(runner: Runner, variant: Variant) -> list[Finding]:
    try:
        return runner.ask(CheckRequest(variant.operator, variant.name))
    except WorkerDied as death:
        return [Finding("process", "rejected", "survival", str(death))]


def _bad(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.outcome in ("rejected", "failed")]


def _rejected(findings: Sequence[Finding]) -> Finding | None:
    """The first finding of a check. What merely raised was not caught by one."""
    return next((finding for finding in findings if finding.outcome == "rejected"), None)


def _counted(outcomes: Sequence[str]) -> str:
    counts = {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)}
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def _summary(
    variant: Variant, findings: Sequence[Finding] | None, cells: Sequence[Cell], job: Job
) -> tuple[str, str, str]:
    if findings is None:
        return variant.id, f"unavailable: {unavailable(variant, job.device)}", ""
    return variant.id, _counted([f.outcome for f in findings]), _counted([c.status for c in cells])


def _print_seed(console: Console, job: Job) -> None:
    console.print(Text(f"seed {job.seed}, device {job.device}"))


def _print_checks(console: Console, healthy: Sequence[Variant], findings: Findings, job: Job) -> None:
    """A column for each contract, an operator at a time: what all hard points and sequences together say of it."""
    for operator in dict.fromkeys(variant.operator for variant in healthy):
        mine = [variant for variant in healthy if variant.operator == operator]
        console.print(Text(f"\n{operator}", style="bold"))
        told = {v.name: outcomes(v, findings.get(v.id, ()), job.device) for v in mine}
        print_checks(console, "variant", told, first=_longest_name(mine))


def _print_defects(console: Console, defects: Sequence[Variant], findings: Findings, job: Job) -> None:
    head = ("historic defect", "rejected by", "first seen at", "as told there")
    shown = len(head) if console.width >= WIDE else len(head) - 1
    for operator in dict.fromkeys(variant.operator for variant in defects):
        rows = [_fate(v, findings.get(v.id), job)[:shown] for v in defects if v.operator == operator]
        console.print(Text(f"\n{operator}", style="bold"))
        print_rows(console, head[:shown], rows, first=_longest_name(defects))


def _longest_name(variants: Sequence[Variant]) -> int:
    return min(max(len(variant.name) for variant in variants), NAME_WIDTH)


def _fate(variant: Variant, findings: Sequence[Finding] | None, job: Job) -> tuple[str, str, str, str]:
    name = f"{variant.name}\n{variant.defect}"
    if findings is None:
        return name, "unavailable", unavailable(variant, job.device), ""
    first = _rejected(findings)
    if first is None:
        return name, "NOTHING", "", ""
    checks = dict.fromkeys(str(finding.check) for finding in findings if finding.outcome == "rejected")
    # The first wrong place of up to five is enough here.
    return name, ", ".join(checks), first.name, ";".join(first.message.split(";")[:2])


def _print_slipped(console: Console, defects: Sequence[Variant], findings: Findings) -> bool:
    """Name every defect that no check rejected; True where there is one."""
    slipped = [v for v in defects if v.id in findings and _rejected(findings[v.id]) is None]
    for variant in slipped:
        raised = _bad(findings[variant.id])
        how = (
            f"raised at {raised[0].name!r} instead of being rejected: {raised[0].message}"
            if raised
            else "passed every check"
        )
        console.print(Text(f"{variant.id}: a known defect {how}", style="red"))
    return bool(slipped)


def _print_rejections(console: Console, healthy: Sequence[Variant], findings: Findings) -> None:
    for variant in healthy:
        for finding in _bad(findings.get(variant.id, [])):
            console.print(Text(f"{variant.id} at hard point {finding.name!r}: {finding.message}", style="red"))
