"""The Triton kernels compile for Hopper, which the records are from."""

import subprocess
import sys

from spec_decode_bench.harness.discover import discover
from tests.tier import full


@full
def test_triton_kernels_compile(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-m", "tools.compile_triton", "90"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = [v.id for v in discover().variants if v.folder == "kernels" and not v.requires]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [(line[0], line[-1]) for line in lines] == [(f"{name}:", "sm_90") for name in kernels]
    assert all(int(line[1]) > 0 for line in lines)
