"""Which calls of the CUDA runtime and driver wait for the device."""

from __future__ import annotations

import re

_WAITS = re.compile(r"Synchronize|^cudaMemcpy(_v\d+)?$|^cuMemcpy[DH]to[DH](_v\d+)?$")


def waits(name: str) -> bool:
    return _WAITS.search(name) is not None
