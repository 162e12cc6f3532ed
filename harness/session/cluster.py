"""A run on the GPUs of a Ray cluster: an actor per GPU, which has a Session with its processes on its node.

Ray places the actors, ships the checkout, and says when a node is gone; points are handed out by SeveralGpus, as among
the GPUs of one machine. Ray is imported only when a cluster is asked for.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import spec_decode_bench
from spec_decode_bench.harness.config.work_items import Cells
from spec_decode_bench.harness.import_by_content import PACKAGES, ROOT, SUITE
from spec_decode_bench.harness.records.schema import Cell, Segment
from spec_decode_bench.harness.session.messages import Job, Ready
from spec_decode_bench.harness.session.session import Progress, Session
from spec_decode_bench.harness.session.worker import START_LIMIT_S, RunError
from spec_decode_bench.harness.wording import counted, did_you_mean, first_line

if TYPE_CHECKING:
    from ray.actor import ActorHandle

#: The suffixes of what is shipped from beside a file of --variants.
BESIDE = (".cu", ".cuh", ".py")
#: How Ray names the model of a node's GPUs among its resources.
MODEL = "accelerator_type:"
#: Seconds for an actor to be placed on a free GPU and to be ready.
PLACED_LIMIT_S = START_LIMIT_S + 60
#: How often an actor that fails before it is ready is started, on whichever node has a free GPU.
MAX_STARTS = 2
#: Seconds for a first connection to a cluster.
REACHED_LIMIT_S = 10.0


class ClusterError(Exception):
    """The cluster cannot be used as asked for; the message says why."""


@dataclass(frozen=True)
class Cluster:
    """gpus: model -> number of GPUs, on all nodes that are alive."""

    gpus: Mapping[str, int]

    def models(self, wanted: str | None) -> list[str]:
        """Of ``--accelerators``, or the only one."""
        if not self.gpus:
            raise ClusterError("--cluster: Ray knows no GPU model on any node of the cluster")
        if wanted is None and len(self.gpus) > 1:
            raise ClusterError(
                f"--cluster: the cluster has {', '.join(self.gpus)}; choose with --accelerators, one record per model"
            )
        models = list(dict.fromkeys((wanted or next(iter(self.gpus))).split(",")))
        if missing := [model for model in models if model not in self.gpus]:
            near = did_you_mean(missing[0], list(self.gpus))
            raise ClusterError(
                f"--accelerators {wanted}: the cluster has {', '.join(self.gpus)}, not {missing[0]}{near}"
            )
        return models

    def number(self, model: str, wanted: str | None) -> int:
        """GPUs of this model to use: of ``--gpus``, or all."""
        present = self.gpus[model]
        if wanted in (None, "all"):
            return present
        if not wanted.isdecimal() or not int(wanted):
            raise ClusterError(f"--gpus {wanted}: with --cluster, give a number of GPUs, or all")
        if int(wanted) > present:
            raise ClusterError(f"--gpus {wanted}: the cluster has {counted(present, model + ' GPU')}")
        return int(wanted)


@contextmanager
def connected(address: str, variant_files: Sequence[str]) -> Iterator[Cluster]:
    """Connect to a cluster, or start one of this machine for "local", and ship the checkout."""
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Else a thread that is still starting a GPU when a run is interrupted starts a cluster of its own.
        os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
        import ray
    except ImportError:
        raise ClusterError("--cluster needs Ray: pip install -r requirements-cluster.txt") from None
    _check_reachable(address)
    with tempfile.TemporaryDirectory() as folder:
        _stage(Path(folder), variant_files)
        on_sigterm = signal.getsignal(signal.SIGTERM)
        environment = {"working_dir": folder, "env_vars": {"BENCH_COMMIT": _commit()}}
        try:
            ray.init(address, runtime_env=environment, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # whatever it raises, there is no cluster
            raise ClusterError(f"--cluster {address}: cannot reach the cluster: {first_line(error)}") from None
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray exits at it; a run keeps what it has
        try:
            gpus: dict[str, int] = {}
            for node in ray.nodes():
                resources = node["Resources"] if node["Alive"] else {}
                for model in (name.removeprefix(MODEL) for name in resources if name.startswith(MODEL)):
                    gpus[model] = gpus.get(model, 0) + int(resources.get("GPU", 0))
            yield Cluster({model: count for model, count in sorted(gpus.items()) if count})
        finally:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=REACHED_LIMIT_S).close()
        except (OSError, OverflowError) as error:
            raise ClusterError(f"--cluster {address}: cannot reach the cluster: {first_line(error)}") from None


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
    from spec_decode_bench.harness.timing.environment import describe

    environment = describe("cpu")
    return f"{environment.commit or ''}{'+' if environment.dirty else ''}"


class _OnNode:
    """The actor: one Session."""

    def __init__(self, job: Job) -> None:
        self._session = Session(job)

    def ready(self) -> Ready:
        return self._session.__enter__().ready

    def run(self, item: Cells) -> tuple[list[Cell | Segment], float]:
        lines = [outcome for outcome in self._session.run([item]) if not isinstance(outcome, Progress)]
        return lines, self._session.timing_s

    def close(self, wait_s: float) -> None:
        self._session.close(wait_s)


class ClusterGpu:
    """A GPU of a cluster; has the interface of harness.session.gpus.Gpu. model: as Ray names it."""

    def __init__(self, name: str, job: Job, model: str) -> None:
        self.name, self._job, self._model = name, job, model
        self.timing_s, self.doing = 0.0, ""
        self._actor: ActorHandle | None = None
        self._aborted = False

    def start(self) -> Ready:
        for _ in range(MAX_STARTS - 1):
            try:
                return self._placed()
            except RunError:
                if self._aborted:
                    raise
        return self._placed()

    def _placed(self) -> Ready:
        """Start an actor and wait until it is ready; if it does not get ready, end it."""
        import ray

        # max_restarts: a node that dies costs its GPU; its point goes to another one of this model.
        place = {"num_gpus": 1, "num_cpus": 1, "accelerator_type": self._model, "max_restarts": 0}
        self._actor = ray.remote(**place)(_OnNode).remote(self._job)
        try:
            return self._answer(self._actor.ready.remote(), PLACED_LIMIT_S)
        except RunError:
            ray.kill(self._actor)
            raise

    def run(self, item: Cells) -> list[Cell | Segment]:
        self.doing = f"{item.operator} {item.point}"
        lines, self.timing_s = self._answer(self._actor.run.remote(item))
        return lines

    def _answer(self, reference: Any, limit_s: float | None = None) -> Any:
        """Raises RunError where the GPU is gone, or its session cannot go on."""
        import ray

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

    def abort(self) -> None:
        import ray

        self._aborted = True
        if self._actor is not None:
            ray.kill(self._actor)

    def close(self, wait_s: float) -> None:
        """The GPU is free again afterwards."""
        import ray

        if self._actor is not None:
            try:
                if wait_s:
                    ray.get(self._actor.close.remote(wait_s), timeout=wait_s)
            except ray.exceptions.RayError:  # it is gone already
                pass
            ray.kill(self._actor)


def cluster_gpus(job: Job, model: str, count: int) -> list[ClusterGpu]:
    """job: of the command, with its own paths."""
    job = replace(job, variant_files=shipped_variants(job.variant_files), host_lock=True, compiled=())
    return [ClusterGpu(f"{model} {number}", job, model) for number in range(count)]
