"""`bench.py verify`: every variant at edge cases, in sequences and at the points of a sweep; every historic defect.

Healthy variants must pass, defects must be rejected. Nothing is timed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from spec_decode_bench.cli.verify_record import CheckLines
from spec_decode_bench.harness.command.verdict import verified_nothing
from spec_decode_bench.harness.config.work_items import AtPoint, Check, EdgeCases, Named, Task
from spec_decode_bench.harness.contract import Variant, in_buffers
from spec_decode_bench.harness.discover import Catalog, unavailable
from spec_decode_bench.harness.exit_codes import BAD, OK
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.schema import CheckLine, Code, Finding, Place, Status, sources_compile
from spec_decode_bench.harness.records.sentences import of_reason, place_of, seen
from spec_decode_bench.harness.report.console import (
    print_checks,
    print_compiled,
    print_counts,
    print_rows,
    print_seconds,
    progress_bar,
)
from spec_decode_bench.harness.session.messages import Job
from spec_decode_bench.harness.session.side_by_side import Ask, processes, side_by_side
from spec_decode_bench.harness.session.worker import RunError
from spec_decode_bench.harness.verify.covering_array import CoveringArray, covering_array
from spec_decode_bench.harness.verify.edge_cases import check_results, is_unverified, known_failure_places

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

#: Parts of a verification.
EDGES, KNOWN_FAILURES = "edge cases and sequences", "known failures"
ARRAY, SWEEP = "points of the array", "points of the sweep"
PARTS = EDGES, KNOWN_FAILURES, ARRAY, SWEEP
#: Head of a column -> the places whose findings it counts.
HEADS = {
    EDGES: (Place.EDGE_CASE, Place.SEQUENCE, Place.IMPORT),
    ARRAY: (Place.ARRAY_POINT,),
    SWEEP: (Place.POINT,),
}
#: What the summary calls a skipped place, by the code of its reason.
SKIPPED = {Code.KNOWN_FAILURE: "beyond its known failures", Code.INTERPRETER_BUDGET: "left out"}
#: What it calls a place at which a variant was not run, because it had ended its process.
NOT_RUN = "not run"


@dataclass
class Verification:
    """Verifies variants and prints what was observed, from the lines of the record alone.

    arrays: operator -> its covering array. wall_s: what all took, beside each other.
    """

    console: Console
    job: Job
    catalog: Catalog
    lines: CheckLines
    arrays: dict[str, CoveringArray] = field(default_factory=dict)
    wall_s: float = 0.0
    _done: list[int] = field(default_factory=list)

    def of(self, variant: Variant) -> list[Finding]:
        """At all places but of the sweep; a variant that is unavailable here has none. Known failures last: another
        thread finds them.
        """
        own = self.lines.of.get(variant.id, ())
        findings = [line.found for line in own if line.place is not Place.POINT]
        return sorted(findings, key=lambda finding: finding.status is Status.KNOWN_FAILURE)

    def in_sweep(self, variant: Variant) -> list[CheckLine]:
        return [line for line in self.lines.of.get(variant.id, ()) if line.place is Place.POINT]

    def bad(self, variant: Variant) -> list[Finding]:
        return [finding for finding in self.of(variant) if finding.status.is_bad]

    def add_arrays(self, healthy: Sequence[Variant]) -> list[Check]:
        """The points of the covering arrays of these variants' operators, for those that are available here."""
        items = []
        for name in dict.fromkeys(variant.operator for variant in healthy):
            operator = self.catalog.operators[name]
            here = (v for v in healthy if v.operator == name and unavailable(v, self.job.device) is None)
            if variants := tuple(variant.name for variant in here):
                array = self.arrays[name] = covering_array(operator, self.catalog.of(name), self.job.seed)
                for point in array.points:
                    where = AtPoint(label=operator.label(point), axes=dict(point), in_array=True)
                    items.append(Check(operator=name, variants=variants, where=where))
        return items

    def run(
        self,
        healthy: Sequence[Variant],
        defects: Sequence[Variant],
        in_array: Sequence[Check] = (),
        sweep: Sequence[Check] = (),
    ) -> None:
        """The variants of an operator in one process, as they share batches, and several operators beside each other.
        Variants that do not pass their edge cases are not run at the array.
        """
        here = {variant.id for variant in (*healthy, *defects) if unavailable(variant, self.job.device) is None}
        known_failures = _at_known_failures(self.catalog, healthy, self.job)
        num_at_points = sum(len(item.variants) for item in (*in_array, *sweep))
        total = len(here) + len(known_failures) + num_at_points

        def verify(group: Sequence[Variant], run: Ask) -> None:
            self._keep(run, [_check(variant, EdgeCases()) for variant in group if variant.id in here])
            passed = [v for v in group if v.defect is None and self.of(v) and not self.bad(v)]
            self._keep(run, _only(in_array, passed))
            self._keep(run, _only(sweep, group))

        groups = _groups((*healthy, *defects))
        tasks = iter([partial(verify, group) for group in groups])
        lanes = [tasks] * min(processes(), len(groups))
        if known_failures:
            # What an engine's kernel does there may end its process, on which nothing else may depend.
            lanes.append(iter([lambda run: self._keep(run, known_failures)]))
        began = time.monotonic()
        with progress_bar(self.console, total) as update:
            side_by_side(self.job, lanes, self.lines.begin, lambda doing: update(sum(self._done), doing))
        self.wall_s = time.monotonic() - began

    def _keep(self, run: Ask, items: Sequence[Check]) -> None:
        """Run the items, and keep a line for every finding. In several threads."""
        for item in items:
            self.lines.keep(item, run(item))
            self._done.append(len(item.variants))

    # --- what is printed ---------------------------------------------------------------------------------------------

    def print_seed(self) -> None:
        self.console.print(Text(f"seed {self.job.seed}, device {self.job.device}"))

    def _missing(self, variant: Variant) -> str:
        """Why a variant is unavailable here."""
        reason = unavailable(variant, self.job.device)
        return "" if reason is None else of_reason(reason)

    def print_outcome(self, variants: Sequence[Variant], command: Callable[[str, int], str]) -> None:
        """The first failure of each variant, then the summary."""
        for variant in variants:
            self._print_failure(variant, command)
        self.console.print()
        self._print_summary(variants)

    def _print_summary(self, healthy: Sequence[Variant]) -> None:
        """A line for each variant: how many edge cases, ..., points of the sweep passed, were skipped, ..."""
        made = {line.place for line in self.lines.all}
        heads = [head for head, places in HEADS.items() if head != SWEEP and made & set(places)]

        def row(variant: Variant) -> tuple[str, ...]:
            if not (findings := self.of(variant)):
                empty = [""] * (len(heads) + bool(self.arrays) - (Place.POINT not in made))
                return variant.id, f"unavailable: {self._missing(variant)}", *empty
            counts = [
                _counts([_outcome(finding) for finding in findings if finding.place in HEADS[head]]) for head in heads
            ]
            pairs = [self._pairs_met(variant)] if self.arrays else []
            at_points = [_counts([_outcome_at_point(line) for line in self.in_sweep(variant)])]
            return variant.id, *counts, *pairs, *(at_points if Place.POINT in made else [])

        of_arrays = ["pairs of values"] if self.arrays else []
        of_sweep = [SWEEP] if Place.POINT in made else []
        print_rows(self.console, ("variant", *heads, *of_arrays, *of_sweep), map(row, healthy))

    def _pairs_met(self, variant: Variant) -> str:
        """At how many pairs of the legal ones the variant passed, and at how many of them with effect."""
        array = self.arrays[variant.operator]
        passed = {f.name for f in self.of(variant) if f.place is Place.ARRAY_POINT and f.status is Status.PASSED}
        return f"{array.met(passed):,} of {len(array.legal):,}, {array.met_with_effect(passed):,} with effect"

    def print_known_failures(self, healthy: Sequence[Variant]) -> None:
        """Where engines' kernels fail as their known_failures= declare: the reason given, and what was observed."""
        for variant in healthy:
            limited = [finding for finding in self.of(variant) if finding.status is Status.KNOWN_FAILURE]
            if limited:
                self.console.print(Text(f"\n{variant.id}: known failures", style="bold"))
                rows = [
                    (
                        in_buffers(found.name, found.buffers),
                        variant.known_failure_at(found.name, found.buffers),
                        known_failure_text(found),
                    )
                    for found in limited
                ]
                print_rows(self.console, ("edge case or sequence", "declared", "observed"), rows)

    def print_left_out(self) -> None:
        """At how many points Triton's interpreter was too slow, and what to change."""
        for head, places in HEADS.items():
            lines = [line for line in self.lines.all if line.place in places]
            left_out = [line for line in lines if line.reason and line.reason.code is Code.INTERPRETER_BUDGET]
            if slow := {line.variant_id for line in left_out}:
                of_slow = sum(line.variant_id in slow for line in lines)
                text = f"{head}: {len(left_out)} of {of_slow} of {counted(len(slow), 'variant')} left out: "
                self.console.print(Text(f"{text}interpreter budget (--set measure.interpreter_budget_s=SECONDS)"))

    def print_seconds(self) -> None:
        """What each part took in all processes, and the variant that took most."""
        of_parts, of_variants = dict.fromkeys(PARTS, 0.0), Counter()
        for line in self.lines.all:
            of_parts[_part(line)] += line.seconds.get("verify", 0.0)
            of_variants[line.variant_id] += line.seconds.get("verify", 0.0)
        print_seconds(self.console, {part: seconds for part, seconds in of_parts.items() if seconds}, self.wall_s)
        for slowest, seconds in of_variants.most_common(1):
            self.console.print(Text(f"most for {slowest}: {seconds:.1f} s", style="dim"))

    def print_checks(self, healthy: Sequence[Variant]) -> None:
        """For each operator a table of its variants and all checks, over all edge cases and sequences together."""
        shown: set[str] = set()
        for operator in dict.fromkeys(variant.operator for variant in healthy):
            of_operator = [variant for variant in healthy if variant.operator == operator]
            self.console.print(Text(f"\n{operator}", style="bold"))
            of_checks = {v.name: check_results(v, self.of(v), self.job.device) for v in of_operator}
            print_checks(self.console, of_checks)
            shown.update(result for of_variant in of_checks.values() for result in of_variant.values())
        notes = [f"{result}: {meaning}" for result, meaning in LEGEND.items() if result in shown]
        if notes:
            self.console.print(Text(f"\n{'; '.join(notes)}", style="dim"))

    def print_defects(self, defects: Sequence[Variant]) -> None:
        head = ("historic defect", "rejected by", "first seen at", "message")
        shown = len(head) if self.console.width >= WIDE else len(head) - 1
        for operator in dict.fromkeys(variant.operator for variant in defects):
            rows = [self._defect_row(v)[:shown] for v in defects if v.operator == operator]
            self.console.print(Text(f"\n{operator}", style="bold"))
            print_rows(self.console, head[:shown], rows)

    def _defect_row(self, variant: Variant) -> tuple[str, str, str, str]:
        name = f"{variant.name}\n{variant.defect}"
        if not (findings := self.of(variant)):
            return name, "unavailable", self._missing(variant), ""
        first = _rejection(findings)
        if first is None:
            return name, "NOTHING", "", ""
        checks = dict.fromkeys(str(finding.check) for finding in findings if finding.status is Status.MISMATCH)
        return name, ", ".join(checks), in_buffers(first.name, first.buffers), seen(first, elements=1)

    def print_accepted_defects(self, defects: Sequence[Variant]) -> bool:
        """Name every defect that no check rejected; True where there is one."""
        accepted = [v for v in defects if (findings := self.of(v)) and _rejection(findings) is None]
        for variant in accepted:
            how = "passed every check"
            if raised := self.bad(variant):
                how = f"raised at {raised[0].name!r} instead of being rejected: {raised[0].message}"
            self.console.print(Text(f"{variant.id}: a known defect {how}", style="red"))
        return bool(accepted)

    def _print_failure(self, variant: Variant, command: Callable[[str, int], str]) -> None:
        """The first failure of a variant, the command that repeats it alone, where else the variant failed, and how
        often it was not run after it had ended its process.

        Of points of the array, which may be many, the first is the one with the shortest label.
        """
        operator = self.catalog.operators[variant.operator]
        before = self.bad(variant)
        at_points = [line.finding for line in self.in_sweep(variant) if line.finding is not None]
        everything = before + [finding for finding in at_points if finding.place is Place.POINT or not before]
        bad = [finding for finding in everything if finding.deaths is None]
        if not bad:
            return
        first = min(bad, key=lambda f: (not f.name, len(f.name) if f.place is Place.ARRAY_POINT else 0))
        case = {case.name: case for case in operator.edge_cases if first.place is Place.EDGE_CASE}.get(first.name)
        axes = f" ({operator.label(operator.complete(case.point))})" if case else ""
        where = place_of(first) or "some point"
        self.console.print(Text(f"\n{variant.id} at {where}{axes}: {full(first)}", style="red"))
        if len(bad) > 1:
            self.console.print(Text(f"and {counted(len(bad) - 1, 'further failure')}"))
        if first.name:
            repeat = command(f"{variant.id}/{first.name}", self.job.seed)
            self.console.print(Text(f"this one alone: {repeat}"), soft_wrap=True)
        others: dict[str, list[str]] = {}
        for finding in bad:
            if finding is not first:
                others.setdefault(finding.check or finding.status, []).append(place_of(finding) or "some point")
        for what, places in others.items():
            self.console.print(Text(f"{what} at {'; '.join(places)}"), soft_wrap=True)
        if not_run := len(everything) - len(bad):
            self.console.print(Text(f"not run {counted(not_run, 'time')}, as it had ended its process"))


