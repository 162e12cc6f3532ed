"""Prepares the cache states of harness/analysis/cache_states.py, and measures by a pointer chase whether they hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from cuda.bindings import driver

from spec_decode_bench.harness.analysis.cache_states import CACHE_STATES, CacheName
from spec_decode_bench.harness.cuda import launcher

CALIBRATION_KERNELS = Path(__file__).with_name("calibration_kernels.cu")
#: The ring of the pointer chase: one entry per 128-byte line, in random order, so that no prefetcher helps.
RING_BYTES, LINE_BYTES = 2**18, 128
CHASES = 9


class Cache:
    """Puts the L2 of the current device into a state. Lines that a variant marked as persisting are released first."""

    def __init__(self, name: CacheName) -> None:
        self.state = CACHE_STATES[name]
        self._flush_buffer = None
        if self.state.flush:
            l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            self._flush_buffer = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")

    def prepare(self, rewrite_inputs: Callable[[], None]) -> None:
        """Queue the preparation on the current stream, before the first event of a timed span."""
        if self._flush_buffer is not None:
            driver.cuCtxResetPersistingL2Cache()
            self._flush_buffer.fill_(1)
        if self.state.rewrite_inputs:
            rewrite_inputs()


def measure_chase_cycles(cache: Cache) -> dict[str, list[float]]:
    """Clock cycles per hop of a chase through a ring that is in L2 ("l2"), in memory ("memory"), and where the
    cache's state leaves it (the state's chases).
    """
    ring = _ring()
    master, out = ring.clone(), torch.zeros(2, dtype=torch.int32, device="cuda")
    hops = RING_BYTES // LINE_BYTES
    chase = launcher(CALIBRATION_KERNELS, "chase", 1, 1, ring, hops, out)
    flush = Cache("cold")

    def nothing() -> None:
        pass

    def cycles_after(prepare: Callable[[], None]) -> list[float]:
        cycles_per_hop = []
        for _ in range(CHASES):
            chase()
            prepare()
            chase()
            cycles_per_hop.append(int(out[0]) / hops)
        return cycles_per_hop

    cycles = {"l2": cycles_after(nothing), "memory": cycles_after(lambda: flush.prepare(nothing))}
    for state_chase in cache.state.chases:
        rewrite = (lambda: ring.copy_(master)) if state_chase.is_input else nothing
        cycles[state_chase.name] = cycles_after(lambda rewrite=rewrite: cache.prepare(rewrite))
    return cycles


def _ring() -> torch.Tensor:
    """Each line holds the byte offset of the next one; the last line holds that of the first."""
    lines = RING_BYTES // LINE_BYTES
    order = np.random.default_rng(0).permutation(lines)
    ring = np.zeros((lines, LINE_BYTES // 4), dtype=np.int32)
    ring[order, 0] = np.roll(order, -1) * LINE_BYTES
    return torch.from_numpy(ring).cuda()
