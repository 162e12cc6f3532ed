"""`bench.py verify`: every variant at edge cases, in sequences and at the points of a sweep; every historic defect.

Healthy variants must pass, defects must be rejected. Nothing is timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.text import Text

from harness.config.sweep import cells
from harness.config.work_items import Cells, Checked, RandomBatches, Verify, WorkItem
from harness.contract import Operator, Variant, in_buffers
from harness.discover import Catalog, unavailable
from harness.records.endings import of_reason, place_of
from harness.records.schema import Cell, Code, Finding, Place, Status, sources_compile
from harness.report.console import print_checks, print_compiled, print_counts, print_rows, progress_bar
from harness.session.messages import Job
from harness.session.session import Progress, Session
from harness.session.worker import RunError
from harness.verify.covering_array import CoveringArray, covering_array
from harness.verify.edge_cases import check_results, is_unverified, known_failure_places
from harness.wording import counted

#: Console width from which on the table of defects shows the message of the rejection.
WIDE = 140

#: What the results of a check mean that say neither yes nor no.
LEGEND = {
    "waived": "the variant opts out of this check",
    "GPU": "tested on a GPU only",
    "CPU": "tested on a CPU only",
    "timed": "tested in timed runs only",
    "-": "no launch got this far",
}

#: Head of a column -> the places whose findings it counts.
HEADS = {
    "edge cases and sequences": (Place.EDGE_CASE, Place.SEQUENCE, Place.IMPORT),
    "points of the array": (Place.ARRAY_POINT,),
    "random batches": (Place.RANDOM_BATCH,),
}
#: What the summary calls a skipped place, by the code of its reason.
SKIPPED = {Code.KNOWN_FAILURE: "beyond its known failures", Code.INTERPRETER_BUDGET: "left out"}


@dataclass
class Verified:
    """What was results. findings: variant id -> all but of the sweep; a variant that is unavailable here has none.
    cells: of the sweep. arrays: operator -> its covering array. compiled: as in the header of a record.
    """

    findings: dict[str, list[Finding]] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    arrays: dict[str, CoveringArray] = field(default_factory=dict)
    compiled: dict[str, dict[str, str]] = field(default_factory=dict)

    def of(self, variant: Variant) -> list[Finding]:
        return self.findings.get(variant.id, [])

    def bad(self, variant: Variant) -> list[Finding]:
        return [finding for finding in self.of(variant) if finding.status.is_bad]


def verify_all(
    console: Console,
    job: Job,
    catalog: Catalog,
    items: Sequence[Cells],
    defects: Sequence[Variant],
    arrays: bool,
    random_batches: int,
    command: Callable[[str, int], str],
) -> bool:
    """Verify the variants of a sweep and historic defects, and print the results.

    arrays:         verify at the covering array of each operator.
    random_batches: for each variant.
    command:        the command line for the key of one point, and a seed.

    Returns True where a healthy variant was rejected, a defect was not, or a CUDA source does not compile.
    """
    healthy = catalog.variants_of(items)
    results = Verified()
    in_array = _in_array(catalog, healthy, job, results) if arrays else []
    try:
        known_failures = _at_known_failures(catalog, healthy, job)
        _verify(console, job, results, healthy, defects, known_failures, in_array, random_batches, items)
    except (KeyboardInterrupt, RunError):  # what is known by now is printed all the same
        if reached := [variant for variant in healthy if variant.id in results.findings]:
            _print_outcome(console, catalog, reached, results, job, command)
        raise
    _print_seed(console, job)
    _print_checks(console, healthy, results, job)
    _print_defects(console, defects, results, job)
    console.print()
    print_compiled(console, results.compiled)
    accepted = _print_accepted_defects(console, defects, results)
    _print_known_failures(console, healthy, results)
    _print_outcome(console, catalog, healthy, results, job, command)
    _print_left_out(console, results)
    print_counts(console, results.cells, reasons=False)
    here = [variant for variant in healthy if variant.id in results.findings]
    rejected = any(results.bad(variant) or is_unverified(results.of(variant)) for variant in here)
    bad_cell = any(cell.status.is_bad for cell in results.cells)
    return accepted or rejected or bad_cell or not sources_compile(results.compiled)


def _verify(
    console: Console,
    job: Job,
    results: Verified,
    healthy: Sequence[Variant],
    defects: Sequence[Variant],
    known_failures: Sequence[Verify],
    in_array: Sequence[Cells],
    random_batches: int,
    sweep: Sequence[Cells],
) -> None:
    """Fills ``results``. Variants that do not pass their edge cases are not run at the array or on random batches."""
    here = [variant for variant in (*healthy, *defects) if unavailable(variant, job.device) is None]
    steps = [
        len(here),
        len(known_failures),
        _num_cells(in_array),
        len(healthy) if random_batches else 0,
        _num_cells(sweep),
    ]

    def keep_finding(checked: Checked) -> None:
        results.findings.setdefault(checked.variant_id, []).append(checked.finding)

    def keep_point(cell: Cell) -> None:
        other = Finding(status=cell.status, place=Place.ARRAY_POINT, name=cell.point, reason=cell.reason)
        results.findings[cell.variant_id].append(cell.finding or other)

    with progress_bar(console, sum(steps)) as update:

        def run(session: Session, step: int, items: Iterable[WorkItem], keep: Callable) -> None:
            for outcome in session.run(list(items)):
                if isinstance(outcome, Progress):
                    update(sum(steps[:step]) + outcome.done, outcome.doing)
                elif isinstance(outcome, Cell | Checked):
                    keep(outcome)

        with Session(job) as session:
            results.compiled = session.ready.compiled
            run(session, 0, (Verify(operator=one.operator, variant=one.name) for one in here), keep_finding)
            if known_failures:
                # What an engine's kernel does there may end its process, on which nothing else may depend.
                with Session(replace(job, compiled=())) as apart:
                    run(apart, 1, known_failures, keep_finding)
            passed = [variant for variant in healthy if variant.id in results.findings and not results.bad(variant)]
            run(session, 2, _only(in_array, passed), keep_point)
            if random_batches:
                count = {"count": random_batches}
                batches = (RandomBatches(operator=one.operator, variant=one.name, **count) for one in passed)
                run(session, 3, batches, keep_finding)
            run(session, 4, sweep, results.cells.append)


def verify_defects(console: Console, job: Job, defects: Sequence[Variant]) -> bool:
    """Print every defect with the check that rejected it; True where one was not rejected."""
    results = Verified()
    _verify(console, job, results, [], defects, [], [], 0, [])
    _print_seed(console, job)
    _print_defects(console, defects, results, job)
    console.print()
    accepted = _print_accepted_defects(console, defects, results)
    checked = [variant for variant in defects if variant.id in results.findings]
    rejected = sum(_rejection(results.of(variant)) is not None for variant in checked)
    missing = len(defects) - len(checked)
    note = f", {missing} unavailable on this machine" if missing else ""
    console.print(Text(f"{rejected} of {len(checked)} rejected{note}"))
    return accepted


# --- what is verified -------------------------------------------------------------------------------------------------


def defects_of(catalog: Catalog, operators: Collection[str]) -> list[Variant]:
    """The historic defects of operators, in the order of the catalog."""
    wanted = [name for name in catalog.operators if name in operators]
    return [v for name in wanted for v in catalog.of(name) if v.defect is not None]


def _at_known_failures(catalog: Catalog, healthy: Sequence[Variant], job: Job) -> list[Verify]:
    """The places at which available variants have a known failure."""
    return [
        Verify(operator=variant.operator, variant=variant.name, name=name, buffers=buffers, known_failure=True)
        for variant in healthy
        if unavailable(variant, job.device) is None
        for name, buffers in known_failure_places(catalog.operators[variant.operator], variant)
    ]


def _in_array(catalog: Catalog, healthy: Sequence[Variant], job: Job, results: Verified) -> list[Cells]:
    """The points of all covering arrays, for the variants that are available here; fills ``results.arrays``."""
    items = []
    for name in dict.fromkeys(variant.operator for variant in healthy):
        operator = catalog.operators[name]
        variants = [v for v in healthy if v.operator == name and unavailable(v, job.device) is None]
        if variants:
            array = results.arrays[name] = covering_array(operator, catalog.of(name))
            items += [cells(operator, point, variants, in_array=True) for point in array.points]
    return items


def _only(items: Sequence[Cells], variants: Collection[Variant]) -> list[Cells]:
    """The items with these variants alone."""
    ids = {variant.id for variant in variants}
    cut = (item.of([name for name in item.variants if item.id_of(name) in ids]) for item in items)
    return [item for item in cut if item.variants]


def _num_cells(items: Sequence[Cells]) -> int:
    return sum(len(item.variants) for item in items)


def _rejection(findings: Sequence[Finding]) -> Finding | None:
    """The first finding in which a check rejected the variant. An exception is no rejection."""
    return next((finding for finding in findings if finding.status is Status.MISMATCH), None)


# --- what is printed --------------------------------------------------------------------------------------------------


def _print_seed(console: Console, job: Job) -> None:
    console.print(Text(f"seed {job.seed}, device {job.device}"))


def _missing(variant: Variant, job: Job) -> str:
    """Why a variant is unavailable here."""
    reason = unavailable(variant, job.device)
    return "" if reason is None else of_reason(reason)


def _print_outcome(
    console: Console,
    catalog: Catalog,
    variants: Sequence[Variant],
    results: Verified,
    job: Job,
    command: Callable[[str, int], str],
) -> None:
    """The first failure of each variant, then the summary."""
    for variant in variants:
        _print_failure(console, catalog.operators[variant.operator], variant, results, job.seed, command)
    console.print()
    _print_summary(console, variants, results, job)


def _print_summary(console: Console, healthy: Sequence[Variant], results: Verified, job: Job) -> None:
    """A line for each variant: how many edge cases, sequences, ..., points of the sweep passed, were skipped, ..."""
    made = {finding.place for of in results.findings.values() for finding in of}
    heads = [head for head, places in HEADS.items() if made & set(places)]

    def row(variant: Variant) -> tuple[str, ...]:
        if variant.id not in results.findings:
            return variant.id, f"unavailable: {_missing(variant, job)}", *([""] * (len(heads) + bool(results.arrays)))
        mine = results.of(variant)
        counts = [_counts([_outcome(one) for one in mine if one.place in HEADS[head]]) for head in heads]
        in_sweep = _counts([cell.status for cell in results.cells if cell.variant_id == variant.id])
        return variant.id, *counts, *([_pairs_met(variant, results)] if results.arrays else []), in_sweep

    of_arrays = ["pairs of values"] if results.arrays else []
    print_rows(console, ("variant", *heads, *of_arrays, "points of the sweep"), map(row, healthy))


def _pairs_met(variant: Variant, results: Verified) -> str:
    """At how many pairs of the legal ones the variant passed."""
    array = results.arrays[variant.operator]
    passed = {f.name for f in results.of(variant) if f.place is Place.ARRAY_POINT and f.status is Status.PASSED}
    return f"{array.met(passed):,} of {len(array.legal):,}"


def verify_consumers(console: Console, job: Job, catalog: Catalog, items: Sequence[Cells]) -> bool:
    """Run the consumers of the operators on the tables of all variants, and print the comparison. Returns True where
    results differ, or a kernel failed.
    """
    from harness.verify.consumers import compare_consumers

    comparisons = [one for item in items for one in compare_consumers(catalog, item, job.device, job.seed)]
    if not comparisons:
        console.print(Text("no consumer reads the tables of these operators"))
    compared: dict[tuple[str, ...], list] = {}
    for one in comparisons:
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
    failed = Counter((one.consumer.name, one.variant, one.error) for one in comparisons if one.error is not None)
    for (name, variant, error), count in failed.items():
        console.print(Text(f"{name}: {counted(count, 'time')} failed: {variant}: {error}", style="red"))
    left_out = Counter((one.consumer.name, one.reason) for one in comparisons if one.reason is not None)
    for (name, reason), count in left_out.items():
        console.print(Text(f"{name}: {counted(count, 'time')} not compared: {of_reason(reason)}"))
    return any(one.bad for one in comparisons)


def _print_known_failures(console: Console, healthy: Sequence[Variant], results: Verified) -> None:
    """Where engines' kernels fail as their known_failures= declare: the reason given, and what was results."""
    for variant in healthy:
        limited = [finding for finding in results.of(variant) if finding.status is Status.KNOWN_FAILURE]
        if limited:
            console.print(Text(f"\n{variant.id}: known failures", style="bold"))
            places = ((finding.name, finding.buffers) for finding in limited)
            declared = [(in_buffers(*place), variant.known_failure_at(*place)) for place in places]
            rows = ((*left, known_failure_text(finding)) for left, finding in zip(declared, limited, strict=True))
            print_rows(console, ("edge case or sequence", "declared", "observed"), rows)


