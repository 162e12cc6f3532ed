"""Inputs of a captured point: what an engine had in one step, in the places of the inputs that the operator makes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from spec_decode_bench.harness.config.captured import entry_of
from spec_decode_bench.harness.contract import CAPTURE, Operator, Point
from spec_decode_bench.harness.errors import CaptureError

LONGEST = 2**31 - 1


def captured_inputs(operator: Operator, point: Point) -> Any:
    """The inputs of the entry that the point names, laid out as ``make_inputs`` lays them out.

    Raises CaptureError where shapes, dtypes or host integers are not those of the point, as no other batch could take
    their place then, and where lengths are beyond what the axes allow.
    """
    entry, inputs = entry_of(operator.name, point[CAPTURE]), operator.make_inputs(point, 0)
    values, contents = entry.values, {}
    names = [field.name for field in dataclasses.fields(inputs)]
    if unknown := next((name for name in values if name not in names), None):
        raise CaptureError(f"the captured inputs have {unknown!r}, which is none of {operator.name}")
    for name in names:
        made, captured = getattr(inputs, name), values.get(name)
        if isinstance(captured, np.ndarray):
            captured = torch.from_numpy(captured)
        if _kind(captured) != _kind(made):
            raise CaptureError(f"the captured {name} is {_kind(captured)}, at this point it is {_kind(made)}")
        if isinstance(made, torch.Tensor):
            contents[name] = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype).copy_(captured)
    inputs = dataclasses.replace(inputs, **contents)
    if (reason := _beyond(point, inputs)) is not None:
        raise CaptureError(f"the captured inputs have {reason}")
    return inputs


def _beyond(point: Point, inputs: Any) -> str | None:
    """The first length that no generated inputs of the point have, so that variants may rule it out."""
    starts, lens = getattr(inputs, "query_start_loc", None), getattr(inputs, "seq_lens", None)
    longest_row = max(point.get("max_decode_len", LONGEST), point.prefill_len if point.get("prefills", 0) else 0)
    bounds = [
        ("query tokens", None if starts is None else torch.diff(starts), longest_row),
        ("tokens of context", lens, point.get("max_model_len", LONGEST)),
    ]
    for what, lengths, most in bounds:
        if lengths is not None and len(rows := ((lengths < 0) | (lengths > most)).nonzero()):
            row = int(rows[0])
            return f"{int(lengths[row])} {what} in row {row}, at this point there are 0 to {most}"
    return None


def _kind(value: Any) -> str:
    """Shape and dtype of a tensor, or a host integer; all of it depends on the point alone."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)}".removeprefix("torch.")
    return "absent" if value is None else str(value)
