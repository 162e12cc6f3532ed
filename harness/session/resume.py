"""What an earlier record is good for: --resume completes it, and --trust believes what passed in it. Do command, files
and machine match?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spec_decode_bench.harness.config.load import ConfigError
from spec_decode_bench.harness.records.differences import changed_source, differences, differing, settings
from spec_decode_bench.harness.records.file import as_recorded
from spec_decode_bench.harness.records.schema import Environment, Proof, RecordError, Run, Status


def check_same_sweep(run: Run, config: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raises ConfigError if the command describes a different run than the record.

    config: as plain values. keys: of all its lines. The seed may be left out, as it is in the record.
    """
    now, recorded, where = as_recorded(config), run.header, f"--resume {run.path}: it was recorded with"
    if recorded.name != config["name"]:
        raise ConfigError(f"--resume {run.path}: it is a record of {recorded.name}, not of {config['name']}")
    changes = differing(settings(recorded.config), settings(now))
    if changed := [change for change in changes if change.name != "config.measure.seed"]:
        names = ", ".join(f"{one.name.removeprefix('config.')} {one.ours} (now {one.theirs})" for one in changed)
        raise ConfigError(f"{where} another configuration, {names}; give the same one")
    if set(keys) != set(recorded.cells):
        raise ConfigError(f"{where} other cells; give the same --only, --shard and --variants")
    if (seed := now.get("measure", {}).get("seed")) not in (None, recorded.seed):
        raise ConfigError(f"{where} seed {recorded.seed}, not {seed}; leave the seed out")


def check_same_sources(run: Run, sources: Mapping[str, str]) -> None:
    """Raises RecordError where a file that the recorded cells depend on has another content now."""
    if changed := changed_source(run.header.sources, sources):
        raise RecordError(
            f"{run.path}: {changed} has changed since, so new cells would use different code or inputs; put it back, "
            "or record the run again"
        )


def check_same_machine(run: Run, environment: Environment) -> None:
    """Raises RecordError where cells of this process must not be in the same record."""
    for difference in differences(run.header.environment, environment, "one_record"):
        raise RecordError(f"{difference.between(run.path, 'this process')}; record the run again")


def trusted_of(run: Run, sources: Mapping[str, str], environment: Environment) -> dict[str, Proof]:
    """``passed_in`` a record of --trust. Raises RecordError where a file that cells depend on has another content than
    then, or none, or where the machine is not of the same kind.
    """
    if changed := changed_source(sources, run.header.sources):
        raise RecordError(f"--trust {run.path}: {changed} has changed since; leave --trust away")
    for difference in differences(run.header.environment, environment, "trust"):
        raise RecordError(f"--trust: {difference.between(run.path, 'this process')}; leave --trust away")
    return passed_in(run)


def passed_in(run: Run) -> dict[str, Proof]:
    """ "operator/variant" -> where it passed its edge cases, of the variants that passed wherever they ran."""
    failed = {cell.variant_id for cell in run.cells if cell.status.is_bad}
    return {
        cell.variant_id: cell.proof
        or Proof(key=run.path, verified_at=run.header.started, gpu_id=run.process_of(cell).environment.gpu_id)
        for cell in run.cells
        if cell.status is Status.PASSED and cell.variant_id not in failed
    }