def verify_all(
    console: Console,
    job: Job,
    catalog: Catalog,
    lines: CheckLines,
    items: Sequence[Task],
    healthy: Sequence[Variant],
    defects: Sequence[Variant],
    arrays: bool,
    command: Callable[[str, int], str],
) -> int:
    """Verify variants, those of a sweep also at its points, and historic defects, and print the results; the exit code.

    items:   the points of the sweep; none without one.
    arrays:  verify at the covering array of each operator.
    command: the command line for the key of one point, and a seed.

    1 where a healthy variant was rejected, a defect was not, or a CUDA source does not compile; 2 where every healthy
    variant is unavailable.
    """
    results = Verification(console, job, catalog, lines)
    in_array = results.add_arrays(healthy) if arrays else []
    try:
        results.run(healthy, defects, in_array, list(map(_check_of, items)))
    except (KeyboardInterrupt, RunError):  # what is known by now is printed all the same
        if reached := [variant for variant in healthy if results.of(variant)]:
            results.print_outcome(reached, command)
        raise
    results.print_seed()
    results.print_checks(healthy)
    results.print_defects(defects)
    console.print()
    print_compiled(console, lines.compiled)
    accepted = results.print_accepted_defects(defects)
    results.print_known_failures(healthy)
    results.print_outcome(healthy, command)
    results.print_left_out()
    if items:
        print_counts(console, [line for variant in healthy for line in results.in_sweep(variant)])
    results.print_seconds()
    here = [variant for variant in healthy if results.of(variant)]
    rejected = any(results.bad(variant) or is_unverified(results.of(variant)) for variant in here)
    in_sweep = [line for variant in healthy for line in results.in_sweep(variant)]
    bad_point = any(line.status.is_bad for line in in_sweep)
    if accepted or rejected or bad_point or not sources_compile(lines.compiled):
        return BAD
    if here:
        return OK
    return verified_nothing((line.reason for line in in_sweep), "cell", compiled=bool(lines.compiled))


