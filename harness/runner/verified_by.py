"""``--verified-by RUN``: time what an earlier run has verified, without its hard points, sequences and audit again.

Many processes of one revision (``bench.py gate``) need one proof. It holds only for the code, the inputs and the
machine that it was made with, so all three are compared; and every process still checks the results of each launch
before and after it is timed. Never imports torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.config.load import ConfigError, Measure
from harness.config.sweep import Group, cell_keys, with_cells
from harness.records.schema import Cell, Environment, RecordError, Run
from harness.runner.resume import different_machine
from harness.runner.sources import DIGITS, changed_source


def record_hash(proof: Run) -> str:
    """What a header names its proof by: the first digits of the SHA-256 of the file. Raises RecordError."""
    try:
        return hashlib.sha256(Path(proof.path).read_bytes()).hexdigest()[:DIGITS]
    except OSError as error:
        raise RecordError(f"cannot read {proof.path}: {error.strerror}") from None


def check_proof(proof: Run, measure: Measure) -> None:
    """Raises ConfigError where a record cannot stand in for the checks of a run with these settings."""
    where = f"--verified-by {proof.path}"
    if proof.header.verified_by:
        raise ConfigError(f"{where}: this run did not verify its cells itself; name the one that did")
    if not proof.header.sources:
        raise ConfigError(f"{where}: it has no source hashes, so what it verified is not known; record it again")
    if measure.seed not in (None, proof.header.seed):
        raise ConfigError(f"{where}: it has seed {proof.header.seed}, not {measure.seed}; leave the seed out")
    if measure.audit and not proof.header.config.get("measure", {}).get("audit", True):
        raise ConfigError(f"{where}: its cells were not audited; record it with measure.audit=true")


def split(groups: Sequence[Group], proof: Run) -> tuple[list[Group], list[Cell]]:
    """(the groups of the cells that the record passed and timed, its cells of the others, which stand as they are).

    Raises ConfigError where the record lacks a cell, or timed none of them.
    """
    recorded = {cell.key: cell for cell in proof.cells}
    keys = cell_keys(groups)
    if missing := [key for key in keys if key not in recorded]:
        raise ConfigError(f"--verified-by {proof.path}: it has no cell {missing[0]}; give the same configuration")
    timed = {key for key in keys if recorded[key].metrics and recorded[key].metrics.rounds}
    if not timed:
        raise ConfigError(f"--verified-by {proof.path}: none of these cells was timed there")
    return with_cells(groups, timed), [recorded[key] for key in keys if key not in timed]


def check_same_code(proof: Run, sources: Mapping[str, str]) -> None:
    """Raises RecordError where a file that these cells depend on is not the one that the record verified."""
    if (changed := changed_source(sources, proof.header.sources)) is not None:
        raise RecordError(
            f"--verified-by {proof.path}: {changed} differs here, so its verification does not apply; "
            "run without --verified-by"
        )


def check_proof_of_machine(proof: Run, environment: Environment) -> None:
    """Raises RecordError where the proof is of another GPU, driver or version."""
    if (difference := different_machine(proof, environment)) is not None:
        name, before, now = difference
        raise RecordError(
            f"--verified-by {proof.path}: it was recorded with {name} {before}, this is {now}; "
            "run without --verified-by"
        )
