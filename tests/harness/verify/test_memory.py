"""Points that do not fit in memory are refused before anything of their size is made."""

import pytest

from harness.discover import discover_operators
from harness.records.file import read_run
from harness.records.schema import Code, Status
from harness.verify import memory
from harness.verify.points import tensor_bytes
from tests.harness.cli.test_cli import call

HUGE = """\
name: huge
operators: [mamba_state_gather]
variants: [{baseline}]
sweep:
  - batch_size: [4, 1000000000]
measure: {{time_budget_s: 0.2, min_rounds: 3, max_rounds: 3}}
"""


def test_a_cell_that_cannot_fit_is_refused_with_the_estimate(tmp_path):
    config = tmp_path / "huge.yaml"
    config.write_text(HUGE.format(baseline=discover_operators()["mamba_state_gather"].baseline))
    code, out, err = call("run", config, "--device", "cpu", "--no-plots", "--out", tmp_path / "out")
    assert code == 0, err
    assert "not enough memory: needs about " in " ".join(out.split())
    small, huge = read_run(tmp_path / "out" / "run.jsonl").in_order
    assert small.status is Status.PASSED
    assert (huge.status, huge.reason.code) == (Status.SKIPPED, Code.MEMORY)
    assert huge.reason.needed_bytes > huge.reason.free_bytes > 0


@pytest.mark.parametrize("name", ["decode_flatten", "gather_block_tables", "k_quant_gather", "mamba_state_gather"])
def test_the_estimate_is_near_the_size(name, monkeypatch):
    monkeypatch.setattr(memory, "LARGE", 1024)
    monkeypatch.setattr(memory, "SMALL", 256)
    operator = discover_operators()[name]
    point = operator.complete({"max_model_len": 1024, "batch_size": 2048})
    monkeypatch.setattr(memory, "_free_on_host", lambda: 0)
    reason = memory.too_large(operator, point, "cpu")
    size = tensor_bytes(operator.make_inputs(point, 0)) + tensor_bytes(operator.make_outputs(point))
    assert reason.needed_bytes == pytest.approx(5 * size, rel=0.1)


def test_files_in_the_page_cache_of_a_container_count_as_free(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("4900\n")
    (tmp_path / "memory.stat").write_text("anon 900\ninactive_file 3500\n")
    assert memory._free_on_host() == 3600
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._free_on_host() > 5000


def test_two_sizes_may_be_too_large_together():
    operator = discover_operators()["decode_flatten"]
    sizes = {"next_n": 1, "max_model_len": 200_000, "block_size": 1}
    many, few = ({"batch_size": n, "max_num_batched_tokens": n} for n in (200_000, 2))
    reason = memory.too_large(operator, operator.complete(sizes | many), "cpu")
    assert reason.needed_bytes > 4 * 200_000**2
    assert memory.too_large(operator, operator.complete(sizes | few), "cpu") is None
