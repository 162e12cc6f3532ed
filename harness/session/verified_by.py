"""``--verified-by RUN``: time what an earlier run has verified, without its edge cases, sequences and audit again.

Many processes of one revision (``bench.py gate``) need one proof. It holds only for the code, the inputs and the
machine that it was made with, so all three are compared; and every process still checks the results of each launch
before and after it is timed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs

from harness.config.load import ConfigError, Measure
from harness.config.work_items import Cells, keys_of, with_keys
from harness.dependencies import DIGITS
from harness.records.differences import differences
from harness.records.schema import Cell, Environment, RecordError, Run


def record_hash(proof: Run) -> str:
    """What a header names its proof by: the first digits of the SHA-256 of the file."""
    try:
        return hashlib.sha256(Path(proof.path).read_bytes()).hexdigest()[:DIGITS]
    except OSError as error:
        raise RecordError(f"cannot read {proof.path}: {error.strerror}") from None


def check_proof(proof: Run, measure: Measure) -> None:
    """Raises ConfigError where a record cannot stand in for the checks of a run with these settings."""
    where = f"--verified-by {proof.path}"
    if proof.header.verified_by:
        raise ConfigError(f"{where}: this run did not verify its own cells; name the run that did")
    if not proof.header.sources:
        raise ConfigError(f"{where}: it has no source hashes, so what it verified is unknown; record it again")
    given = {} if measure.seed is None else {"seed": measure.seed}
    for difference in differences(proof, given, "verified_by"):
        raise ConfigError(f"{where}: it has seed {difference.ours}, not {difference.theirs}; leave the seed out")
    if measure.audit and not proof.header.config.get("measure", {}).get("audit", True):
        raise ConfigError(f"{where}: its cells were not audited; record it with measure.audit=true")


def split(items: Sequence[Cells], proof: Run) -> tuple[list[Cells], list[Cell]]:
    """(the items of the cells that the record passed and timed, its cells of the others, which stand as they are).

    Raises ConfigError where the record lacks a cell, or timed none of them.
    """
    recorded = {cell.key: cell for cell in proof.cells}
    keys = keys_of(items)
    if missing := [key for key in keys if key not in recorded]:
        raise ConfigError(f"--verified-by {proof.path}: it has no cell {missing[0]}; use the same configuration")
    timed = {key for key in keys if recorded[key].was_timed}
    if not timed:
        raise ConfigError(f"--verified-by {proof.path}: it timed none of these cells")
    others = [structs.replace(recorded[key], process=0) for key in keys if key not in timed]
    return with_keys(items, timed), others


def check_same_code(proof: Run, sources: Mapping[str, str]) -> None:
    """Raises RecordError where a file that these cells depend on is not the one that the record verified."""
    for difference in differences({"sources": sources}, proof, "verified_by"):
        raise RecordError(
            f"--verified-by {proof.path}: {difference.respect} differs here, so its verification does not apply; "
            "run without --verified-by"
        )


def check_proof_of_machine(proof: Run, environment: Environment) -> None:
    """Raises RecordError where the proof is of another GPU, driver or version."""
    for difference in differences(proof, environment, "verified_by"):
        raise RecordError(
            f"--verified-by {proof.path}: it was recorded with {difference.respect} {difference.ours}, this is "
            f"{difference.theirs}; run without --verified-by"
        )
