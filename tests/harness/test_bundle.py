"""Inputs and outputs as one argument of a kernel."""

from __future__ import annotations

import torch

from spec_decode_bench.harness.bundle import bundle, bundle_type
from spec_decode_bench.harness.tensors import I32, I64, Bool, Tensors, field


class Inputs(Tensors):
    idx: I64["n"]
    mask: Bool["n"]
    lens_device: I32["n"] = field(where=lambda p: p.n > 1)
    lens_cpu: I32["n"] = field(host=True)
    lens_host: I32["n"] = field(uva=True, where=lambda p: p.n == 1)
    bins: I32["n"] = field(where=lambda p: p.n > 2)
    count: int = 3


def test_a_bundle_has_the_fields_that_a_kernel_can_read():
    idx, mask, lens = torch.arange(3), torch.tensor([True, False]), torch.arange(2)
    for pair in ((lens, None), (None, lens)):
        made = bundle(Inputs(idx, mask, lens, lens_device=pair[0], lens_host=pair[1]))
        assert made._fields == ("idx", "mask", "lens", "bins", "count")
        assert (made.bins, made.count, made.mask.dtype) == (None, 3, torch.uint8)
        addresses = [tensor.data_ptr() for tensor in (made.idx, made.lens, made.mask)]
        assert addresses == [tensor.data_ptr() for tensor in (idx, lens, mask)]


def test_all_bundles_of_a_dataclass_have_one_type():
    """Triton compiles a kernel anew for another one."""
    assert bundle_type(Inputs) is bundle_type(Inputs)
