"""Inputs and outputs as one argument of a kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from spec_decode_bench.harness.bundle import bundle, bundle_type
from spec_decode_bench.harness.contract import HOST


@dataclass(frozen=True)
class Inputs:
    idx: torch.Tensor
    mask: torch.Tensor
    lens_device: torch.Tensor | None
    lens_cpu: torch.Tensor = field(metadata=HOST)
    lens_host: torch.Tensor | None = field(metadata=HOST)
    bins: torch.Tensor | None = None
    count: int = 3


def test_a_bundle_has_the_fields_that_a_kernel_can_read():
    idx, mask, lens = torch.arange(3), torch.tensor([True, False]), torch.arange(2)
    for pair in ((lens, None), (None, lens)):
        made = bundle(Inputs(idx, mask, pair[0], lens, pair[1]))
        assert made._fields == ("idx", "mask", "lens", "bins", "count")
        assert (made.bins, made.count, made.mask.dtype) == (None, 3, torch.uint8)
        addresses = [tensor.data_ptr() for tensor in (made.idx, made.lens, made.mask)]
        assert addresses == [tensor.data_ptr() for tensor in (idx, lens, mask)]


def test_all_bundles_of_a_dataclass_have_one_type():
    """Triton compiles a kernel anew for another one."""
    assert bundle_type(Inputs) is bundle_type(Inputs)
