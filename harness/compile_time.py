"""Seconds that this process has spent in compilers: NVRTC and Triton, cached results included. torch.compile does not
tell, and counts as verification.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any


class CompileTime:
    """seconds: so far, from the first call of ``compile_time`` on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        with suppress(ImportError, AttributeError):  # without Triton, or one that does not tell
            from triton import knobs

            before = knobs.compilation.listener

            def listen(**event: Any) -> None:
                self.seconds += event["times"].total / 1e6
                if before is not None:
                    before(**event)

            knobs.compilation.listener = listen

    @contextmanager
    def counted(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began


@cache
def compile_time() -> CompileTime:
    """That of this process."""
    return CompileTime()
