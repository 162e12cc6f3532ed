"""What a timed call finds in the L2 cache, and the pointer chase that proves it.

hot      whatever the call before it left: the calls of a graph run back to back over the same buffers
cold     nothing: twice the L2 has been written in between
serving  twice the L2 has been written, then the inputs, as a sampler and the copy of a block table leave them; tables that
         only the kernel reads or writes lie in memory. The state a step of a server meets

The preparation ends before the first event of a timed span is queued.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from cuda.bindings import driver

from harness.cuda import launcher
from harness.records.schema import CacheState

CALIBRATION_KERNELS = Path(__file__).with_name("calibration_kernels.cu")
#: The ring of the pointer chase: one entry per 128-byte line, in random order, so that no prefetcher helps.
RING_BYTES, LINE_BYTES = 2**18, 128
CHASES = 9


class Cache:
    """Puts the L2 of the current device into a state."""

    def __init__(self, state: CacheState) -> None:
        self.state = state
        l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._stream = None if state == "hot" else torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")

    def prepare(self, rewrite_inputs: Callable[[], None]) -> None:
        """Queue the preparation on the current stream. Lines that a variant marked as persisting are given up first."""
        if self._stream is None:
            return
        driver.cuCtxResetPersistingL2Cache()
        self._stream.fill_(1)
        if self.state == "serving":
            rewrite_inputs()


def measure_chase_cycles(cache: Cache) -> dict[str, list[float]]:
    """Clock cycles per hop of a chase through a ring that is in L2 ("l2"), in memory ("memory"), and in the cache's
    state.

    A ring stands for an input of a launch; under "serving" a second one, "serving_table", for a table nobody has
    rewritten.
    """
    ring = _ring()
    master, out = ring.clone(), torch.zeros(2, dtype=torch.int32, device="cuda")
    hops = RING_BYTES // LINE_BYTES
    chase = launcher(CALIBRATION_KERNELS, "chase", 1, 1, ring, hops, out)
    flush = Cache("cold")

    def cycles(prepare: Callable[[], None]) -> list[float]:
        taken = []
        for _ in range(CHASES):
            chase()
            prepare()
            chase()
            taken.append(int(out[0]) / hops)
        return taken

    found = {"l2": cycles(lambda: None), "memory": cycles(lambda: flush.prepare(lambda: None))}
    found[cache.state] = cycles(lambda: cache.prepare(lambda: ring.copy_(master)))
    if cache.state == "serving":
        found["serving_table"] = cycles(lambda: cache.prepare(lambda: None))
    return found


def _ring() -> torch.Tensor:
    """Each line holds the byte offset of the next one; the last leads back to the first."""
    lines = RING_BYTES // LINE_BYTES
    order = np.random.default_rng(0).permutation(lines)
    ring = np.zeros((lines, LINE_BYTES // 4), dtype=np.int32)
    ring[order, 0] = np.roll(order, -1) * LINE_BYTES
    return torch.from_numpy(ring).cuda()
