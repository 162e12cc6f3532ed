"""Capture files of generated inputs: what a test captures is what it finds again. No engine made them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spec_decode_bench.harness.captures import CaptureWriter, Header, Speculative
from spec_decode_bench.harness.contract import Operator

HEADER = Header(
    engine="vLLM", engine_version="0.0", model="made-up", speculative=Speculative(method="eagle", num_drafts=3)
)


def fields_of(inputs: Any) -> dict[str, Any]:
    """What an engine's hook hands to the writer."""
    return {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}


def write(path: Path, entries: Iterable[tuple[int, str, Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """A file of (step, operator, axes, fields of inputs); its path."""
    writer = CaptureWriter(path, HEADER)
    for entry in entries:
        writer.add(*entry)
    writer.close()
    return str(path)


def generated(
    operator: Operator, seed: int, step: int = 0, **axes: Any
) -> tuple[int, str, dict[str, Any], dict[str, Any]]:
    """An entry with inputs of the operator's own."""
    return step, operator.name, axes, fields_of(operator.make_inputs(operator.complete(axes), seed))
