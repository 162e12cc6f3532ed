"""The Triton kernels compile for the oldest and newest architecture, and for Hopper, of which the records are."""

import subprocess
import sys

from harness.discover import discover


def test_triton_kernels_compile(tmp_path, monkeypatch):
    """All hard points for Hopper, the first one for the others."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    names = ("90", "80", "120")
    command = [sys.executable, "-m", "tools.compile_triton", *names, "--most", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = [v.id for v in discover().variants if v.origin.startswith("kernels.") and not v.requires]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [(line[0], line[-1]) for line in lines] == [(f"{name}:", f"sm_{arch}") for name in kernels for arch in names]
    assert all(int(line[1]) > 0 for line in lines)