def verify_defects(console: Console, job: Job, catalog: Catalog, lines: CheckLines, defects: Sequence[Variant]) -> int:
    """Print every defect with the check that rejected it; the exit code: 1 where one was not rejected, 2 where all are
    unavailable.
    """
    results = Verification(console, job, catalog, lines)
    try:
        results.run([], defects)
    except (KeyboardInterrupt, RunError):
        results.print_defects([defect for defect in defects if results.of(defect)])
        raise
    results.print_seed()
    results.print_defects(defects)
    console.print()
    accepted = results.print_accepted_defects(defects)
    checked = [variant for variant in defects if results.of(variant)]
    rejected = sum(_rejection(results.of(variant)) is not None for variant in checked)
    missing = len(defects) - len(checked)
    note = f", {missing} unavailable on this machine" if missing else ""
    console.print(Text(f"{rejected} of {len(checked)} rejected{note}"))
    if checked or not defects:
        return BAD if accepted else OK
    return verified_nothing((unavailable(defect, job.device) for defect in defects), "defect")


# --- what is verified -------------------------------------------------------------------------------------------------


def defects_of(catalog: Catalog, operators: Collection[str]) -> list[Variant]:
    """The historic defects of operators, in the order of the catalog."""
    wanted = [name for name in catalog.operators if name in operators]
    return [v for name in wanted for v in catalog.of(name) if v.defect is not None]


