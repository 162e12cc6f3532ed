"""Two forms of the (B, L) lengths of decode_native: the scalar loop, and a chain of torch operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def context_lens(
    seq_lens: Sequence[int], decode_lens: Sequence[int], width: int, front: bool = False, compress_ratio: int = 1
) -> list[int]:
    """B * width lengths, row after row."""
    lens = []
    for seq_len, decode_len in zip(seq_lens, decode_lens, strict=True):
        for j in range(width):
            if not front:
                length = seq_len - width + 1 + j
            else:
                length = seq_len - decode_len + 1 + j if j < decode_len else 0
            lens.append(max(length, 0) // compress_ratio)
    return lens


def native_chain(seq_lens: Tensor, target: Tensor, next_n: int, compress_ratio: int = 1, clamp: bool = True):
    """unsqueeze, sub, add, add, [clamp_], [// ratio], copy into ``target`` (B, L); three temporaries."""
    width = target.shape[1]
    offsets = torch.arange(next_n, dtype=torch.int32, device=target.device)

    def launch():
        lens = seq_lens.unsqueeze(1) - width + 1 + offsets[:width]
        if clamp:
            lens.clamp_(min=0)
        if compress_ratio > 1:
            lens //= compress_ratio
        target.copy_(lens)

    return launch
