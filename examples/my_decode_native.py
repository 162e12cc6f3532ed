"""A minimal variant: decode_native as one broadcast add, clamped and divided in place.

python bench.py configs/native.yaml --variants examples/my_decode_native.py
"""

import torch

from baselines.decode_native.operator import views
from harness.contract import variant


@variant("decode_native", skip=lambda p: "end-aligned rows only" if p.row_alignment == "front" else None)
def mine(point, x, out):  # set-up: allocation, compilation, host constants. Not timed
    lens = views(point, out)["context_lens"]  # [B, L] int32
    shifts = torch.arange(1 - point.max_decode_len, 1, dtype=torch.int32, device=lens.device)

    def launch():  # the only timed code
        torch.add(x.seq_lens[:, None], shifts, out=lens).clamp_(min=0).floor_divide_(point.compress_ratio)

    return launch
