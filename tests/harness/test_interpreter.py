"""Triton's switch follows the device of a process, whatever its environment said before."""

import os

import pytest

from spec_decode_bench.harness import interpreter
from tests.processes import run_python


@pytest.mark.parametrize("before", ["0", "1", None])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_kernels_are_interpreted_on_a_cpu_and_there_alone(device, before, monkeypatch):
    if before is None:
        monkeypatch.delenv(interpreter.SWITCH, raising=False)
    else:
        monkeypatch.setenv(interpreter.SWITCH, before)
    interpreter.choose(device)
    program = f"import os; print(os.environ.get({interpreter.SWITCH!r}))"
    done = run_python(program)
    assert (done.returncode, done.stdout.strip()) == (0, "1" if device == "cpu" else "None")
    assert (os.environ.get(interpreter.SWITCH) == "1") == (device == "cpu")
