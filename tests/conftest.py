"""Chooses the device for the whole test run before any kernel file is imported, and skips GPU tests where there is none."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    from tests import quick_interpreter

    quick_interpreter.install()
# Tensors here are tiny; threads that wait for each other on a busy machine make such tests ten times slower.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_terminal_summary(terminalreporter):
    """The seed of the random batches, where this session drew one."""
    from tests.random_batches import EXAMPLES, SEED

    if SEED is not None:
        terminalreporter.write_line(f"random batches: {EXAMPLES} an operator, seed {SEED}; the same again with RANDOM_SEED={SEED}")


@pytest.fixture(scope="session")
def device() -> str:
    """Where variants run in tests: the GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def catalog():
    from harness.discover import discover

    return discover()
