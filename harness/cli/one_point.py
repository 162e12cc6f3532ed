"""`bench.py verify CONFIG --point KEY`: one variant at one point, hard point or sequence, named as verify prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from harness.config.load import ConfigError
from harness.config.sweep import Group
from harness.contract import FAR, UNALIGNED, Axis, Operator, Variant
from harness.discover import Catalog, unavailable
from harness.runner.protocol import CheckRequest, Job
from harness.runner.run import Runner
from harness.runner.worker import WorkerDied
from harness.verify.hard_points import judged_limit
from harness.wording import did_you_mean


def parse_key(key: str, catalog: Catalog, groups: Sequence[Group]) -> CheckRequest:
    """``operator/variant/`` and the name of a hard point or sequence, or axes as in the keys of --plan.

    groups: of the configuration. Their values of an axis are known by their labels; others must be spelt as in YAML.

    Raises ConfigError.
    """
    operator, variant = _variant(key, catalog)
    given = key.split("/", 2)[2]
    name = given.removesuffix(UNALIGNED).removesuffix(FAR)
    names = [*(hard.name for hard in operator.hard_points), *operator.sequences]
    if name in names and variant.limit_at(given):
        return CheckRequest(operator.name, variant.name, given, only=True)
    if name in names:
        return CheckRequest(operator.name, variant.name, name)
    if "=" not in name and name != "default":
        raise ConfigError(f"--point {key}: no such hard point, sequence or axes{did_you_mean(name, names)}")
    values = {}
    for part in name.split(",") if name != "default" else ():
        axis_name, _, label = part.partition("=")
        axis = next((axis for axis in operator.axes if axis.name == axis_name), None)
        if axis is None:
            known = [axis.name for axis in operator.axes]
            raise ConfigError(f"--point {key}: no axis {axis_name!r}{did_you_mean(axis_name, known)}")
        used = [group.point[axis.name] for group in groups if group.operator is operator]
        values[axis.name] = _value(key, axis, label, used)
    point = operator.complete(values)
    if (rule := operator.broken_rule(point)) is not None:
        raise ConfigError(f"--point {key}: {rule.message.format(**point)}")
    return CheckRequest(operator.name, variant.name, dict(point))


def _variant(key: str, catalog: Catalog) -> tuple[Operator, Variant]:
    parts = key.split("/", 2)
    if len(parts) < 3:
        raise ConfigError(f"--point {key}: expected OPERATOR/VARIANT/POINT, as verify prints it")
    if parts[0] not in catalog.operators:
        raise ConfigError(f"--point {key}: no operator {parts[0]!r}{did_you_mean(parts[0], list(catalog.operators))}")
    names = [variant.name for variant in catalog.of(parts[0])]
    if parts[1] not in names:
        raise ConfigError(f"--point {key}: no variant {parts[1]!r} of {parts[0]}{did_you_mean(parts[1], names)}")
    return catalog.operators[parts[0]], catalog.find(parts[0], parts[1])


def _value(key: str, axis: Axis, label: str, used: Sequence[Any]) -> Any:
    """The value of an axis with this label. Raises ConfigError."""
    for value in used:
        if axis.label(value) == label:
            return value
    try:
        return axis.parse(yaml.safe_load(label))
    except Exception as error:  # of YAML, or of the axis's parse=, which may be a user's
        problem = error if isinstance(error, ValueError) else "it is spelt otherwise in the configuration"
        raise ConfigError(f"--point {key}: {axis.name}={label}: {problem}") from None


def verify_point(console: Console, job: Job, catalog: Catalog, request: CheckRequest) -> bool:
    """Print what the checks found there; True where the variant does not pass."""
    variant = catalog.find(request.operator, request.variant)
    if reason := unavailable(variant, job.device):
        raise ConfigError(f"--point: {variant.id} is unavailable: {reason}")
    runner = Runner(job, lambda line: None, lambda progress: None)
    try:
        findings = runner.ask(request)
    except WorkerDied as death:
        if request.only:
            console.print(Text(_limited(variant, request.at, f"no_crash: {death}")))
            return False
        console.print(Text(f"{variant.id}: no_crash: {death}", style="red"))
        return True
    finally:
        runner.close()
    if request.only:
        findings = [judged_limit(finding) for finding in findings]
    bad = False
    for finding in findings:
        if finding.outcome == "limited":
            console.print(Text(_limited(variant, finding.name, f"{finding.check}: {finding.message}")))
            continue
        failed = finding.outcome in ("rejected", "failed")
        said = f"{finding.outcome}: {finding.check}: {finding.message}" if failed else finding.outcome
        if finding.outcome == "skipped":
            said += f": {finding.message}"
        console.print(Text(f"{variant.id} at {finding.name}: {said}", style="red" if failed else ""))
        bad = bad or failed
    return bad or not any(finding.outcome in ("passed", "limited") for finding in findings)


def _limited(variant: Variant, name: str, found: str) -> str:
    return f"{variant.id} at {name}: declared unsupported ({variant.limit_at(name)}); found {found}"
