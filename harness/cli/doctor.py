"""`bench.py doctor`: calibrate the ruler on this machine, show it against known times, say what is wrong and what to
do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from harness.analysis import estimators
from harness.analysis.estimators import ESTIMATORS
from harness.analysis.stats import copy_bandwidth, fit
from harness.config.load import Measure
from harness.records.file import Writer, read_run
from harness.records.schema import Calibration, Header
from harness.report.console import print_calibration_errors, print_environment, print_rows
from harness.runner.protocol import Job
from harness.runner.run import Runner, header

#: Serving has all there is to prove: what was rewritten lies in L2, what was not lies in memory.
CACHE = "serving"


def examine(console: Console, device: str, out: Path | None) -> bool:
    """Print the state of the ruler and, with ``out``, write a record of it and a plot. True where it is calibrated; a
    machine without a GPU has no ruler to calibrate and is fine. Raises RunError, RecordError.
    """
    job = Job(device, (), 0, Measure(seed=0, cache=CACHE), timed=device == "cuda", compiled=False)
    runner = Runner(job, lambda line: None, lambda progress: None)
    try:
        ready = runner.ready
    finally:
        runner.close()
    print_environment(console, ready.environment)
    if ready.calibration is None:
        console.print(
            Text("no GPU: PyTorch variants are timed by the wall clock of one thread, and nothing is to be calibrated")
        )
        if out is not None:
            console.print(Text(f"nothing written to {out}"))
        return True
    found = estimators.calibration_errors(ready.calibration, CACHE)
    _print_residuals(console, ready.calibration)
    console.print()
    _print_readings(console, ready.calibration)
    print_calibration_errors(console, found)
    if not found:
        console.print(
            Text("calibrated: every estimator recovers every known time within max(50 ns, 1 %)", style="green")
        )
    if out is not None:
        config = {"name": "doctor", "measure": {"cache": CACHE}}
        _write(console, header(ready, config, command="python bench.py doctor", seed=0), out)
    return not found


def _write(console: Console, line: Header, out: Path) -> None:
    from plots.calibration import draw

    writer = Writer(out / "run.jsonl")
    writer.write(line)
    writer.close()
    drawn = draw([read_run(out / "run.jsonl")], out / "calibration")
    console.print(Text(f"written: {', '.join(str(path) for path in [writer.path, *drawn])}"))


def _print_residuals(console: Console, calibration: Calibration) -> None:
    """How far each estimator misses each known time."""
    by_time: dict[float, dict[str, estimators.Residual]] = {}
    for residual in estimators.residuals(calibration):
        by_time.setdefault(residual.true_us, {})[residual.estimator] = residual
    body = []
    for true_us, row in by_time.items():
        cells = [f"{row[name].error_us * 1000:+.0f}" if name in row else "not taken" for name in ESTIMATORS]
        body.append((f"{true_us:.2f} µs", *cells, f"±{next(iter(row.values())).allowed_us * 1000:.0f}"))
    print_rows(console, ("spin of", *(f"{name} ns off" for name in ESTIMATORS), "allowed"), body)


def _print_readings(console: Console, c: Calibration) -> None:
    """What each estimator reads of the ruler's own kernels, the constants, and what else was calibrated."""
    facts = [
        (
            f"{name.replace('_', ' ')}, µs a call",
            ", ".join(f"{e} {value:.2f}" for e, value in estimators.measured(probe).items()),
        )
        for name, probe in c.own.items()
    ]
    facts += [(f"{name}: add to be in-graph time", str(constant)) for name, constant in estimators.constants(c).items()]
    facts += [
        (
            "lack of fit of T(k), µs",
            ", ".join(f"{name.replace('_', ' ')} {fit(p.graph_us).residual:.2f}" for name, p in c.own.items()),
        ),
        ("event quantum", f"{estimators.event_quantum_us(c) * 1000:.0f} ns"),
        ("two events with nothing between", f"{np.median(c.empty_pair_us):.2f} µs"),
        ("bare launch, host", f"{np.median(c.launch_host_us):.1f} µs"),
        ("copy bandwidth, read + written", f"{copy_bandwidth(c) / 1e6:.2f} TB/s"),
        ("SM clock under load", f"{c.sm_clock_mhz} MHz" if c.sm_clock_mhz else "NVML refuses"),
    ]
    words = {
        "l2": "in L2",
        "memory": "in memory",
        "serving": "rewritten after a flush",
        "serving_table": "not rewritten",
    }
    facts += [
        (f"pointer chase, {words.get(s, s)}", f"{np.median(v):.0f} cycles a hop") for s, v in c.chase_cycles.items()
    ]
    print_rows(console, ("what the ruler reads", ""), facts)
