"""The Triton kernels compile for every architecture that the CUDA sources are compiled for."""

import subprocess
import sys

import pytest

from harness.cuda import ARCHITECTURES
from harness.discover import discover


@pytest.mark.parametrize("arch", [arch.removeprefix("sm_") for arch in ARCHITECTURES])
def test_triton_kernels_compile(arch, tmp_path, monkeypatch):
    """All hard points for Hopper, which the reference records are from; one for each other, two for the oldest."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    most = {"90": [], "80": ["2"]}.get(arch, ["1"])
    done = subprocess.run([sys.executable, "-m", "tools.compile_triton", arch, *most], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = [v.id for v in discover().variants if v.origin.startswith("kernels.") and not v.requires]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == kernels
    assert all(int(line.split()[1]) > 0 for line in done.stdout.splitlines())
