"""Chooses the device before any kernel file is imported, and skips GPU tests where there is none."""

import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from spec_decode_bench import bench
from spec_decode_bench.harness import interpreter, registry
from spec_decode_bench.harness.report import console
from tests import arrays, tier

TESTS = Path(__file__).parent
registry.load((*bench.ROOMS.values(), *bench.REGISTRATIONS))

# Tests start hundreds of processes, which would all compile the same files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if not torch.cuda.is_available():
    interpreter.choose("cpu")
    interpreter.quicken()
# Tensors in tests are tiny, and threads that wait for each other on a busy machine slow them down.
torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="run the full tier: every test, with all examples")


def pytest_configure(config):
    tier.FULL = config.getoption("--full")
    if arrays.FOLDER not in os.environ:  # the workers of pytest-xdist inherit it
        folder = tempfile.TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        os.environ[arrays.FOLDER] = folder.name


#: The files that take longest. They come first, as pytest-xdist hands out files in this order: near the end of a run a
#: long one would keep all processes but one waiting.
LONGEST = (
    "harness/verify/test_covering_array.py",
    "baselines/test_operators.py",
    "test_installed.py",
    "regression/test_gate_upstream.py",
    "harness/session/test_cluster.py",
    "tools/test_mutate.py",
    "cli/test_watch.py",
    "kernels/test_triton_compiles.py",
    "harness/config/test_shipped_captures.py",
    "regression/test_gate.py",
    "plots/test_plots.py",
    "harness/analysis/test_warnings.py",
    "baselines/workloads/test_torch_compile.py",
    "tools/test_effect.py",
    "harness/session/test_fork_server.py",
    "kernels/test_cuda_coverage.py",
    "baselines/test_mamba_state_machine.py",
    "harness/session/test_kill.py",
    "harness/session/test_proofs.py",
)


def pytest_xdist_auto_num_workers(config):
    """One process on a GPU, where two would disturb each other's times; else xdist counts the cores."""
    return 0 if torch.cuda.is_available() else None


def pytest_collection_modifyitems(config, items):
    if tier.FULL:
        for item in items:
            if tier.depends_on_it(item.module):
                item.add_marker("full")
    else:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("full")])
        items[:] = [item for item in items if not item.get_closest_marker("full")]
    ranks = {TESTS / file: rank for rank, file in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(LONGEST)))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(autouse=True)
def own_interpreter():
    """Restore TRITON_INTERPRET, which a command for the CPU sets in this process."""
    before = os.environ.get(interpreter.SWITCH)
    yield
    os.environ.pop(interpreter.SWITCH, None)
    if before is not None:
        os.environ[interpreter.SWITCH] = before


@pytest.fixture(autouse=True)
def no_progress(monkeypatch):
    """Lines of progress depend on how busy the machine is; tests compare what a command says of its result."""
    monkeypatch.setattr(console, "FIRST_LINE_S", 1e6)


@pytest.fixture(scope="session")
def device() -> str:
    """Where variants run in tests: the GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def catalog():
    from spec_decode_bench.harness.discover import discover

    return discover()


def pytest_collection_finish():
    """torch and the suite need not be walked by every collection of garbage."""
    gc.collect()
    gc.freeze()