def of_files(catalog: Catalog, files: Sequence[str]) -> list[Variant]:
    """The variants that files of --variants define."""
    paths = {Path(file).resolve() for file in files}
    return [v for v in catalog.variants if Path(v.setup.__code__.co_filename).resolve() in paths]


def _at_known_failures(catalog: Catalog, healthy: Sequence[Variant], job: Job) -> list[Check]:
    """The places at which available variants have a known failure."""
    return [
        _check(variant, Named(name=name, buffers=buffers, known_failure=True))
        for variant in healthy
        if unavailable(variant, job.device) is None
        for name, buffers in known_failure_places(catalog.operators[variant.operator], variant)
    ]


def _check(variant: Variant, where: EdgeCases | Named) -> Check:
    return Check(operator=variant.operator, variants=(variant.name,), where=where)


def _groups(variants: Sequence[Variant]) -> list[list[Variant]]:
    """By operator. What takes longest begins first: variants that are slow to verify, then operators with many."""
    groups: dict[tuple[str, bool], list[Variant]] = {}
    for variant in variants:
        groups.setdefault((variant.operator, variant.is_slow_to_verify), []).append(variant)
    return [groups[key] for key in sorted(groups, key=lambda key: (not key[1], -len(groups[key])))]


def _check_of(item: Task) -> Check:
    where = AtPoint(label=item.point, axes=item.axes)
    return Check(operator=item.operator, variants=item.variants, where=where)


