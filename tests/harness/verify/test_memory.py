"""Points that do not fit in memory are refused before anything of their size is made."""

from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import Code, Status
from spec_decode_bench.harness.verify import memory
from tests.cli.test_cli import call

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
    config.write_text(HUGE.format(baseline=discover().operators["mamba_state_gather"].baseline))
    code, out, err = call("run", config, "--device", "cpu", "--no-plots", "--out", tmp_path / "out")
    assert code == 0, err
    assert "not enough memory: needs about " in " ".join(out.split())
    small, huge = read_run(tmp_path / "out" / "run.jsonl").in_order
    assert small.status is Status.PASSED
    assert (huge.status, huge.reason.code) == (Status.SKIPPED, Code.MEMORY)
    assert huge.reason.needed_bytes > huge.reason.free_bytes > 0


def test_a_cpu_holds_five_copies(monkeypatch):
    operator = discover().operators["decode_native"]
    point = operator.complete({"batch_size": 1024})
    monkeypatch.setattr(memory, "_free_on_host", lambda: 0)
    assert memory.too_large(operator, point, "cpu").needed_bytes == 5 * operator.nbytes(point)


def test_files_in_the_page_cache_of_a_container_count_as_free(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("4900\n")
    (tmp_path / "memory.stat").write_text("anon 900\ninactive_file 3500\n")
    assert memory._free_on_host() == 3600
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._free_on_host() > 5000


def test_many_groups_may_be_too_large():
    operator = discover().operators["gather_block_tables"]
    sizes = {"batch_size": 65536, "max_model_len": 65536, "block_size": 1, "num_groups": 8}
    reason = memory.too_large(operator, operator.complete(sizes), "cpu")
    assert reason.needed_bytes > 2 * 2**37
