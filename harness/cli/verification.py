"""`bench.py verify`: every variant at hard points, in sequences and at the points of a sweep; every historic defect.

Healthy variants must pass, defects must be rejected. Nothing is timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from harness.config.sweep import Group
from harness.contract import FAR, UNALIGNED, Operator, Variant
from harness.discover import Catalog, unavailable
from harness.records.schema import Cell, Segment, Status, sources_compile
from harness.report.console import print_checks, print_compiled, print_counts, print_rows, progress_bar
from harness.runner.limit_checks import check_limits
from harness.runner.protocol import CheckRequest, Job, RandomRequest, is_left_out
from harness.runner.run import Runner
from harness.runner.worker import RunError, WorkerDied
from harness.verify.capacity import capacity_points
from harness.verify.hard_points import BEYOND, Finding, check_results, is_unverified
from harness.wording import counted

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

#: Kind of a finding -> head of its column.
HEADS = {
    "hard point": "hard points and sequences",
    "capacity point": "capacity points",
    "random batch": "random batches",
}
#: What _print_summary calls points and batches for which Triton's interpreter had no time left.
LEFT_OUT = "left out"

#: Name of the finding that the worker process died.
DIED = "some point"

#: Variant id -> its findings. A variant that is unavailable here has none.
Findings = dict[str, list[Finding]]


def verify_all(
    console: Console,
    job: Job,
    catalog: Catalog,
    groups: Sequence[Group],
    capacity: bool,
    random_batches: int,
    command: Callable[[str, int], str],
) -> bool:
    """Verify the variants of a sweep and the defects of its operators, and print the results.

    capacity:       verify at the points at capacity.
    random_batches: for each variant.
    command:        the command line for the key of one point, and a seed.

    Returns True where a healthy variant was rejected, a defect was not, or a CUDA source does not compile.
    """
    healthy = list({variant.id: variant for group in groups for variant in group.variants}.values())
    defects = _defects(catalog, {variant.operator for variant in healthy})
    at_capacity = _capacity_groups(catalog, healthy, job) if capacity else []
    cells: list[Cell] = []
    findings: Findings = {}
    steps = [len(healthy) + len(defects), _num_cells(at_capacity), len(healthy), _num_cells(groups)]
    done = 0

    def keep(line: Cell | Segment) -> None:
        if isinstance(line, Cell):
            cells.append(line)

    try:
        with (
            progress_bar(console, sum(steps)) as update,
            _closed(Runner(job, keep, lambda p: update(done + p.done, p.doing))) as runner,
        ):
            _check_all(runner, [*healthy, *defects], job, update, findings)
            for variant in healthy:
                if variant.id in findings:
                    operator = catalog.operators[variant.operator]
                    findings[variant.id] += check_limits(job, operator, variant)
            passed = [v for v in healthy if v.id in findings and not _bad(findings[v.id])]
            done = steps[0]
            runner.run(_only(at_capacity, passed), at_capacity=True)
            for cell in cells:
                findings[f"{cell.operator}/{cell.variant}"].append(_as_finding(cell))
            cells.clear()
            done += steps[1]
            for i, variant in enumerate(passed if random_batches else ()):
                update(done + i, f"{variant.id} random batches")
                findings[variant.id] += _check_random(runner, variant, random_batches)
            done += steps[2]
            runner.run(groups)
    except (KeyboardInterrupt, RunError):  # what is known by now is printed all the same
        reached = [variant for variant in healthy if variant.id in findings]
        if reached:
            _print_outcome(console, catalog, reached, findings, cells, job, command)
        raise
    _print_seed(console, job)
    _print_checks(console, healthy, findings, job)
    _print_defects(console, defects, findings, job)
    console.print()
    print_compiled(console, runner.ready.compiled)
    accepted = _print_accepted_defects(console, defects, findings)
    _print_limits(console, healthy, findings)
    _print_outcome(console, catalog, healthy, findings, cells, job, command)
    _print_left_out(console, findings)
    print_counts(console, cells, reasons=False)
    rejected = any(_bad(findings[v.id]) or is_unverified(findings[v.id]) for v in healthy if v.id in findings)
    bad_cell = any(cell.status.is_bad for cell in cells)
    return accepted or rejected or bad_cell or not sources_compile(runner.ready.compiled)


def verify_defects(
    console: Console,
    job: Job,
    catalog: Catalog,
    operators: Collection[str],
) -> bool:
    """Print every historic defect of the operators with the check that rejected it; True where one was not rejected."""
    defects = _defects(catalog, operators)
    with (
        progress_bar(console, len(defects)) as update,
        _closed(Runner(job, lambda line: None, lambda progress: None)) as runner,
    ):
        findings = _check_all(runner, defects, job, update, {})
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
    wait_s = 0.0
    try:
        yield runner
        wait_s = 30.0
    finally:
        runner.close(wait_s)


def _capacity_groups(catalog: Catalog, healthy: Sequence[Variant], job: Job) -> list[Group]:
    """The points at capacity of all operators, for the variants that are available here."""
    groups = []
    for name in dict.fromkeys(variant.operator for variant in healthy):
        operator = catalog.operators[name]
        variants = tuple(v for v in healthy if v.operator == name and unavailable(v, job.device) is None)
        points = capacity_points(operator, catalog.of(name), job.seed) if variants else []
        groups += [Group(operator, point, variants) for point in points]
    return groups


def _only(groups: Sequence[Group], variants: Collection[Variant]) -> list[Group]:
    """The groups with these variants alone."""
    ids = {variant.id for variant in variants}
    kept = [replace(group, variants=tuple(v for v in group.variants if v.id in ids)) for group in groups]
    return [group for group in kept if group.variants]


def _num_cells(groups: Sequence[Group]) -> int:
    return sum(len(group.variants) for group in groups)


def _as_finding(cell: Cell) -> Finding:
    """A cell of a point at capacity, or of the sweep."""
    outcome = {Status.MISMATCH: "rejected", Status.PASSED: "passed", Status.SKIPPED: "skipped"}.get(
        cell.status, "failed"
    )
    check, _, message = (cell.reason or "").partition(": ") if outcome == "rejected" else ("", "", cell.reason)
    return Finding(cell.point, outcome, check or None, message, kind="capacity point")


def _check_random(runner: Runner, variant: Variant, count: int) -> list[Finding]:
    try:
        return runner.ask(RandomRequest(variant.operator, variant.name, count))
    except WorkerDied as death:
        return [Finding(DIED, "rejected", "no_crash", str(death), kind="random batch")]


def _check_all(
    runner: Runner, variants: Sequence[Variant], job: Job, update: Callable[[int, str], None], findings: Findings
) -> Findings:
    """Fills ``findings``, so that an interrupted command can print those that are there, and returns it."""
    for i, variant in enumerate(variants):
        update(i, variant.id)
        if unavailable(variant, job.device) is None:
            findings[variant.id] = _check(runner, variant)
    return findings


def _check(runner: Runner, variant: Variant) -> list[Finding]:
    try:
        return runner.ask(CheckRequest(variant.operator, variant.name))
    except WorkerDied as death:
        return [Finding(DIED, "rejected", "no_crash", str(death))]


def _bad(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.outcome in ("rejected", "failed")]


def _rejection(findings: Sequence[Finding]) -> Finding | None:
    """The first finding in which a check rejected the variant. An exception is no rejection."""
    return next((finding for finding in findings if finding.outcome == "rejected"), None)


def _print_seed(console: Console, job: Job) -> None:
    console.print(Text(f"seed {job.seed}, device {job.device}"))


def _print_outcome(
    console: Console,
    catalog: Catalog,
    variants: Sequence[Variant],
    findings: Findings,
    cells: Sequence[Cell],
    job: Job,
    command: Callable[[str, int], str],
) -> None:
    """The first failure of each variant, then the summary."""
    for variant in variants:
        _print_failure(console, catalog.operators[variant.operator], variant, findings, cells, job.seed, command)
    console.print()
    _print_summary(console, variants, findings, cells, job)


def _print_summary(
    console: Console, healthy: Sequence[Variant], findings: Findings, cells: Sequence[Cell], job: Job
) -> None:
    """A line for each variant: how many hard points, sequences, ..., points of the sweep passed, were skipped, ..."""
    made = {finding.kind for of in findings.values() for finding in of}
    kinds = {kind: head for kind, head in HEADS.items() if kind in made}

    def row(variant: Variant) -> tuple[str, ...]:
        if variant.id not in findings:
            return variant.id, f"unavailable: {unavailable(variant, job.device)}", *([""] * len(kinds))
        mine = [cell for cell in cells if (cell.operator, cell.variant) == (variant.operator, variant.name)]
        counts = [_counts([_outcome(f) for f in findings[variant.id] if f.kind == kind]) for kind in kinds]
        return variant.id, *counts, _counts([c.status for c in mine])

    print_rows(console, ("variant", *kinds.values(), "points of the sweep"), map(row, healthy))


def verify_consumers(console: Console, job: Job, catalog: Catalog, groups: Sequence[Group]) -> bool:
    """Run the consumers of the operators on the tables of all variants, and print the comparison. Returns True where
    results differ, or a kernel failed.
    """
    from harness.verify.consumers import compare_consumers

    found = [
        one
        for group in groups
        for one in compare_consumers(catalog, group.operator, group.point, group.variants, job.device, job.seed)
    ]
    if not found:
        console.print(Text("no consumer reads the tables of these operators"))
    compared: dict[tuple[str, ...], list] = {}
    for one in found:
        if one.elements is not None:
            names = f"{one.consumer.operator}/{one.variant}", one.consumer.name, one.consumer.planner
            compared.setdefault(names, []).append(one)
    if compared:
        rows = [
            (*names, *(f"{n:,}" for n in (len(at), sum(o.elements for o in at), sum(o.different for o in at))))
            for names, at in compared.items()
        ]
        heads = ("variant", "read by", "as the tables of", "points", "elements", "different")
        print_rows(console, heads, rows)
    reasons = Counter(
        (one.consumer.name, f"{one.variant}: {one.reason}" if one.failed else one.reason, one.failed)
        for one in found
        if one.reason is not None
    )
    for (name, reason, failed), count in reasons.items():
        outcome = "failed" if failed else "not compared"
        console.print(Text(f"{name}: {counted(count, 'time')} {outcome}: {reason}", style="red" if failed else ""))
    return any(one.bad for one in found)


def _print_limits(console: Console, healthy: Sequence[Variant], findings: Findings) -> None:
    """Where engines' kernels fail as their limits= declare: the reason given, and what was found."""
    for variant in healthy:
        limited = [finding for finding in findings.get(variant.id, ()) if finding.outcome == "limited"]
        if limited:
            console.print(Text(f"\n{variant.id}: declared limits", style="bold"))
            rows = ((f.name, variant.limit_at(f.name), f"{f.check}: {f.message}".split(";")[0]) for f in limited)
            print_rows(console, ("hard point or sequence", "declared", "found"), rows)


