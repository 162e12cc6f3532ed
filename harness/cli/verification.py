"""`bench.py verify`: every variant at hard points, in sequences and at the points of a sweep; every historic defect.

Healthy variants must pass, defects must be rejected. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from harness.config.sweep import Group
from harness.contract import Variant
from harness.discover import Catalog, unavailable
from harness.records.schema import Cell, Segment, sources_compile
from harness.report.console import print_checks, print_compiled, print_counts, print_rows, progress_bar
from harness.runner.protocol import CheckRequest, Job
from harness.runner.run import Runner
from harness.runner.worker import Worker, WorkerDied
from harness.verify.hard_points import Finding, check_results, is_unverified

#: Console width from which on the table of defects shows the message of the rejection.
WIDE = 140
#: Width from which on the name of a defect is folded.
NAME_WIDTH = 32

#: What the results of a check mean that say neither yes nor no.
LEGEND = {
    "waived": "the variant opts out of this check",
    "GPU": "tested on a GPU only",
    "CPU": "tested on a CPU only",
    "timed": "tested in timed runs only",
    "-": "no launch got this far",
}

#: Variant id -> its findings. A variant that is unavailable here has none.
Findings = Mapping[str, Sequence[Finding]]


def verify_all(
    console: Console,
    job: Job,
    catalog: Catalog,
    groups: Sequence[Group],
    start: Callable[[Job], Worker] | None = None,
) -> bool:
    """Verify the variants of a sweep and the defects of its operators, and print the results.

    Returns True where a healthy variant was rejected, a defect was not, or a CUDA source does not compile.
    """
    healthy = list(dict.fromkeys(variant for group in groups for variant in group.variants))
    defects = _defects(catalog, {variant.operator for variant in healthy})
    cells: list[Cell] = []

    def keep(line: Cell | Segment) -> None:
        if isinstance(line, Cell):  # a segment says that a worker was replaced
            cells.append(line)

    steps = len(healthy) + len(defects)
    with (
        progress_bar(console, steps + sum(len(group.variants) for group in groups)) as update,
        _closed(Runner(job, keep, lambda p: update(steps + p.done, p.doing), start)) as runner,
    ):
        findings = _check_all(runner, [*healthy, *defects], job, update)
        runner.run(groups)
    _print_seed(console, job)
    _print_summary(console, healthy, findings, cells, job)
    _print_checks(console, healthy, findings, job)
    if defects:
        _print_defects(console, defects, findings, job)
    console.print()
    print_compiled(console, runner.ready.compiled)
    print_counts(console, cells)
    _print_rejections(console, healthy, findings)
    accepted = _print_accepted_defects(console, defects, findings)
    rejected = any(_bad(findings[v.id]) or is_unverified(findings[v.id]) for v in healthy if v.id in findings)
    bad_cell = any(cell.status.is_bad for cell in cells)
    return accepted or rejected or bad_cell or not sources_compile(runner.ready.compiled)


def verify_defects(
    console: Console,
    job: Job,
    catalog: Catalog,
    operators: Collection[str],
    start: Callable[[Job], Worker] | None = None,
) -> bool:
    """Print every historic defect of the operators with the check that rejected it; True where one was not rejected."""
    defects = _defects(catalog, operators)
    with (
        progress_bar(console, len(defects)) as update,
        _closed(Runner(job, lambda line: None, lambda progress: None, start)) as runner,
    ):
        findings = _check_all(runner, defects, job, update)
    _print_seed(console, job)
    _print_defects(console, defects, findings, job)
    console.print()
    accepted = _print_accepted_defects(console, defects, findings)
    checked = [findings[v.id] for v in defects if v.id in findings]
    rejected = sum(_rejection(of_variant) is not None for of_variant in checked)
    missing = len(defects) - len(checked)
    note = f", {missing} unavailable on this machine" if missing else ""
    console.print(Text(f"{rejected} of {len(checked)} rejected{note}"))
    return accepted


def _defects(catalog: Catalog, operators: Collection[str]) -> list[Variant]:
    wanted = [name for name in catalog.operators if name in operators]
    return [v for name in wanted for v in catalog.of(name) if v.defect is not None]


@contextmanager
def _closed(runner: Runner) -> Iterator[Runner]:
    try:
        yield runner
    except KeyboardInterrupt:
        runner.close(wait_s=0)
        raise
    runner.close()


def _check_all(
    runner: Runner, variants: Sequence[Variant], job: Job, update: Callable[[int, str], None]
) -> dict[str, list[Finding]]:
    findings = {}
    for i, variant in enumerate(variants):
        update(i, variant.id)
        if unavailable(variant, job.device) is None:
            findings[variant.id] = _check(runner, variant)
    return findings


def _check(runner: Runner, variant: Variant) -> list[Finding]:
    try:
        return runner.ask(CheckRequest(variant.operator, variant.name))
    except WorkerDied as death:
        return [Finding("process", "rejected", "no_crash", str(death))]


def _bad(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.outcome in ("rejected", "failed")]


def _rejection(findings: Sequence[Finding]) -> Finding | None:
    """The first finding in which a check rejected the variant. An exception is no rejection."""
    return next((finding for finding in findings if finding.outcome == "rejected"), None)


def _print_seed(console: Console, job: Job) -> None:
    console.print(Text(f"seed {job.seed}, device {job.device}"))


def _print_summary(
    console: Console, healthy: Sequence[Variant], findings: Findings, cells: Sequence[Cell], job: Job
) -> None:
    """A line for each variant: how many hard points, sequences and points of the sweep passed, were skipped, ..."""

    def row(variant: Variant) -> tuple[str, str, str]:
        if variant.id not in findings:
            return variant.id, f"unavailable: {unavailable(variant, job.device)}", ""
        mine = [cell for cell in cells if (cell.operator, cell.variant) == (variant.operator, variant.name)]
        return variant.id, _counts([f.outcome for f in findings[variant.id]]), _counts([c.status for c in mine])

    print_rows(console, ("variant", "hard points and sequences", "points of the sweep"), map(row, healthy))


def _counts(outcomes: Sequence[str]) -> str:
    return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))


def _print_checks(console: Console, healthy: Sequence[Variant], findings: Findings, job: Job) -> None:
    """For each operator a table of its variants and all checks, over all hard points and sequences together."""
    shown: set[str] = set()
    for operator in dict.fromkeys(variant.operator for variant in healthy):
        mine = [variant for variant in healthy if variant.operator == operator]
        console.print(Text(f"\n{operator}", style="bold"))
        results = {v.name: check_results(v, findings.get(v.id, ()), job.device) for v in mine}
        print_checks(console, results)
        shown.update(result for of_variant in results.values() for result in of_variant.values())
    notes = [f"{result}: {meaning}" for result, meaning in LEGEND.items() if result in shown]
    if notes:
        console.print(Text(f"\n{'; '.join(notes)}", style="dim"))


def _print_defects(console: Console, defects: Sequence[Variant], findings: Findings, job: Job) -> None:
    head = ("historic defect", "rejected by", "first seen at", "message")
    shown = len(head) if console.width >= WIDE else len(head) - 1
    name_width = min(max(len(variant.name) for variant in defects), NAME_WIDTH)
    for operator in dict.fromkeys(variant.operator for variant in defects):
        rows = [_defect_row(v, findings.get(v.id), job)[:shown] for v in defects if v.operator == operator]
        console.print(Text(f"\n{operator}", style="bold"))
        print_rows(console, head[:shown], rows, first=name_width)


def _defect_row(variant: Variant, findings: Sequence[Finding] | None, job: Job) -> tuple[str, str, str, str]:
    name = f"{variant.name}\n{variant.defect}"
    if findings is None:
        return name, "unavailable", unavailable(variant, job.device), ""
    first = _rejection(findings)
    if first is None:
        return name, "NOTHING", "", ""
    checks = dict.fromkeys(str(finding.check) for finding in findings if finding.outcome == "rejected")
    # The first wrong element of up to five is enough here.
    return name, ", ".join(checks), first.name, ";".join(first.message.split(";")[:2])


def _print_accepted_defects(console: Console, defects: Sequence[Variant], findings: Findings) -> bool:
    """Name every defect that no check rejected; True where there is one."""
    accepted = [v for v in defects if v.id in findings and _rejection(findings[v.id]) is None]
    for variant in accepted:
        how = "passed every check"
        if raised := _bad(findings[variant.id]):
            how = f"raised at {raised[0].name!r} instead of being rejected: {raised[0].message}"
        console.print(Text(f"{variant.id}: a known defect {how}", style="red"))
    return bool(accepted)


def _print_rejections(console: Console, healthy: Sequence[Variant], findings: Findings) -> None:
    for variant in healthy:
        for finding in _bad(findings.get(variant.id, [])):
            console.print(Text(f"{variant.id} at hard point {finding.name!r}: {finding.message}", style="red"))