def known_failure_text(finding: Finding) -> str:
    """The outcome of a known failure, in words."""
    if finding.message is None:
        return "passes here: remove it from known_failures= if the kernel supports this now"
    return full(finding).split(";")[0]


def _outcome(finding: Finding) -> str:
    return SKIPPED.get(finding.reason and finding.reason.code, finding.status)


def _print_left_out(console: Console, results: Verified) -> None:
    """How many points and batches Triton's interpreter was too slow for, and what to change."""
    is_left_out = lambda finding: finding.reason and finding.reason.code is Code.INTERPRETER_BUDGET  # noqa: E731
    for head, places in HEADS.items():
        by_variant = ([finding for finding in of if finding.place in places] for of in results.findings.values())
        slow = [of for of in by_variant if any(map(is_left_out, of))]
        if slow:
            left = sum(bool(is_left_out(finding)) for of in slow for finding in of)
            text = f"{head}: {left} of {sum(map(len, slow))} of {counted(len(slow), 'variant')} left out: "
            console.print(Text(f"{text}interpreter budget (--set measure.interpreter_budget_s=SECONDS)"))


def _counts(outcomes: Sequence[str]) -> str:
    return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))


def _print_checks(console: Console, healthy: Sequence[Variant], results: Verified, job: Job) -> None:
    """For each operator a table of its variants and all checks, over all edge cases and sequences together."""
    shown: set[str] = set()
    for operator in dict.fromkeys(variant.operator for variant in healthy):
        mine = [variant for variant in healthy if variant.operator == operator]
        console.print(Text(f"\n{operator}", style="bold"))
        of_checks = {v.name: check_results(v, results.of(v), job.device) for v in mine}
        print_checks(console, of_checks)
        shown.update(result for of_variant in of_checks.values() for result in of_variant.values())
    notes = [f"{result}: {meaning}" for result, meaning in LEGEND.items() if result in shown]
    if notes:
        console.print(Text(f"\n{'; '.join(notes)}", style="dim"))


