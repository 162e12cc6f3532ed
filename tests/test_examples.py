"""The examples, through the command line: listed, verified, run on the CPU."""

from pathlib import Path

import pytest

from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.sentences import ending
from tests.cli.test_cli import call

ROOT = Path(__file__).parents[1]
#: file -> (operator, its variant)
EXAMPLES = {
    "cu_seqlens.py": ("cu_seqlens", "padded_cumsum"),
    "my_decode_native.py": ("decode_native", "mine"),
    "my_decode_native_bundles.py": ("decode_native", "mine_bundled"),
}
NAMED = [argument for file in EXAMPLES for argument in ("--variants", f"examples/{file}")]
#: One run for all.
CONFIG = """\
name: examples
operators: [cu_seqlens, decode_native]
variants: [padded_cumsum, mine, mine_bundled]
sweep:
  - batch_size: [8, 32]
    decode_len: ragged
    context_len: {uniform: [4, 4096]}
measure: {time_budget_s: 0.2, min_rounds: 3, max_rounds: 3}
"""


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.chdir(ROOT)

    def one(*arguments: object) -> str:
        code, out, err = call(*arguments, *NAMED, "--device", "cpu")
        assert code == 0, out + err
        return out

    return one


def test_every_example_is_here():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


def test_examples_pass(bench, tmp_path):
    config, out = tmp_path / "examples.yaml", tmp_path / "run"
    config.write_text(CONFIG)
    bench("run", config, "--out", out, "--no-plots")
    cells = read_run(out / "run.jsonl").cells
    assert sorted((cell.operator, cell.variant) for cell in cells) == sorted([*EXAMPLES.values()] * 2)
    for cell in cells:
        assert cell.status == "passed", ending(cell)
        interpreted = cell.operator == "decode_native"  # Triton kernels, which get no CPU time
        assert bool(cell.metrics.cpu_us) != interpreted
