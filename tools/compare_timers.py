"""The ruler beside three others, on kernels whose time is known: ``python -m tools.compare_timers`` on a GPU.

Each kernel waits on the GPU's global timer and leaves what it took. A tool's residual is measured - true - constant,
with the constant its median over the kernels (a kernel's start and end are no part of the wait, and every tool counts
another share of them). cuda-bench (NVIDIA nvbench) takes part where it is installed.
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
    """gpu_us of this suite."""
    watch = timer.stopwatch(launch)
    taken = [watch.sample()["graph_us"] for _ in range(ROUNDS)]
    return statistics.median(slopes({copies: [one[copies] for one in taken] for copies in COPIES}))


def nvbench(launches: dict[int, Callable[[], None]]) -> dict[int, float]:
    """Nanoseconds asked for -> mean GPU time of cuda-bench's cold measurement in us; empty where it is not
    installed.
    """
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
    true, found = {}, {"graph slope": {}, "do_bench": {}, "do_bench_cudagraph": {}}
    for ns, launch in kernels.spins.items():
        found["graph slope"][ns] = graph_slope(timer, launch)
        true[ns] = kernels.taken.item() / 1e3
        found["do_bench"][ns] = triton.testing.do_bench(launch, return_mode="median") * 1e3
        with torch.cuda.stream(torch.cuda.Stream()):
            found["do_bench_cudagraph"][ns] = triton.testing.do_bench_cudagraph(launch, return_mode="median") * 1e3
    if theirs := nvbench(kernels.spins):
        found["cuda-bench"] = theirs
    print(f"{'true us':>20}", *(f"{us:9.3f}" for us in true.values()), f"{'constant':>9} {'largest residual ns':>20}")
    for tool, measured in found.items():
        constant = statistics.median(measured[ns] - true[ns] for ns in true)
        worst = max((measured[ns] - true[ns] - constant for ns in true), key=abs)
        print(f"{tool:>20}", *(f"{measured[ns]:9.3f}" for ns in true), f"{constant:9.3f} {worst * 1e3:20.0f}")


if __name__ == "__main__":
    main()
