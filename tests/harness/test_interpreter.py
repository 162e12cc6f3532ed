"""Triton's switch follows the device of a process, whatever its environment said before."""

import os
import subprocess
import sys

import pytest

from harness import interpreter


@pytest.mark.parametrize("before", ["0", "1", None])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_kernels_are_interpreted_on_a_cpu_and_there_alone(device, before, monkeypatch):
    if before is None:
        monkeypatch.delenv(interpreter.SWITCH, raising=False)
    else:
        monkeypatch.setenv(interpreter.SWITCH, before)
    interpreter.choose(device)
    program = f"import os; print(os.environ.get({interpreter.SWITCH!r}))"
    inherited = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert inherited == ("1" if device == "cpu" else "None")
    assert (os.environ.get(interpreter.SWITCH) == "1") == (device == "cpu")
