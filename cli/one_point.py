"""`bench.py verify CONFIG --point KEY`: one variant at one point, edge case or sequence, named as verify prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from spec_decode_bench.cli.verification import full, known_failure_text
from spec_decode_bench.cli.verify_record import CheckLines
from spec_decode_bench.harness import registry
from spec_decode_bench.harness.command.verdict import verified_nothing
from spec_decode_bench.harness.config.load import ConfigError
from spec_decode_bench.harness.config.work_items import AsEdgeCase, AtPoint, Check, EdgeCases, Named, Task
from spec_decode_bench.harness.contract import BUFFERS, CAPTURE, Axis, Buffers, Operator, Variant, in_buffers
from spec_decode_bench.harness.discover import Catalog, unavailable
from spec_decode_bench.harness.errors import did_you_mean
from spec_decode_bench.harness.exit_codes import BAD, OK
from spec_decode_bench.harness.records.schema import Place, Status, label_parts, split_key
from spec_decode_bench.harness.records.sentences import of_reason
from spec_decode_bench.harness.session.messages import Job
from spec_decode_bench.harness.session.session import Session


def parse_key(key: str, catalog: Catalog, items: Sequence[Task]) -> Check:
    """``operator/variant/`` and the name of an edge case or sequence, or axes as in the keys of --plan.

    items: of the configuration. Their values of an axis, and its examples, are known by their labels; others must be
           spelt as in YAML.

    Raises ConfigError.
    """
    operator, variant = _variant(key, catalog)
    where = _where(key, operator, variant, items)
    return Check(operator=operator.name, variants=(variant.name,), where=where)


def _where(
    key: str, operator: Operator, variant: Variant, items: Sequence[Task]
) -> EdgeCases | Named | AsEdgeCase | AtPoint:
    name, buffers = _parts(split_key(key)[2])
    names = [*(case.name for case in operator.edge_cases), *operator.sequences]
    if name == Place.IMPORT:  # found before any of them
        return EdgeCases()
    if name in names:
        is_known = variant.known_failure_at(name, buffers) is not None
        return Named(name=name, buffers=buffers, known_failure=True) if is_known else Named(name=name)
    if "=" not in name and name != "default":
        raise ConfigError(f"--point {key}: no such edge case, sequence or axes{did_you_mean(name, names)}")
    if CAPTURE in label_parts(name):
        items = [item for item in items if item.operator == operator.name]
        if (item := next((item for item in items if item.point == name), None)) is None:
            points = [item.point for item in items if CAPTURE in item.axes]
            raise ConfigError(f"--point {key}: not a captured point of this configuration{did_you_mean(name, points)}")
        return AtPoint(label=item.point, axes=item.axes)
    point = operator.complete(_values(key, operator, name, items))
    if (rule := operator.broken_rule(point)) is not None:
        raise ConfigError(f"--point {key}: {rule.message.format_map(point)}")
    return AsEdgeCase(axes=dict(point))


def _values(key: str, operator: Operator, label: str, items: Sequence[Task]) -> dict[str, Any]:
    """Axis -> its value, of those in the label of a point. Raises ConfigError."""
    parts = [part.partition("=") for part in label.split(",") if label != "default"]
    labels = {name: value for name, _, value in parts}
    axes = {axis.name: axis for axis in operator.axes}
    for name in labels.keys() - axes.keys():
        raise ConfigError(f"--point {key}: no axis {name!r}{did_you_mean(name, list(axes))}")
    values: dict[str, Any] = {}
    default = operator.complete({})
    for name in sorted(labels, key=lambda name: bool(axes[name].examples_at(default))):  # which may depend on sizes
        used = [item.axes[name] for item in items if item.operator == operator.name]
        known = [*used, *axes[name].examples_at(operator.complete(values))]
        values[name] = _value(key, axes[name], labels[name], known)
    return values


def _parts(text: str) -> tuple[str, Buffers | None]:
    """The name of an edge case, as verify prints it, without the suffix for its buffers."""
    for buffers, suffix in BUFFERS.items():
        if text.endswith(suffix):
            return text.removesuffix(suffix), buffers
    return text, None


def _variant(key: str, catalog: Catalog) -> tuple[Operator, Variant]:
    parts = key.split("/", 2)
    if len(parts) < 3:
        raise ConfigError(f"--point {key}: expected OPERATOR/VARIANT/POINT, as verify prints it")
    if section := next(
        (one for one in map(registry.section, registry.ROOMS) if one.line.__struct_config__.tag == parts[0]), None
    ):
        raise ConfigError(f"--point {key}: a {section.noun} cannot be repeated alone; name OPERATOR/VARIANT/POINT")
    if parts[0] not in catalog.operators:
        raise ConfigError(f"--point {key}: no operator {parts[0]!r}{did_you_mean(parts[0], list(catalog.operators))}")
    names = [variant.name for variant in catalog.of(parts[0])]
    if parts[1] not in names:
        raise ConfigError(f"--point {key}: no variant {parts[1]!r} of {parts[0]}{did_you_mean(parts[1], names)}")
    return catalog.operators[parts[0]], catalog.find(parts[0], parts[1])


def _value(key: str, axis: Axis, label: str, known: Sequence[Any]) -> Any:
    """The value of an axis with this label. Raises ConfigError."""
    for value in known:
        if axis.label(value) == label:
            return value
    try:
        return axis.parse(yaml.safe_load(label))
    except Exception as error:  # of YAML, or of the axis's parse=, which may be a user's
        problem = error if isinstance(error, ValueError) else "it is spelt otherwise in the configuration"
        raise ConfigError(f"--point {key}: {axis.name}={label}: {problem}") from None


def verify_point(console: Console, job: Job, catalog: Catalog, lines: CheckLines, item: Check) -> int:
    """Print what the checks found there; the exit code: 1 where the variant does not pass, 2 where it is skipped."""
    variant = catalog.find(item.operator, item.variants[0])
    if reason := unavailable(variant, job.device):
        raise ConfigError(f"--point: {variant.id} is unavailable: {of_reason(reason)}")
    with Session(job) as session:
        lines.begin(session.ready)
        lines.keep(item, session.run([item]))
    findings = [line.found for line in lines.all]
    for finding in findings:
        place = in_buffers(finding.name, finding.buffers)
        if finding.status is Status.KNOWN_FAILURE:
            declared = variant.known_failure_at(finding.name, finding.buffers)
            text = f"{variant.id} at {place}: declared unsupported ({declared}); found {known_failure_text(finding)}"
            console.print(Text(text))
            continue
        detail = f": {full(finding)}" if finding.status.is_bad else ""
        if finding.reason is not None:
            detail = f": {of_reason(finding.reason)}"
        style = "red" if finding.status.is_bad else ""
        console.print(Text(f"{variant.id} at {place or 'some point'}: {finding.status}{detail}", style=style))
        if finding.difference and finding.difference.inputs:
            console.print(Text(f"its inputs: {'; '.join(finding.difference.inputs)}"))
    if any(finding.status.is_bad for finding in findings):
        return BAD
    if any(finding.status.is_verdict for finding in findings):
        return OK
    return verified_nothing((finding.reason for finding in findings), "place")
