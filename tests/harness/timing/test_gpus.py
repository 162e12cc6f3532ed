"""Which GPUs --gpus chooses, by a driver that is made up, and the lock for host times between real processes."""

import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest

from spec_decode_bench.harness.host_lock import HostLock
from spec_decode_bench.harness.timing import gpus
from spec_decode_bench.harness.timing.gpus import choose_device, choose_gpus

UUIDS = ["GPU-aaaa", "GPU-bbbb", "GPU-cccc"]


@pytest.fixture
def driver(monkeypatch):
    """GPU -> process ids that use it."""
    users = {uuid: [] for uuid in UUIDS}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(UUIDS))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda i: UUIDS[i])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: handle)
    running = lambda handle: [SimpleNamespace(pid=pid) for pid in users[handle]]  # noqa: E731
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", running)
    monkeypatch.setattr(gpus, "_command", lambda pid: " (python3)")
    return users


def test_gpus_are_chosen_by_number_all_or_index(driver, monkeypatch):
    assert [gpu.visible for gpu in choose_gpus("all")] == UUIDS
    assert [gpu.visible for gpu in choose_gpus("2")] == UUIDS[:2]
    assert [gpu.visible for gpu in choose_gpus("device=2,0")] == ["GPU-cccc", "GPU-aaaa"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert [(gpu.index, gpu.visible) for gpu in choose_gpus("all")] == [(0, "2"), (1, "1")]


@pytest.mark.parametrize(
    ("visible", "device"), [(None, "cuda"), ("1", "cuda"), ("", "cpu"), ("-1", "cpu"), ("7,0", "cpu")]
)
def test_auto_is_a_gpu_where_cuda_would_see_one(driver, visible, device, monkeypatch):
    monkeypatch.setattr(gpus, "version", lambda package: "2.14.1")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert choose_device("auto") == device
    assert choose_device("cpu") == "cpu"
    if device == "cpu":
        with pytest.raises(RuntimeError, match="--device cpu"):
            choose_device("cuda")
    monkeypatch.setattr(gpus, "version", lambda package: "2.14.1+cpu")
    assert choose_device("auto") == "cpu"


def test_a_gpu_in_use_is_left_out_where_others_do_and_named_where_not(driver, monkeypatch):
    driver["GPU-aaaa"] = [4711]
    assert [gpu.visible for gpu in choose_gpus("2")] == UUIDS[1:]
    for wanted in ("3", "all", "device=0"):
        with pytest.raises(RuntimeError, match=r"in use: GPU 0 by process 4711 \(python3\); wait until"):
            choose_gpus(wanted)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with pytest.raises(RuntimeError, match="GPU 1 by process 4711"):
        choose_gpus("all")


HOLDS = """
import sys, time
from pathlib import Path
from spec_decode_bench.harness.host_lock import HostLock
with HostLock(Path(sys.argv[1]))():
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def test_host_times_are_taken_one_process_at_a_time(tmp_path):
    """A second process waits for the first, goes on without the lock if that takes too long, and gets the lock of a
    process that was killed.
    """
    with HostLock(tmp_path)() as held:
        assert held
    command = [sys.executable, "-c", HOLDS, str(tmp_path), "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with HostLock(tmp_path, limit_s=0.1)() as held:
            assert not held
        other.kill()
    with HostLock(tmp_path, limit_s=5)() as held:
        assert held
