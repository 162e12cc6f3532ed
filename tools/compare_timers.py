"""Compares this suite's timer with others on kernels of known duration, on a GPU:

    python -m tools.compare_timers [--json FILE]

Each kernel waits on the GPU's global timer and writes how long it took. The residual of a timer is
measured - true - constant; the constant is the median of measured - true over the kernels, since the start and end of a
kernel are not part of its wait, and each timer includes a different share of them. The others are Triton's do_bench and
do_bench_cudagraph, and cuda-bench (NVIDIA nvbench) where it is installed. ``--json`` keeps the measured times;
tools/splice.py writes the table of docs/methodology.md from such a file in results/reference/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton.testing

from spec_decode_bench.harness.analysis.stats import slopes
from spec_decode_bench.harness.numbers import signed
from spec_decode_bench.harness.report.table import Column, Entry, Table, markdown_rows, number_column
from spec_decode_bench.harness.timing.calibrate import Kernels
from spec_decode_bench.harness.timing.cuda_timer import CudaTimer
from spec_decode_bench.harness.timing.environment import describe
from spec_decode_bench.harness.timing.rounds import PlacedLaunch

ROUNDS = 20
COPIES = (1, 2, 4, 8, 16)
RAMP_S = 0.5


def graph_slope(timer: CudaTimer, launch: Callable[[], None]) -> float:
    """The median gpu_us of a launch."""
    stopwatch = timer.stopwatch(PlacedLaunch(launch))
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


def constant_and_residuals(true_us: list[float], measured_us: list[float]) -> tuple[float, list[float]]:
    """(median of measured - true, what is left of each difference), microseconds."""
    differences = [measured - true for true, measured in zip(true_us, measured_us, strict=True)]
    constant = statistics.median(differences)
    return constant, [difference - constant for difference in differences]


def measure() -> tuple[list[float], dict[str, list[float]]]:
    """(true durations of the spin kernels, timer -> its medians for them), microseconds."""
    kernels, timer = Kernels(), CudaTimer(COPIES)
    timer.ramp(RAMP_S)
    true_us: list[float] = []
    by_timer: dict[str, list[float]] = {
        "graph slope": [],
        "triton.testing.do_bench_cudagraph": [],
        "triton.testing.do_bench": [],
    }
    for launch in kernels.spins.values():
        by_timer["graph slope"].append(graph_slope(timer, launch))
        true_us.append(kernels.taken_ns.item() / 1e3)
        by_timer["triton.testing.do_bench"].append(triton.testing.do_bench(launch, return_mode="median") * 1e3)
        with torch.cuda.stream(torch.cuda.Stream()):
            us = triton.testing.do_bench_cudagraph(launch, return_mode="median") * 1e3
        by_timer["triton.testing.do_bench_cudagraph"].append(us)
    if by_nvbench := nvbench(kernels.spins):
        by_timer["cuda-bench"] = [by_nvbench[ns] for ns in kernels.spins]
    return true_us, by_timer


def documented(found: dict[str, Any]) -> list[str]:
    """What --json wrote, as a table in Markdown with the versions below it."""
    rows = []
    for name, measured_us in found["measured_us"].items():
        constant, residuals = constant_and_residuals(found["true_us"], measured_us)
        worst = f"{signed(1000 * max(residuals, key=abs), '.0f')} ns"
        rows.append(
            (Entry(name, style="code"), *map(Entry, (*(f"{us:.3f}" for us in (*measured_us, constant)), worst)))
        )
    heads = (*(f"{us:.3f}" for us in found["true_us"]), "constant", "largest residual")
    table = Table("", (Column("timer"), *map(number_column, heads)), tuple(rows))
    versions = f"{found['gpu']}, driver {found['driver']}, torch {found['torch']}, Triton {found['triton']}."
    return [*markdown_rows(table), "", versions]


def main() -> None:
    parser = argparse.ArgumentParser("python -m tools.compare_timers", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the times to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "error: this tool times kernels on a GPU, and PyTorch sees none here\n")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
    true_us, by_timer = measure()
    environment = describe("cuda")
    record = {name: getattr(environment, name) for name in ("gpu", "driver", "torch", "triton")}
    record |= {"true_us": true_us, "measured_us": by_timer}
    print("\n".join(documented(record)))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
