"""Compares this suite's timer with others on kernels of known duration: ``python -m tools.compare_timers``, on a GPU.

Each kernel waits on the GPU's global timer and writes how long it took. The residual of a timer is
measured - true - constant; the constant is the median of measured - true over the kernels, since the start and end of a
kernel are not part of its wait, and each timer includes a different share of them. The others are Triton's do_bench and
do_bench_cudagraph, and cuda-bench (NVIDIA nvbench) where it is installed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import triton.testing

from harness.analysis.stats import slopes
from harness.timing.calibrate import Kernels
from harness.timing.cuda_timer import CudaTimer

ROUNDS = 20
COPIES = (1, 2, 4, 8, 16)
RAMP_S = 0.5


def graph_slope(timer: CudaTimer, launch: Callable[[], None]) -> float:
    """The median gpu_us of a launch."""
    stopwatch = timer.stopwatch(launch)
    rounds = [stopwatch.sample()["graph_us"] for _ in range(ROUNDS)]
    return statistics.median(slopes({copies: [one[copies] for one in rounds] for copies in COPIES}))


def nvbench(launches: dict[int, Callable[[], None]]) -> dict[int, float]:
    """Nanoseconds asked for -> mean GPU time by cuda-bench's cold measurement, us; empty if it is not installed."""
    try:
        from cuda import bench
    except ImportError:
        return {}

    def spin(state: bench.State) -> None:
        launch = launches[state.get_int64("ns")]

        def on_its_stream(given: bench.Launch) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(given.get_stream().addressof())):
                launch()

        state.exec(on_its_stream, batched=False)

    bench.register(spin).add_int64_axis("ns", list(launches))
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "spins.csv")
        bench.run_all_benchmarks([sys.argv[0], "--csv", str(table), "--timeout", "10"])
        header, *rows = (line.split(",") for line in table.read_text().splitlines() if line)
    ns, seconds = header.index("ns"), header.index("GPU Time (sec)")
    return {int(row[ns]): float(row[seconds]) * 1e6 for row in rows}


def main() -> None:
    kernels, timer = Kernels(), CudaTimer(COPIES)
    timer.ramp(RAMP_S)
    true, measured = {}, {"graph slope": {}, "do_bench": {}, "do_bench_cudagraph": {}}
    for ns, launch in kernels.spins.items():
        measured["graph slope"][ns] = graph_slope(timer, launch)
        true[ns] = kernels.taken_ns.item() / 1e3
        measured["do_bench"][ns] = triton.testing.do_bench(launch, return_mode="median") * 1e3
        with torch.cuda.stream(torch.cuda.Stream()):
            measured["do_bench_cudagraph"][ns] = triton.testing.do_bench_cudagraph(launch, return_mode="median") * 1e3
    if by_nvbench := nvbench(kernels.spins):
        measured["cuda-bench"] = by_nvbench
    print(f"{'true us':>20}", *(f"{us:9.3f}" for us in true.values()), f"{'constant':>9} {'largest residual ns':>20}")
    for name, times in measured.items():
        constant = statistics.median(times[ns] - true[ns] for ns in true)
        worst = max((times[ns] - true[ns] - constant for ns in true), key=abs)
        print(f"{name:>20}", *(f"{times[ns]:9.3f}" for ns in true), f"{constant:9.3f} {worst * 1e3:20.0f}")


if __name__ == "__main__":
    main()
