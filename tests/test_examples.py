"""The examples, through the command line: listed, verified, run on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

from harness.records.file import read_run

ROOT = Path(__file__).parents[1]
#: file -> (operator, its variant)
EXAMPLES = {"cu_seqlens.py": ("cu_seqlens", "padded_cumsum"), "my_decode_native.py": ("decode_native", "mine")}
NAMED = [argument for file in EXAMPLES for argument in ("--variants", f"examples/{file}")]
#: One run for both.
CONFIG = """\
name: examples
operators: [cu_seqlens, decode_native]
variants: [padded_cumsum, mine]
sweep:
  - batch_size: [8, 32]
    decode_len: ragged
    context_len: {uniform: [4, 4096]}
measure: {time_budget_s: 0.2, min_rounds: 3, max_rounds: 3}
"""


def bench(*arguments: object) -> str:
    command = [sys.executable, "bench.py", *map(str, arguments), *NAMED, "--device", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_here():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


def test_examples_are_listed():
    rows = json.loads(bench("list", "--json"))["variants"]
    assert {(row["operator"], row["variant"]) for row in rows if row["unavailable"] is None} >= set(EXAMPLES.values())


def test_examples_pass(tmp_path):
    config, out = tmp_path / "examples.yaml", tmp_path / "run"
    config.write_text(CONFIG)
    bench("run", config, "--out", out, "--no-plots")
    cells = read_run(out / "run.jsonl").cells
    assert sorted((cell.operator, cell.variant) for cell in cells) == sorted([*EXAMPLES.values()] * 2)
    for cell in cells:
        assert cell.status == "passed", cell.reason
        interpreted = cell.variant == "mine"  # a Triton kernel, which gets no CPU time
        assert bool(cell.metrics.cpu_us) != interpreted
