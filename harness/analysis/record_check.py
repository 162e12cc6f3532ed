"""Whether a record is fit to be committed: what `bench.py check-record` tells its owner."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable

from spec_decode_bench.harness.analysis.warnings import audit_warnings, disturbed_samples, unknown_line_warnings
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.schema import Cell, Run
from spec_decode_bench.harness.records.sentences import ending

#: Samples that may be kept although the GPU was throttled, as a share of all.
MAX_DISTURBED = 0.01


def problems(run: Run) -> dict[str, str | None]:
    """Check -> what is wrong, in a sentence with the remedy; None where it is fine."""
    return {name: check(run) for name, check in CHECKS.items()}


def _complete(run: Run) -> str | None:
    if run.truncated:
        return f"the last line is incomplete; complete the run with --resume {shlex.quote(run.path)}"
    if missing := run.missing:
        return f"{counted(len(missing), 'planned cell')} missing, the first is {missing[0]}; complete it with --resume"
    if unknown := unknown_line_warnings(run):
        return unknown[0]
    present = Counter(line.key for line in run.outcomes)
    if not present:
        return "there is no cell in it; run a configuration of configs/"
    if twice := next((key for key, count in present.items() if count > 1), None):
        return f"{twice} is there more than once; record it again"
    # The header of merged shards still has the first one's command.
    flags = _flags(run)
    cut = next((flag for flag in ("--only", "--watch") if flag in flags), "--shard" if run.header.shard else None)
    return f"it was recorded with {cut}, so it is a part of the sweep; run the whole configuration" if cut else None


def _flags(run: Run) -> set[str]:
    """Of its command, without values."""
    return {word.partition("=")[0] for word in shlex.split(run.header.command)}


def _gpu(run: Run) -> str | None:
    environment = run.header.environment
    if environment.device != "cuda":
        return "it was recorded on a CPU; run it on a GPU"
    return None if environment.gpu and environment.driver else "it names no GPU or driver; see the notes of its header"


def _calibrated(run: Run) -> str | None:
    if run.uncalibrated:
        return f"{run.uncalibrated[0]}; see python bench.py doctor"
    return None if run.header.calibration or run.others else "it holds no calibration; record it on a GPU"


def _commit(run: Run) -> str | None:
    if run.header.environment.commit is None:
        return "it names no commit; run it in a clone, or with BENCH_COMMIT"
    if run.header.environment.dirty:
        return "the tree had uncommitted changes; commit them, or stash them, and record it again"
    return None


def _clocks(run: Run) -> str | None:
    environments = [run.header.environment, *(segment.environment for segment in run.segments)]
    if refused := next((environment.nvml_refused for environment in environments if environment.nvml_refused), None):
        return f"NVML refuses {', '.join(refused)}; run it as a user who may read the clocks"
    samples = sum(cell.metrics.rounds for cell in run.cells if cell.metrics)
    disturbed = sum(cell.metrics.disturbed for cell in run.cells if cell.metrics)
    if disturbed > MAX_DISTURBED * samples:
        return f"{disturbed_samples(run.cells)}; cool the GPU, or lock its clock below"
    return None


def _passed(run: Run) -> str | None:
    bad = [line for line in run.outcomes if line.status.is_bad]
    if not bad:
        return None
    return f"{counted(len(bad), 'cell')} did not pass, the first is {bad[0].key}: {bad[0].status}: {ending(bad[0])}"


def _audited(run: Run) -> str | None:
    if "--brief" in _flags(run):
        return "it was recorded with --brief, so it was not audited; record it in full"
    for line in run.outcomes:
        audits = {line.key: line.audit} if isinstance(line, Cell) and line.audit else {}
        for name, proof in (line.proofs | audits).items():
            if proof.gpu_id != run.process_of(line).environment.gpu_id:
                return f"{name} was verified on another GPU; record it without --trust"
    warnings = audit_warnings(run.cells)
    return f"{warnings[0]}; CUPTI must be free and permitted" if warnings else None


#: What is checked -> how, in the order of the report.
CHECKS: dict[str, Callable[[Run], str | None]] = {
    "complete sweep": _complete,
    "on a GPU": _gpu,
    "calibrated": _calibrated,
    "clean commit": _commit,
    "clocks": _clocks,
    "every cell passed": _passed,
    "audited": _audited,
}