def _outcome(finding: Finding) -> str:
    if finding.message == BEYOND:
        return BEYOND
    return LEFT_OUT if is_left_out(finding.message) else finding.outcome


def _print_left_out(console: Console, findings: Findings) -> None:
    """How many points and batches Triton's interpreter was too slow for, and what to change."""
    for kind, head in HEADS.items():
        by_variant = ([_outcome(finding) for finding in of if finding.kind == kind] for of in findings.values())
        slow = [outcomes for outcomes in by_variant if LEFT_OUT in outcomes]
        if slow:
            left = sum(outcomes.count(LEFT_OUT) for outcomes in slow)
            text = f"{head}: {left} of {sum(map(len, slow))} of {counted(len(slow), 'variant')} left out: "
            console.print(Text(f"{text}interpreter budget (--set measure.interpreter_budget_s=SECONDS)"))


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
    name_width = min(max((len(variant.name) for variant in defects), default=0), NAME_WIDTH)
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


def _print_failure(
    console: Console,
    operator: Operator,
    variant: Variant,
    findings: Findings,
    cells: Sequence[Cell],
    seed: int,
    command: Callable[[str, int], str],
) -> None:
    """The first failure of a variant, how many there are beside it, and the command that repeats it alone. Of points at
    capacity, which may be many, the first is the one that is told in the fewest words.
    """
    bad = sorted(_bad(findings.get(variant.id, [])), key=lambda f: len(f.name) if f.kind == "capacity point" else 0)
    told = bad or [_as_finding(c) for c in cells if c.status.is_bad and f"{c.operator}/{c.variant}" == variant.id]
    if not told:
        return
    first = told[0]
    name, _, drawn = first.name.partition(" (seed ")  # of a random batch
    seed = int(drawn.rstrip(")")) if drawn else seed
    check = f"{first.check}: " if first.check else ""
    console.print(Text(f"\n{variant.id} at {_where(operator, first)}: {check}{first.message}", style="red"))
    if len(told) > 1:
        console.print(Text(f"and {counted(len(told) - 1, 'further failure')}"))
    if first.name != DIED:
        repeat = command(f"{variant.id}/{name.removesuffix(UNALIGNED).removesuffix(FAR)}", seed)
        console.print(Text(f"this one alone: {repeat}"), soft_wrap=True)


def _where(operator: Operator, finding: Finding) -> str:
    """``hard point 'L = 1' (batch_size=3,max_decode_len=1)``, ``sequence 'shrinks'``, ``batch_size=3``."""
    if finding.name in operator.sequences:
        return f"sequence {finding.name!r}"
    hard = next(
        (h for h in operator.hard_points if h.name == finding.name.removesuffix(UNALIGNED).removesuffix(FAR)), None
    )
    if hard is not None:
        return f"hard point {finding.name!r} ({operator.label(operator.complete(hard.point))})"
    return finding.name