def _only(items: Sequence[Check], variants: Collection[Variant]) -> list[Check]:
    """The items with these variants alone."""
    ids = {variant.id for variant in variants}
    cut = (item.of([name for name in item.variants if item.id_of(name) in ids]) for item in items)
    return [item for item in cut if item.variants]


def _rejection(findings: Sequence[Finding]) -> Finding | None:
    """The first finding in which a check rejected the variant. An exception is no rejection."""
    return next((finding for finding in findings if finding.status is Status.MISMATCH), None)


# --- what is printed --------------------------------------------------------------------------------------------------


def verify_consumers(console: Console, job: Job, catalog: Catalog, items: Sequence[Task]) -> int:
    """Run the consumers of the operators on the tables of all variants, and print the comparison; the exit code: 1
    where results differ, or a kernel failed, 2 where no kernel could be run.
    """
    from spec_decode_bench.harness.verify.consumers import compare_consumers

    comparisons = [c for item in items for c in compare_consumers(catalog, item, job.device, job.seed)]
    if not comparisons:
        console.print(Text("no consumer reads the tables of these operators"))
    compared: dict[tuple[str, ...], list] = {}
    for comparison in comparisons:
        if comparison.elements is not None:
            consumer = comparison.consumer
            names = f"{consumer.operator}/{comparison.variant}", consumer.name, consumer.planner
            compared.setdefault(names, []).append(comparison)
    if compared:
        rows = [
            (*names, *(f"{n:,}" for n in (len(at), sum(o.elements for o in at), sum(o.different for o in at))))
            for names, at in compared.items()
        ]
        heads = ("variant", "read by", "as the tables of", "points", "elements", "different")
        print_rows(console, heads, rows)
    failed = Counter((c.consumer.name, c.variant, c.error) for c in comparisons if c.error is not None)
    for (name, variant, error), count in failed.items():
        console.print(Text(f"{name}: {counted(count, 'time')} failed: {variant}: {error}", style="red"))
    left_out = Counter((c.consumer.name, c.reason) for c in comparisons if c.reason is not None)
    for (name, reason), count in left_out.items():
        console.print(Text(f"{name}: {counted(count, 'time')} not compared: {of_reason(reason)}"))
    if any(comparison.bad for comparison in comparisons):
        return BAD
    if compared or not comparisons:
        return OK
    return verified_nothing((c.reason for c in comparisons), "comparison")


def known_failure_text(finding: Finding) -> str:
    """The outcome of a known failure, in words."""
    if finding.message is None:
        return "passes here: remove it from known_failures= if the kernel supports this now"
    return full(finding, elements=0)


def _outcome(finding: Finding) -> str:
    if finding.deaths is not None:
        return NOT_RUN
    return SKIPPED.get(finding.reason and finding.reason.code, finding.status)


def _outcome_at_point(line: CheckLine) -> str:
    """The status; of a variant that failed before it reached the point, where that was."""
    if line.finding is None:
        return line.status
    if line.finding.place is Place.POINT or line.finding.deaths is not None:
        return _outcome(line.finding)
    return f"{line.status} (failed before: {line.finding.place.replace('_', ' ')})"


def _part(line: CheckLine) -> str:
    """Of the verification, that found this."""
    if line.status is Status.KNOWN_FAILURE:
        return KNOWN_FAILURES
    return next(head for head, places in HEADS.items() if line.place in places)


def _counts(outcomes: Sequence[str]) -> str:
    return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))


def full(finding: Finding, elements: int | None = None) -> str:
    """The check, where it was one, and what was seen; elements: as in ``seen``."""
    return f"{f'{finding.check}: ' if finding.check else ''}{seen(finding, elements)}"
