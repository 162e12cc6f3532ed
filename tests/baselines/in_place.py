"""Launches whose state outputs are the arrays that they read, as in an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from harness.contract import Operator, Variant
from harness.verify.equality import compare
from harness.verify.fixture import synchronize
from tests.baselines.random_batches import legal_point
from tests.runnable import DEVICE, on_device


def check_in_place(operator: Operator, variant: Variant, axes: Mapping[str, Any], state: Mapping[str, str]) -> None:
    """Run a variant in place and compare all outputs with the reference. Raises Mismatch. state: output -> input."""
    point = legal_point(operator, axes)
    inputs = operator.make_inputs(point, 3)
    x = on_device(inputs)
    out = on_device(operator.make_outputs(point), **{name: getattr(x, of) for name, of in state.items()})
    tensors = {f.name: t for f in fields(out) if isinstance(t := getattr(out, f.name), torch.Tensor)}
    before = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
    variant.setup(point, x, out)()
    synchronize(DEVICE)
    for name, expected in operator.reference(point, inputs).items():
        compare(name, tensors[name].cpu(), before[name], expected)
