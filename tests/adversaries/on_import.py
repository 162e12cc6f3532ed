"""Replaces a method that times GPU work while it is imported."""

import torch

from spec_decode_bench.baselines.decode_native.chains import chain_clamp
from spec_decode_bench.harness.contract import variant

torch.cuda.Event.elapsed_time = lambda self, other: 1e-6


@variant("decode_native", skip=chain_clamp.__variant__.skip, waives="no_alloc")
def patches_events_on_import(point, x, out):
    return chain_clamp(point, x, out)
