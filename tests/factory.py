"""Made-up records for tests of what reads records. Nothing here is a measurement."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import structs

from spec_decode_bench.harness.analysis.stats import fit
from spec_decode_bench.harness.config.work_items import Task
from spec_decode_bench.harness.contract import Operator
from spec_decode_bench.harness.records.file import Writer
from spec_decode_bench.harness.records.schema import (
    SCHEMA_VERSION,
    Calibration,
    Cell,
    Code,
    Environment,
    Finding,
    Header,
    KernelTimes,
    Metrics,
    Place,
    Reason,
    Run,
    Status,
)

COPIES = (1, 2, 4, 8, 16)


def graph_us(slope: float, rng: np.random.Generator, rounds: int = 20, noise: float = 0.005) -> dict[int, list[float]]:
    """Replay times T(k) = 3 + slope k with relative noise."""
    return {k: [float((3 + slope * k) * (1 + noise * rng.standard_normal())) for _ in range(rounds)] for k in COPIES}


def gpu_environment(gpu: str = "NVIDIA H200", generation: str = "Hopper", sm: str = "sm_90", **changes) -> Environment:
    values = {
        "device": "cuda",
        "processor": "test CPU",
        "python": "3.12.3",
        "torch": "2.11.0+cu130",
        "triton": "3.6.0",
        "cuda_core": "1.2.0",
        "gpu": gpu,
        "generation": generation,
        "sm": sm,
        "sm_count": 132,
        "driver": "580.1",
        "cuda": "13.0",
        "commit": "0123abc",
    }
    return Environment(**(values | changes))


def cpu_environment(**changes) -> Environment:
    values = {"device": "cpu", "processor": "test CPU", "python": "3.11.7", "torch": "2.13.0+cpu", "generation": "CPU"}
    return Environment(**(values | changes))


def calibration(rng: np.random.Generator) -> Calibration:
    """Without errors. Constants: 0.9 us in a graph, 1.75 us in a stream, 0.85 us by CUPTI; noise of a few ns."""
    noise = lambda: 0.003 * rng.standard_normal()  # noqa: E731

    def probe(inside: float, launches: int = 1) -> KernelTimes:
        return KernelTimes(
            graph_us=graph_us(inside + 0.9 * launches, rng, noise=0.0002),
            stream_us=stream_us(inside + 1.75 * launches, rng),
            cupti_us=[inside + 0.85 * launches + noise() for _ in range(10)],
            true_us=[inside] * 20,
            launches=launches,
        )

    def copy(size: int) -> KernelTimes:
        return KernelTimes(graph_us=graph_us(1.08 + size / (2 * 2**30 / 500.0), np.random.default_rng(0), noise=0.0))

    return Calibration(
        own={"null": probe(0.0), "block_copy": probe(0.18), "chain": probe(1.1, launches=5)},
        spins={ns: probe(ns / 1000) for ns in (1000, 2000, 5000, 10_000, 20_000)},
        empty_pair_us=[1.28, 1.312] * 10,
        launch_host_us=[6.0] * 9,
        copy_bytes=2**30,
        copy_us=[500.0] * 5,
        copies={size: {"one block": copy(size)} for size in (4096, 2**30)},
        chase_cycles={"l2": [287.0] * 5, "memory": [665.0] * 5, "hot": [288.0] * 5},
        sm_clock_mhz=1980,
    )


def cold(hot: Calibration) -> Calibration:
    """A cold cache that adds 3 us to every call, of which CUPTI misses 0.2 for each launch."""

    def in_state(probe: KernelTimes) -> KernelTimes:
        first, inside = float(np.median(probe.graph_us[min(probe.graph_us)])), fit(probe.graph_us).slope
        cupti = inside + 3.0 - 0.2 * probe.launches
        return structs.replace(probe, state_us=[first + 3.0] * 20, cupti_us=[cupti] * 20)

    own = {name: in_state(probe) for name, probe in hot.own.items()}
    copies = {size: {name: in_state(one) for name, one in of.items()} for size, of in hot.copies.items()}
    return structs.replace(hot, own=own, copies=copies, spins={ns: in_state(probe) for ns, probe in hot.spins.items()})


def stream_us(
    slope: float, rng: np.random.Generator, rounds: int = 20, noise: float = 0.0002
) -> dict[int, list[float]]:
    return {n: [float((1.3 + slope * n) * (1 + noise * rng.standard_normal())) for _ in range(rounds)] for n in (1, 8)}


def cell(
    operator: str,
    variant: str,
    axes: dict,
    gpu: float | None = None,
    host: float = 20.0,
    cpu: float | None = None,
    *,
    baseline: str = "op_chain",
    rng: np.random.Generator | None = None,
    status: str = "passed",
    reason: str | None = None,
    bytes_moved: int = 100_000,
    launches: int = 1,
    rounds: int = 20,
) -> Cell:
    rng = rng or np.random.default_rng(0)
    jitter = lambda value: [float(value * (1 + 0.02 * rng.standard_normal())) for _ in range(rounds)]  # noqa: E731
    metrics = None
    if status == "passed":
        metrics = Metrics(
            bytes_moved=bytes_moved,
            host_us=jitter(host) if gpu is not None else [],
            eager_us=jitter(host + gpu + 8) if gpu is not None else [],
            graph_us=graph_us(gpu, rng, rounds) if gpu is not None else {},
            cpu_us=jitter(cpu) if cpu is not None else [],
            launches=launches if gpu is not None else None,
            rounds=rounds,
        )
    point = ",".join(f"{name}={value}" for name, value in axes.items())
    why = {} if reason is None else why_not(status, reason, point)
    return Cell(
        operator=operator,
        variant=variant,
        baseline=baseline,
        point=point,
        axes=axes,
        status=Status(status),
        metrics=metrics,
        **why,
    )


def item(operator: Operator, values: dict, names: Sequence[str], **more) -> Task:
    """A work item of variants by name."""
    point = operator.complete(values)
    of = {"operator": operator.name, "variants": tuple(names), "baseline": operator.baseline} | more
    return Task(axes=dict(point), point=operator.label(point), **of)


def why_not(status: str, text: str, point: str = "") -> dict[str, Finding | Reason]:
    """The field of a cell or loop that says why it did not pass."""
    status = Status(status)
    if status.is_bad:
        return {"finding": Finding(status=status, place=Place.POINT, name=point, message=text)}
    return {"reason": Reason(code=Code.NOT_APPLICABLE, detail=text)}


def run(environment: Environment, cells: list[Cell], name: str = "mtp3", seed: int = 0, **header) -> Run:
    rng = np.random.default_rng(seed)
    serving = {"model_step_us": 12000.0, "acceptance": 0.75, "calls_per_step": 1, "scheduling": "sync"}
    values = {
        "schema": SCHEMA_VERSION,
        "name": name,
        "command": f"python bench.py configs/{name}.yaml",
        "started": "2026-01-01T00:00:00+00:00",
        "seed": seed,
        "config": {"name": name, "measure": {"cache": "hot"}, "itl_tpot": serving},
        "environment": environment,
        "calibration": calibration(rng) if environment.device == "cuda" else None,
    }
    return Run("test.jsonl", Header(**(values | header)), cells)


def with_header(run: Run, **changes) -> Run:
    return structs.replace(run, header=structs.replace(run.header, **changes))


def with_metrics(cell: Cell, **changes) -> Cell:
    return structs.replace(cell, metrics=structs.replace(cell.metrics, **changes))


def sweep_run(
    environment: Environment | None = None, scale: float = 1.0, seed: int = 0, batch_sizes=(1, 8, 32, 128, 256)
) -> Run:
    """Two operators, several variants, five batch sizes x two decode lengths; fused kernels scaled by ``scale``."""
    environment = environment or gpu_environment()
    rng = np.random.default_rng(seed)
    speeds = {
        "decode_flatten": {
            "op_chain": (46, 400),
            "merged_chain": (36, 300),
            "triton_uniform": (4.5, 60),
            "triton_fused": (2.0 * scale, 15),
            "cuda_fused": (1.6 * scale, 7),
        },
        "decode_native": {
            "chain_clamp": (5.6, 80),
            "flat_view": (2.5, 30),
            "triton_fused": (1.3 * scale, 14),
            "cuda_fused": (1.1 * scale, 6),
        },
    }
    cells = []
    for operator, variants in speeds.items():
        for batch_size in batch_sizes:
            for decode_len in (1, 4):
                axes = {"batch_size": batch_size, "next_n": 4, "max_decode_len": decode_len, "padding": 0.0}
                for variant, (gpu, host) in variants.items():
                    of = {"baseline": next(iter(variants)), "rng": rng}
                    if environment.device != "cpu":
                        cells.append(cell(operator, variant, axes, gpu * (1 + batch_size / 512), host, **of))
                    elif variant == "cuda_fused":
                        cells.append(cell(operator, variant, axes, status="unavailable", reason="no GPU", **of))
                    else:
                        cpu = None if variant.startswith("triton") else host * 0.7
                        cells.append(cell(operator, variant, axes, cpu=cpu, **of))
    return run(environment, cells, seed=seed)


def write(run: Run, path: Path) -> Path:
    writer = Writer(path)
    writer.write(run.header)
    for one in run.cells:
        writer.write(one)
    writer.close()
    return path


def resealed(content: bytes) -> bytes:
    """An edited record with the checksums of its present lines."""
    lines = [re.sub(rb'(,"crc32":"[0-9a-f]{8}")?}$', b"", line) for line in content.splitlines()]
    return b"".join(line + b',"crc32":"%08x"}\n' % zlib.crc32(line) for line in lines)
