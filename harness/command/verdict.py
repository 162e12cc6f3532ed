"""How a run ends: its exit code, and what is said where nothing could be verified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import structs

from spec_decode_bench.harness.analysis.warnings import abbreviated
from spec_decode_bench.harness.exit_codes import BAD, OK, USAGE
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.schema import Code, Reason, Run, sources_compile
from spec_decode_bench.harness.records.sentences import of_reason
from spec_decode_bench.harness.report.console import print_to_stderr


def exit_code(run: Run) -> int:
    """1 where a CUDA source does not compile, or a line is a mismatch or failed; 2 where all are skipped or
    unavailable, which stderr then says.
    """
    lines = run.outcomes
    if not sources_compile(run.header.compiled) or any(line.status.is_bad for line in lines):
        return BAD
    if not lines or any(line.status.is_verdict for line in lines):
        return OK
    noun = "line" if run.others else "cell"
    return verified_nothing((line.reason for line in lines), noun, compiled=bool(run.header.compiled))


def reasons_in_words(reasons: Iterable[Reason | None], noun: str) -> str:
    """``needs a GPU (8 cells); needs the Python module sglang (4 cells)``: the most frequent one first. noun: of what
    has a reason. Empty where nothing has one.
    """
    counts = Counter(of_reason(structs.replace(reason, variant=None)) for reason in reasons if reason is not None)
    named = [f"{text} ({counted(count, noun)})" for text, count in counts.most_common()]
    return "; ".join(abbreviated(named, "more reasons"))


def verified_nothing(reasons: Iterable[Reason | None], noun: str, compiled: bool = False) -> int:
    """Say on stderr that nothing could be verified, why, and what to do; the exit code of such a command.

    reasons, noun: as of ``reasons_in_words``. compiled: whether CUDA sources were compiled, without an error.
    """
    reasons = list(reasons)
    text = f"nothing could be verified here{', though the CUDA sources compile' if compiled else ''}"
    if why := reasons_in_words(reasons, noun):
        text += f": {why}"
    if any(reason is not None and reason.code in (Code.NEEDS, Code.MEMORY) for reason in reasons):
        remedy = "install what is missing, or use a machine that has it"
    else:
        remedy = "choose other points or variants"
    print_to_stderr(f"error: {text}; {remedy}")
    return USAGE
