"""A new operator is one folder and nothing else: the whole path over a copy of the suite with one folder added."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spec_decode_bench.harness.import_by_content import PACKAGES
from spec_decode_bench.harness.records.file import read_run
from tests.tier import full

ROOT = Path(__file__).parents[1]
#: Without the kernels of other operators, which would only be imported.
PARTS = (folder for folder in (*PACKAGES, "configs") if folder not in ("kernels", "upstream"))
SUITE = ("bench.py", "spec_decode_bench.py", *PARTS, "kernels/__init__.py")
CONFIG = """\
name: cu_seqlens
operators: [cu_seqlens]
sweep:
  - batch_size: [8, 32]
    context_len: {uniform: [1, 4096]}
measure: {time_budget_s: 0.2, min_rounds: 3, max_rounds: 3}
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """The suite with the folder baselines/cu_seqlens/ and a configuration for it."""
    root = tmp_path_factory.mktemp("suite")
    for name in SUITE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, root / name)
    (root / "baselines/cu_seqlens").mkdir()
    shutil.copy(ROOT / "examples/cu_seqlens.py", root / "baselines/cu_seqlens/operator.py")
    (root / "new.yaml").write_text(CONFIG)
    return root


def bench(root: Path, *arguments: str) -> str:
    command = [sys.executable, "bench.py", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@full
def test_it_is_verified(suite):
    assert "cu_seqlens/padded_cumsum" in bench(suite, "verify", "new.yaml", "--device", "cpu")


@full
def test_it_is_measured_and_drawn(suite):
    bench(suite, "new.yaml", "--device", "cpu", "--out", "run")
    cells = read_run(suite / "run/run.jsonl").cells
    assert [(cell.operator, cell.axes["batch_size"], cell.status) for cell in cells] == [
        ("cu_seqlens", 8, "passed"),
        ("cu_seqlens", 32, "passed"),
    ]
    assert all(cell.metrics.cpu_us for cell in cells)
    assert {path.name for path in (suite / "run").iterdir()} >= {"latency.png", "speedup.png"}