def _print_defects(console: Console, defects: Sequence[Variant], results: Verified, job: Job) -> None:
    head = ("historic defect", "rejected by", "first seen at", "message")
    shown = len(head) if console.width >= WIDE else len(head) - 1
    for operator in dict.fromkeys(variant.operator for variant in defects):
        rows = [_defect_row(v, results, job)[:shown] for v in defects if v.operator == operator]
        console.print(Text(f"\n{operator}", style="bold"))
        print_rows(console, head[:shown], rows)


def _defect_row(variant: Variant, results: Verified, job: Job) -> tuple[str, str, str, str]:
    name = f"{variant.name}\n{variant.defect}"
    if variant.id not in results.findings:
        return name, "unavailable", _missing(variant, job), ""
    first = _rejection(results.of(variant))
    if first is None:
        return name, "NOTHING", "", ""
    checks = dict.fromkeys(str(one.check) for one in results.of(variant) if one.status is Status.MISMATCH)
    # The first wrong element of up to five is enough here.
    return name, ", ".join(checks), in_buffers(first.name, first.buffers), ";".join(first.message.split(";")[:2])


def _print_accepted_defects(console: Console, defects: Sequence[Variant], results: Verified) -> bool:
    """Name every defect that no check rejected; True where there is one."""
    accepted = [v for v in defects if v.id in results.findings and _rejection(results.of(v)) is None]
    for variant in accepted:
        how = "passed every check"
        if raised := results.bad(variant):
            how = f"raised at {raised[0].name!r} instead of being rejected: {raised[0].message}"
        console.print(Text(f"{variant.id}: a known defect {how}", style="red"))
    return bool(accepted)


