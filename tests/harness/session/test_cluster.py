"""A Ray cluster of several nodes on this machine, whose GPUs are made up: their workers run on the CPU."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="needs Ray: pip install -r requirements-cluster.txt")
from ray.cluster_utils import Cluster  # noqa: E402

from spec_decode_bench.harness.config.load import ConfigError, Measure  # noqa: E402
from spec_decode_bench.harness.config.sweep import task_of  # noqa: E402
from spec_decode_bench.harness.config.work_items import keys_of  # noqa: E402
from spec_decode_bench.harness.discover import discover  # noqa: E402
from spec_decode_bench.harness.records.file import read_run  # noqa: E402
from spec_decode_bench.harness.records.schema import Cell  # noqa: E402
from spec_decode_bench.harness.session.cluster import cluster_gpus, connected  # noqa: E402
from spec_decode_bench.harness.session.messages import Job  # noqa: E402
from spec_decode_bench.harness.session.several_gpus import SeveralGpus  # noqa: E402
from tests.cli.test_cli import TINY, call  # noqa: E402
from tests.processes import has_ended, run_python  # noqa: E402
from tests.tier import full  # noqa: E402

pytestmark = full

#: A variant that notes its process and waits before it is set up; then it is chain_clamp.
WAITS = """
import os, time
from pathlib import Path
from spec_decode_bench.baselines.decode_native.chains import chain_clamp
from spec_decode_bench.harness.contract import variant

FOLDER = Path({folder!r})

@variant("decode_native", skip=lambda p: (p.row_alignment, p.cp_size) != ("end", 1) and "no" or None, waives="no_alloc")
def waits(point, x, out):
    if not (FOLDER / "go").exists():
        (FOLDER / f"{{os.getppid()}}-{{os.getpid()}}").touch()
    while not (FOLDER / "go").exists():
        time.sleep(0.02)
    return chain_clamp(point, x, out)
"""


@pytest.fixture
def cluster():
    """Two nodes with an H100, one with an H200."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    cluster.nodes = {}
    for number, model in enumerate(("H100", "H100", "H200")):
        resources = {f"accelerator_type:{model}": 1}
        # Nodes of one machine would share the unpacked checkout, which the agent of each deletes and unpacks again.
        node = cluster.add_node(num_cpus=2, num_gpus=1, resources=resources, runtime_env_dir_name=f"node_{number}")
        cluster.nodes[node] = model
    yield cluster
    cluster.shutdown()


def plan(variants, sizes):
    operator = discover().operators["decode_native"]
    return [task_of(operator, operator.complete({"batch_size": size}), variants) for size in sizes]


def shared_run(cluster, folder, harm):
    """Four points on the two H100, all of which wait for ``harm``, a function of the waiting processes: the lines, the
    warnings and how many points were measured twice.
    """
    file = folder / "waits.py"
    file.write_text(WAITS.format(folder=str(folder)))
    catalog = discover([str(file)])
    items = plan([catalog.find("decode_native", name) for name in ("chain_clamp", "waits")], (1, 2, 3, 4))
    job = Job("cpu", (str(file),), 3, Measure(time_budget_s=0.2, min_rounds=3, max_rounds=3), timed=True)
    warnings, segments = [], []

    def disturb():
        end = time.monotonic() + 60
        while len(waiting := [one.name for one in folder.glob("*-*")]) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        try:
            harm([tuple(map(int, one.split("-"))) for one in waiting])
        finally:
            (folder / "go").touch()

    with ThreadPoolExecutor(1) as thread, connected(cluster.address, job.variant_files) as found:
        assert found == {"H100": 2, "H200": 1}
        with SeveralGpus(cluster_gpus(job, "H100", 2), job.measure, warnings.append) as session:
            session.on_process = segments.append
            disturbed = thread.submit(disturb)
            assert warnings == []
            lines = list(session.run(items))
            disturbed.result()
            assert ray.available_resources()["accelerator_type:H200"] == 1  # no retry on another model
    found = [line for line in lines if isinstance(line, Cell)]
    assert sorted(one.key for one in found) == sorted(keys_of(items))
    return found, segments, warnings


def test_a_killed_worker_process_is_replaced_on_its_node(cluster, tmp_path):
    found, segments, warnings = shared_run(cluster, tmp_path, lambda waiting: os.kill(waiting[0][1], signal.SIGKILL))
    failed = [one for one in found if one.status != "passed"]
    assert [(one.variant, one.finding.check) for one in failed] == [("waits", "no_crash")]
    assert warnings == []
    assert "the worker process was killed by SIGKILL" in [segment.why for segment in segments]


@pytest.mark.parametrize("victim", ["actor", "node"])
def test_what_a_dead_node_was_measuring_is_measured_on_another_of_its_model(victim, cluster, tmp_path):
    killed = []

    def harm(waiting):
        killed.append(waiting[0])
        if victim == "actor":
            os.kill(parent_of(waiting[0][0]), signal.SIGKILL)  # of the server that its workers are forked from
        else:
            cluster.remove_node(next(one for one in cluster.nodes if holds(one, waiting[0][0])), allow_graceful=False)
        assert has_ended(waiting[0][0], 60)  # else it may finish its point first

    found, segments, warnings = shared_run(cluster, tmp_path, harm)
    assert {one.status for one in found} == {"passed"}
    assert len({one.process for one in found}) == 1
    (warning,) = warnings
    assert "hands its points to the other GPUs: its node or its process died" in warning
    assert segments[-1].why == warning
    assert all(has_ended(pid) for pid in killed[0])


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def holds(node, pid):
    """Whether a node's raylet is an ancestor of a process."""
    raylets = {info.process.pid for infos in node.all_processes.values() for info in infos}
    while pid > 1:
        if pid in raylets:
            return True
        pid = parent_of(pid)
    return False


def test_a_record_for_each_model_and_one_sentence_for_what_the_cluster_lacks(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    command = f"tiny.yaml --cluster {cluster.address} --device cpu --seed 3 --no-plots --out out".split()
    code, _, err = call(*command)
    assert code == 2
    assert "choose with --accelerators" in " ".join(err.split())
    code, out, err = call(*command, "--accelerators", "H100,H200")
    assert (code, err) == (0, ""), out
    runs = [read_run(f"out/{model}/run.jsonl") for model in ("H100", "H200")]
    assert [len(run.cells) for run in runs] == [4, 4]
    assert [run.header.environment.notes[-1].split(";")[0] for run in runs] == [
        "measured by 2 workers (0: H100 0, 1: H100 1)",
        "measured by 1 worker (0: H200 0)",
    ]


def test_a_cluster_that_cannot_be_reached_is_one_sentence():
    with pytest.raises(ConfigError, match=r"--cluster 127\.0\.0\.1:1: cannot reach the cluster: "):  # noqa: SIM117
        with connected("127.0.0.1:1", ()):
            pass


def test_a_call_without_a_connection_starts_no_cluster():
    """As of a thread that is still starting a GPU when a run is interrupted."""
    code = (
        "from spec_decode_bench.harness.session.cluster import ConfigError, connected, ray\n"
        "try: connected('127.0.0.1:1', ()).__enter__()\n"
        "except ConfigError: ray.put(1)"
    )
    done = run_python(code)
    assert done.returncode == 1
    assert "Started a local Ray instance" not in done.stderr
    assert "RaySystemError" in done.stderr
