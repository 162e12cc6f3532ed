"""What the ruler itself reads in this run: kernels of known duration, the smallest copy, the copy bandwidth, the
caches.

Recorded raw, measured with every run, never subtracted from a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from harness.cuda import launcher
from harness.nvtx_ranges import nvtx_range
from harness.records.schema import Calibration, KernelTimes
from harness.timing.cache import CALIBRATION_KERNELS, measure_chase_cycles
from harness.timing.clocks import Clocks
from harness.timing.cuda_timer import CudaTimer
from harness.timing.queued_events import QueuedEvents
from harness.timing.rounds import DIGITS

ROUNDS = 20
#: Integers in the one-block copy: the size of the lengths of a large decode step.
BLOCK_COPY_INTS = 1024
#: Blocks and integers of the wide copy: the grid and the traffic of an expanded block table.
WIDE_BLOCKS, WIDE_THREADS = 528, 256
#: Waits of the spin kernels, nanoseconds.
SPINS_NS = (1000, 2000, 5000, 10_000, 20_000)
EMPTY_PAIRS = 100
COPY_BYTES = 2**30
COPY_ROUNDS = 7


class Kernels:
    """The ruler's own kernels: the kinds of nodes there are in what is measured (own), and spins of a known duration.

    null: nothing. block_copy: one block. wide_copy: four blocks on every SM of a large GPU. operator: one of PyTorch's own.
    gather: one that reads by index, as from a block table. chain: five operators, one a memcpy.
    A spin leaves what it took in ``taken`` (nanoseconds).
    """

    def __init__(self) -> None:
        self.source = torch.randint(2**31 - 1, (BLOCK_COPY_INTS,), dtype=torch.int32, device="cuda")
        self.target = torch.empty_like(self.source)
        self.order = torch.randperm(BLOCK_COPY_INTS, device="cuda")
        self.taken = torch.zeros(1, dtype=torch.int64, device="cuda")
        wide = torch.randint(2**31 - 1, (WIDE_BLOCKS * WIDE_THREADS * 4,), dtype=torch.int32, device="cuda")
        self.own = {
            "null": launcher(CALIBRATION_KERNELS, "null_kernel", 1, 32),
            "block_copy": launcher(
                CALIBRATION_KERNELS, "block_copy", 1, BLOCK_COPY_INTS // 4, self.source, self.target
            ),
            "wide_copy": launcher(
                CALIBRATION_KERNELS, "block_copy", WIDE_BLOCKS, WIDE_THREADS, wide, torch.empty_like(wide)
            ),
            "operator": lambda: self.target.bitwise_xor_(self.source),
            "gather": lambda: torch.index_select(self.source, 0, self.order, out=self.target),
            "chain": self._chain,
        }
        self.spins = {ns: launcher(CALIBRATION_KERNELS, "timed_spin", 1, 1, ns, self.taken) for ns in SPINS_NS}

    def _chain(self) -> None:
        self.target.copy_(self.source)
        self.target.add_(self.source)
        self.target.clamp_(min=0)
        self.target.floor_divide_(7)
        self.target.fill_(1)


def calibrate(timer: CudaTimer, clocks: Clocks) -> Calibration:
    """Everything but CUPTI, which another process measures. The clock must be up."""
    kernels = Kernels()
    with nvtx_range("calibrate", "calibrate"):
        own = {name: _probe(timer, launch) for name, launch in kernels.own.items()}
        kernels.own["block_copy"]()
        if not torch.equal(kernels.source, kernels.target):
            raise RuntimeError("the calibration copy came out wrong; this GPU or driver cannot be trusted")
        events = QueuedEvents(timer.spin)
        source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return Calibration(
            own={name: probe for name, (probe, _) in own.items()},
            spins={ns: _probe(timer, launch, kernels.taken)[0] for ns, launch in kernels.spins.items()},
            empty_pair_us=[round(events.microseconds("empty", lambda: None), DIGITS) for _ in range(EMPTY_PAIRS)],
            launch_host_us=own["block_copy"][1],
            copy_bytes=COPY_BYTES,
            copy_us=[events.microseconds("copy", lambda: target.copy_(source)) for _ in range(COPY_ROUNDS)],
            chase_cycles=measure_chase_cycles(timer.cache),
            sm_clock_mhz=clocks.run_clock_mhz,
        )


def _probe(
    timer: CudaTimer, launch: Callable[[], None], taken: torch.Tensor | None = None
) -> tuple[KernelTimes, list[float]]:
    """The probe, and host times of its launch."""
    watch = timer.stopwatch(launch, stream_rounds=ROUNDS)
    samples: list[Mapping] = []
    true_us: list[float] = []
    for _ in range(ROUNDS):
        samples.append(watch.sample())
        if taken is not None:
            true_us.append(int(taken) / 1e3)
    series = lambda figure: {n: [round(one[figure][n], DIGITS) for one in samples] for n in samples[0][figure]}  # noqa: E731
    state_us = [one["state_us"] for one in samples if "state_us" in one]
    probe = KernelTimes(
        graph_us=series("graph_us"),
        stream_us=series("stream_us"),
        state_us=state_us,
        true_us=true_us,
        launches=watch.facts()["launches"],
    )
    return probe, [one["host_us"] for one in samples]
