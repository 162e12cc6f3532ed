"""`bench.py doctor`: calibrate the timer on this machine, compare it with known times, and print what it reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.analysis import estimators
from spec_decode_bench.harness.analysis.cache_states import CHASE_LABELS, SERVING, chase_medians
from spec_decode_bench.harness.analysis.estimators import ESTIMATORS, Estimator, Residual
from spec_decode_bench.harness.analysis.stats import copy_bandwidth, copy_bound_curve, fit
from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.numbers import signed
from spec_decode_bench.harness.records.file import read_run, write_run
from spec_decode_bench.harness.records.schema import Calibration, Header, Run
from spec_decode_bench.harness.report.console import print_calibration_errors, print_environment, print_rows
from spec_decode_bench.harness.session.messages import Job
from spec_decode_bench.harness.session.session import Session, header

#: The state that checks most: the inputs must be in L2, the rest in memory.
CACHE = SERVING.name


def examine(console: Console, device: str, out: Path | None) -> bool:
    """Calibrate and print the result; with ``out``, also write a record and a plot. True where the timer is calibrated,
    and on a machine without a GPU, which has nothing to calibrate. Raises RunError, RecordError.
    """
    job = Job(device, (), 0, Measure(seed=0, cache=CACHE), timed=device == "cuda")
    with Session(job) as session:
        ready = session.ready
    print_environment(console, ready.environment)
    console.print()
    for print_lines in registry.DOCTOR:
        print_lines(console, ready.environment.device)
        console.print()
    if ready.calibration is None:
        console.print(
            Text("no GPU: PyTorch variants are timed by the wall clock of one thread, which needs no calibration")
        )
        if out is not None:
            console.print(Text(f"nothing written to {out}"))
        return True
    errors = estimators.calibration_errors(ready.calibration, CACHE)
    _print_residuals(console, ready.calibration)
    console.print()
    _print_readings(console, ready.calibration)
    print_calibration_errors(console, errors)
    if not errors:
        console.print(Text("calibrated: every estimator measures every known time within its tolerance", style="green"))
    if out is not None:
        config = {"name": "doctor", "measure": {"cache": CACHE}}
        _write(console, header(ready, config, command="python bench.py doctor", seed=0), out)
    return not errors


def _write(console: Console, line: Header, out: Path) -> None:
    from spec_decode_bench.plots import draw_all

    path = out / "run.jsonl"
    write_run(Run(str(path), line, []), path)
    drawn = draw_all([read_run(path)], out, figures=["calibration"])
    console.print(Text(f"written: {', '.join(map(str, [path, *drawn]))}"))


def _print_residuals(console: Console, calibration: Calibration) -> None:
    """A row per spin kernel: how far each estimator is off, and what is allowed."""
    by_time: dict[float, dict[Estimator, Residual]] = {}
    for residual in estimators.residuals(calibration):
        by_time.setdefault(residual.true_us, {})[residual.estimator] = residual
    rows = []
    for true_us, row in by_time.items():
        cells = [
            f"{signed(row[estimator].error_us * 1000, '.0f')} of ±{row[estimator].allowed_us * 1000:.0f}"
            if estimator in row
            else "not taken"
            for estimator in ESTIMATORS
        ]
        rows.append((f"{true_us:.2f} µs", *cells))
    print_rows(console, ("spin of", *(f"{estimator.name}, ns off" for estimator in ESTIMATORS)), rows)


def _print_readings(console: Console, calibration: Calibration) -> None:
    """What each estimator reads of the other calibration kernels, its constant, and what else was measured."""
    kernels = {name.replace("_", " "): times for name, times in calibration.own.items()}
    rows = []
    for name, times in kernels.items():
        values = {estimator.name: estimator.value_us(times) for estimator in ESTIMATORS}
        read = ", ".join(f"{name} {us:.2f}" for name, us in values.items() if us is not None)
        rows.append((f"{name}, µs a call", read))
    rows += [
        (f"{estimator.name}: add to get time in a graph", f"{signed(constant * 1000, '.0f')} ns a launch")
        for estimator in ESTIMATORS[1:]
        if (constant := estimators.constant_us(estimator, calibration)) is not None
    ]
    curve = list(zip(*copy_bound_curve(calibration), strict=True))
    copies = [f"{size / 1024:,.0f} KiB {us:.2f}" for size, us in curve[::3]]
    misfits = ", ".join(f"{name} {fit(times.graph_us).residual:.2f}" for name, times in kernels.items())
    rows += [
        ("largest deviation of T(k) from its line, µs", misfits),
        ("resolution of an event", f"{estimators.event_quantum_us(calibration) * 1000:.0f} ns"),
        ("two events with nothing between", f"{np.median(calibration.empty_pair_us):.2f} µs"),
        ("bare launch, host", f"{np.median(calibration.launch_host_us):.1f} µs"),
        ("copy bandwidth, read + written", f"{copy_bandwidth(calibration) / 1e6:.2f} TB/s"),
        ("copy bound: fastest copy of so many bytes, µs", ", ".join(copies)),
        ("SM clock under load", f"{calibration.sm_clock_mhz} MHz" if calibration.sm_clock_mhz else "NVML refuses"),
    ]
    rows += [
        (f"pointer chase, {CHASE_LABELS[name]}", f"{cycles:.0f} cycles a hop")
        for name, cycles in chase_medians(calibration).items()
    ]
    print_rows(console, ("the timer reads", ""), rows)
