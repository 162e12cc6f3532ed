"""The GPUs of a cluster: a Ray actor on each has a session, as a GPU of this machine has.

Ray places the actors, ships the checkout, and says when a node is gone; points are handed out by SeveralGpus, as among
the GPUs of one machine. Imported only when a cluster is asked for.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import spec_decode_bench
from spec_decode_bench.harness.config.load import ConfigError
from spec_decode_bench.harness.config.work_items import Task
from spec_decode_bench.harness.errors import did_you_mean, first_line
from spec_decode_bench.harness.import_by_content import PACKAGES, ROOT, SUITE
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.session.messages import Job, Ready
from spec_decode_bench.harness.session.several_gpus import LocalGpu, Measured
from spec_decode_bench.harness.session.worker import START_LIMIT_S, RunError

# Ray reads them when it is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Else a thread that still asks an actor when a run is interrupted starts a cluster of its own.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
try:
    import ray
except ImportError:
    ray = None

#: The suffixes of what is shipped from beside a file of --variants.
BESIDE = (".cu", ".cuh", ".py")
#: How Ray names the model of a node's GPUs among its resources.
MODEL = "accelerator_type:"
#: Seconds for an actor to be placed on a free GPU and to be ready.
PLACED_LIMIT_S = START_LIMIT_S + 60
#: Seconds for a first connection to a cluster.
REACHED_LIMIT_S = 10.0


def chosen(present: Mapping[str, int], accelerators: str | None, gpus: str | None) -> dict[str, int]:
    """Model -> how many GPUs of a cluster to use, by ``--accelerators`` and ``--gpus``. Raises ConfigError."""
    if not present:
        raise ConfigError("--cluster: Ray knows no GPU model on any node of the cluster")
    has = f"the cluster has {', '.join(present)}"
    if accelerators is None and len(present) > 1:
        raise ConfigError(f"--cluster: {has}; choose with --accelerators, one record per model")
    models = list(present if accelerators is None else dict.fromkeys(accelerators.split(",")))
    if missing := next((model for model in models if model not in present), None):
        near = did_you_mean(missing, list(present))
        raise ConfigError(f"--accelerators {accelerators}: {has}, not {missing}{near}")
    if gpus in (None, "all"):
        return {model: present[model] for model in models}
    if not gpus.isdecimal() or not int(gpus):
        raise ConfigError(f"--gpus {gpus}: with --cluster, give a number of GPUs, or all")
    if short := next((model for model in models if present[model] < int(gpus)), None):
        raise ConfigError(f"--gpus {gpus}: the cluster has {counted(present[short], short + ' GPU')}")
    return dict.fromkeys(models, int(gpus))


@contextmanager
def connected(address: str, variant_files: Sequence[str]) -> Iterator[dict[str, int]]:
    """Connect to a cluster, or start one of this machine for "local", and ship the checkout. Yields its GPUs: model ->
    number on all nodes that are alive. Raises ConfigError.
    """
    if ray is None:
        raise ConfigError("--cluster needs Ray: pip install -r requirements-cluster.txt")
    _check_reachable(address)
    with tempfile.TemporaryDirectory() as folder:
        _stage(Path(folder), variant_files)
        on_sigterm = signal.getsignal(signal.SIGTERM)
        environment = {"working_dir": folder, "env_vars": {"BENCH_COMMIT": _commit()}}
        try:
            ray.init(address, runtime_env=environment, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # whatever it raises, there is no cluster
            raise ConfigError(f"--cluster {address}: cannot reach the cluster: {first_line(error)}") from None
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray exits at it; a run keeps what it has
        try:
            gpus = Counter()
            for resources in (node["Resources"] for node in ray.nodes() if node["Alive"]):
                for model in (name.removeprefix(MODEL) for name in resources if name.startswith(MODEL)):
                    gpus[model] += int(resources.get("GPU", 0))
            yield dict(sorted((+gpus).items()))
        finally:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=REACHED_LIMIT_S).close()
        except (OSError, OverflowError) as error:
            raise ConfigError(f"--cluster {address}: cannot reach the cluster: {first_line(error)}") from None


def _stage(folder: Path, variant_files: Sequence[str]) -> None:
    """Copy what the nodes need, as it would be installed."""
    shutil.copy(spec_decode_bench.__file__, folder)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / SUITE / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, shipped in zip(variant_files, shipped_variants(variant_files), strict=True):
        place = folder / Path(shipped).parent
        place.mkdir(parents=True)
        for beside in (path for path in Path(file).resolve().parent.iterdir() if path.suffix in BESIDE):
            shutil.copy(beside, place)


def shipped_variants(variant_files: Sequence[str]) -> tuple[str, ...]:
    """Where the files of --variants are on a node, relative to the working directory."""
    return tuple(f"shipped_variants/{number}/{Path(file).name}" for number, file in enumerate(variant_files))


def _commit() -> str:
    """Of the checkout, with a plus for uncommitted changes; the copy on a node has no history."""
    from spec_decode_bench.harness.timing.environment import describe  # it loads torch

    environment = describe("cpu")
    return f"{environment.commit or ''}{'+' if environment.dirty else ''}"


class ClusterGpu:
    """A GPU of a cluster: asks a LocalGpu that Ray places on a free GPU of a model. model: as Ray names it."""

    def __init__(self, name: str, job: Job, model: str) -> None:
        self.name, self.doing, self._model = name, "", model
        # max_restarts: a node that dies costs its GPU; its point goes to another one of this model.
        placed = ray.remote(num_gpus=1, num_cpus=1, accelerator_type=model, max_restarts=0)(LocalGpu)
        self._actor = placed.remote(name, job)

    def start(self) -> Ready:
        return self._answer(self._actor.start.remote(), PLACED_LIMIT_S)

    def run(self, task: Task) -> Measured:
        self.doing = f"{task.operator} {task.point}"
        return self._answer(self._actor.run.remote(task))

    def abort(self) -> None:
        ray.kill(self._actor)

    def close(self, wait_s: float = 30.0) -> None:
        """The GPU is free again afterwards."""
        with suppress(RunError):  # it is gone already
            self._answer(self._actor.close.remote(wait_s), wait_s)
        self.abort()

    def _answer(self, reference: ray.ObjectRef, limit_s: float | None = None) -> Any:
        """Raises RunError where the GPU is gone, or its session cannot go on."""
        try:
            return ray.get(reference, timeout=limit_s)
        except ray.exceptions.GetTimeoutError:
            raise RunError(f"no free {self._model} within {limit_s:g} s; is the cluster busy?") from None
        except ray.exceptions.RayTaskError as error:
            raise RunError(first_line(error.cause)) from None
        except ray.exceptions.RayActorError as error:
            raise RunError(f"its node or its process died ({type(error).__name__})") from None
        except ray.exceptions.RayError as error:  # such as a runtime environment that could not be set up
            raise RunError(first_line(error)) from None


def cluster_gpus(job: Job, model: str, count: int) -> list[ClusterGpu]:
    """job: of the command, with its own paths."""
    job = replace(job, variant_files=shipped_variants(job.variant_files), host_lock=True, compiled=())
    return [ClusterGpu(f"{model} {number}", job, model) for number in range(count)]