def _print_failure(
    console: Console,
    operator: Operator,
    variant: Variant,
    results: Verified,
    seed: int,
    command: Callable[[str, int], str],
) -> None:
    """The first failure of a variant, how many there are beside it, and the command that repeats it alone. Of points of
    the array, which may be many, the first is the one with the shortest label.
    """
    of_sweep = (cell.finding for cell in results.cells if cell.finding is not None and cell.variant_id == variant.id)
    bad = results.bad(variant) or list(of_sweep)
    if not bad:
        return
    first = min(bad, key=lambda f: len(f.name) if f.place is Place.ARRAY_POINT else 0)
    case = {one.name: one for one in operator.edge_cases if first.place is Place.EDGE_CASE}.get(first.name)
    axes = f" ({operator.label(operator.complete(case.point))})" if case else ""
    where = place_of(first) or "some point"
    console.print(Text(f"\n{variant.id} at {where}{axes}: {full(first)}", style="red"))
    if len(bad) > 1:
        console.print(Text(f"and {counted(len(bad) - 1, 'further failure')}"))
    if first.name:
        repeat = command(f"{variant.id}/{first.name}", seed if first.seed is None else first.seed)
        console.print(Text(f"this one alone: {repeat}"), soft_wrap=True)


def full(finding: Finding) -> str:
    """The check, where it was one, and what was seen."""
    return f"{finding.check}: {finding.message}" if finding.check else str(finding.message)
