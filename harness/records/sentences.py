"""Findings and reasons as sentences. Only people read these; code uses the fields."""

from __future__ import annotations

from spec_decode_bench.harness.contract import COMPILER, GPU, in_buffers
from spec_decode_bench.harness.numbers import counted, significant
from spec_decode_bench.harness.packages import in_words
from spec_decode_bench.harness.records.schema import Cell, Code, Finding, Outcome, Place, Reason

_WHEN = {
    "timing": "during timing: ",
    "after_timing": "after timing: ",
    "audit": "in the second process, under CUPTI: ",
    None: "",
}


def ending(line: Outcome, elements: int | None = None) -> str | None:
    """Why it is not ``passed``; for one that is, a remark, or why it has no graph. elements: as in ``seen``."""
    if line.finding is not None:
        return of_finding(line.finding, elements)
    if line.reason is not None:
        return of_reason(line.reason)
    return line.metrics.no_graph if isinstance(line, Cell) and line.metrics else None


def of_finding(finding: Finding, elements: int | None = None) -> str:
    """``edge case 'L = 1': exact: ...``; without the place where that is the point of the cell."""
    variant = f"{finding.variant}: " if finding.variant else ""
    where = f"{place_of(finding)}: " if finding.place is not Place.POINT and finding.name else ""
    return f"{variant}{where}{what(finding, elements)}"


def what(finding: Finding, elements: int | None = None) -> str:
    """What was found, without the place."""
    check = f"{finding.check}: " if finding.check and finding.check != "no_crash" else ""
    return f"{_WHEN[finding.when]}{check}{seen(finding, elements)}"


def seen(finding: Finding, elements: int | None = None) -> str:
    """The message, and the wrong elements. elements: how many to name at most, and then no more than these."""
    parts = [finding.message or ""]
    difference = finding.difference
    if difference is not None and (named := difference.elements[:elements]):
        parts.append(f"{counted(difference.wrong, 'element')}, first at {'; '.join(named)}")
    if difference is not None and difference.stale and elements is None:
        parts.append("the output matches earlier inputs, which were replaced after set-up")
    return "; ".join(parts)


def place_of(finding: Finding) -> str:
    """``edge case 'L = 1, unaligned buffers'``, ``sequence 'shrinks'``, or the label of a point."""
    name = in_buffers(finding.name, finding.buffers)
    kinds = {Place.EDGE_CASE: "edge case", Place.SEQUENCE: "sequence"}
    return f"{kinds[finding.place]} {name!r}" if finding.place in kinds else name


def of_reason(reason: Reason) -> str:
    variant = f"{reason.variant}: " if reason.variant else ""
    match reason.code:
        case Code.NEEDS:
            text = f"needs {need(reason.detail)}"
        case Code.INTERPRETER_BUDGET:
            text = (
                f"Triton's interpreter or torch.compile used up its {reason.seconds:g} s for this variant "
                "(measure.interpreter_budget_s); it passed all edge cases and earlier batches"
            )
        case Code.KNOWN_FAILURE:
            text = "beyond its known failures"
        case Code.RECOMPILES:
            text = "torch.compile would have to recompile; `verify` lets it"
        case Code.MEMORY:
            text = "not enough memory"
            if reason.needed_bytes is not None:
                text += f": needs about {_gib(reason.needed_bytes)}, {_gib(reason.free_bytes)} are free"
        case Code.INTERPRETED:
            text = "verified under Triton's interpreter, whose times are meaningless"
        case _:
            text = reason.detail
    return f"{variant}{text}"


def _gib(nbytes: int) -> str:
    return f"{significant(nbytes / 2**30)} GiB"


def need(requirement: str) -> str:
    """A value of ``requires=`` in words."""
    if requirement == GPU:
        return "a GPU"
    return "a C++ compiler (g++ or clang++) for torch.compile" if requirement == COMPILER else in_words(requirement)
