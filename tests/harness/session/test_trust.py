"""--trust: a run skips the edge cases of what passed in a record, and a record of anything that differs is refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.sweep import task_of
from spec_decode_bench.harness.discover import ROOT
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import Proof, RecordError, Segment, Status
from spec_decode_bench.harness.session import evaluator
from spec_decode_bench.harness.session.messages import Job
from spec_decode_bench.harness.session.resume import passed_in, trusted_of
from spec_decode_bench.harness.timing.environment import describe
from tests import factory
from tests.cli.test_cli import TINY, call
from tests.in_process import measured

MINE = """
from spec_decode_bench.harness.contract import variant
{line}

@variant("decode_native")
def mine(point, x, out):
    def launch():
        return None
    return launch
"""

#: Right with ``more`` 0; with 1 it is wrong except at the points of TINY.
RIGHT = """
from spec_decode_bench.baselines.decode_native.chains import flat_view
from spec_decode_bench.harness.contract import variant


@variant("decode_native", skip=lambda p: "plain rows only" if p.row_alignment == "front" or p.cp_size > 1 else None)
def mine(point, x, out):
    fill, view = flat_view(point, x, out), out.views(point)["context_lens"]

    def launch():
        fill()
        if point.batch_size not in (3, 4):
            view.add_({more})

    return launch
"""


def recorded(*cells):
    return factory.run(factory.gpu_environment(gpu_id="first"), list(cells))


@pytest.mark.parametrize(
    "changed",
    [
        *({"driver": "581"}, {"triton": "3.7.0"}, {"torch": "2.12"}, {"gpu": "NVIDIA H100"}, {"cuda_core": "2"}),
        *({"nvrtc": "13.0.88"}, {"compiler_settings": {"TRITON_DEFAULT_FP_FUSION": "0"}}, {"packages": {"vllm": "2"}}),
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_record_of_another_machine_is_refused(changed):
    run = recorded(factory.cell("decode_native", "a", {"batch_size": 1}, 1.0))
    assert trusted_of(run, {}, factory.gpu_environment(gpu_id="second")).keys() == {"decode_native/a"}
    with pytest.raises(RecordError, match="--trust"):
        trusted_of(run, {}, factory.gpu_environment(**changed))


def test_a_record_of_other_files_is_refused():
    run = recorded(factory.cell("decode_native", "a", {"batch_size": 1}, 1.0))
    run = replace(run, header=replace(run.header, sources={"a.py": "1", "b.py": "2"}))
    environment = run.header.environment
    assert trusted_of(run, {"a.py": "1"}, environment)  # it may hold cells of further files
    for sources in ({"a.py": "2"}, {"a.py": "1", "c.py": "3"}):
        with pytest.raises(RecordError, match=r"\.py has changed since"):
            trusted_of(run, sources, environment)


def test_only_what_passed_wherever_it_ran_is_believed():
    """Of several GPUs, the one that ran the variant is named."""
    cells = [factory.cell("decode_native", name, {"batch_size": size}, 1.0) for name in "ab" for size in (1, 2)]
    cells[0] = replace(cells[0], process=1)
    cells[1] = replace(cells[1], process=1)
    cells[3] = replace(cells[3], status=Status.MISMATCH)
    second = factory.gpu_environment(gpu_id="second")
    run = replace(recorded(*cells), segments=[Segment(process=1, started="", why="", environment=second)])
    assert {name: proof.gpu_id for name, proof in passed_in(run).items()} == {"decode_native/a": "second"}


def test_the_evaluator_runs_no_edge_case_and_still_rejects_a_wrong_result(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE.format(line=""))  # it writes nothing
    monkeypatch.setattr(evaluator, "EdgeCaseChecks", lambda *_, **__: pytest.fail("an edge case was run"))
    measure = Measure(max_rounds=3, min_rounds=3)
    owner = evaluator.Evaluator(Job("cpu", (str(tmp_path / "mine.py"),), 0, measure, timed=True))
    operator = owner.catalog.operators["decode_native"]
    variants = [owner.catalog.find("decode_native", name) for name in ("chain_clamp", "mine")]
    item = task_of(operator, operator.complete({"batch_size": 3}), variants)
    owner.bring_up()
    proof = Proof(key="a", verified_at="2026", gpu_id="b")
    item = replace(item, budget_s=0.1, proven=dict.fromkeys(item.variants, proof))
    found = measured(owner, item)
    assert {name: cell.status for name, cell in found.items()} == {"chain_clamp": "passed", "mine": "mismatch"}
    assert {name: cell.proof for name, cell in found.items()} == {"chain_clamp": proof, "mine": None}


def test_variables_that_change_what_compilers_make_are_described(monkeypatch, tmp_path):
    tool = tmp_path / "ptxas"
    tool.write_text("1")
    for name, value in (("TRITON_PTXAS_PATH", str(tool)), ("TRITON_DEBUG", "1"), ("TRITON_CACHE_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    before = describe("cpu").compiler_settings
    assert before["TRITON_DEBUG"] == "1"
    assert "TRITON_CACHE_DIR" not in before
    tool.write_text("2")
    assert describe("cpu").compiler_settings["TRITON_PTXAS_PATH"] != before["TRITON_PTXAS_PATH"]


def test_what_inductor_sets_itself_is_no_setting(monkeypatch):
    before = describe("cpu").compiler_settings
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(Path(torch.__file__).parent / "bin" / "ptxas"))
    assert describe("cpu").compiler_settings == before


def test_a_run_believes_a_record_of_the_same_files(tmp_path, monkeypatch):
    """The kernel is right at the point of the run and, once changed, wrong at another one."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    helper = Path("mine.py")
    helper.write_text(RIGHT.format(more="0"))
    run = ("tiny.yaml", "--device", "cpu", "--no-plots", "--seed", "3", "--variants", "mine.py")
    run += ("--set", "variants=[mine]", "--set", "baseline=mine")

    def verdict(folder, *more):
        code, out, err = call(*run, "--out", folder, *more)
        if code == 2:
            return err
        (cell,) = read_run(f"{folder}/run.jsonl").cells[:1]
        assert ("verified before: mine" in out) is (cell.proof is not None)
        return cell.status, cell.proof is not None

    assert verdict("first") == ("passed", False)
    assert verdict("again") == ("passed", False)
    assert verdict("trusting", "--trust", "first") == ("passed", True)
    status = helper.stat()
    helper.write_text(RIGHT.format(more="1"))
    os.utime(helper, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert helper.stat().st_size == status.st_size
    assert "--trust first/run.jsonl: mine.py has changed since; leave --trust away" in verdict("x", "--trust", "first")
    assert verdict("same stamp") == ("mismatch", False)


def _imported(suite):
    command = [sys.executable, "-c", "import spec_decode_bench.harness; import spec_decode_bench.kernels.mine"]
    return subprocess.run(command, cwd=suite, capture_output=True, text=True, check=True).stdout.strip()


def test_what_is_imported_is_what_the_file_holds(tmp_path):
    """Python itself takes bytecode for current by time stamp and size."""
    suite = tmp_path / "suite"
    for package in ("harness", "kernels"):
        (suite / package).mkdir(parents=True)
        (suite / package / "__init__.py").touch()
    shutil.copy(ROOT / "spec_decode_bench.py", suite)
    for name in ("__init__.py", "import_by_content.py"):
        shutil.copy(ROOT / "harness" / name, suite / "harness")
    file = suite / "kernels" / "mine.py"
    seen = []
    for number in (1, 2, 2):
        file.write_text(f"print({number})")
        os.utime(file, ns=(0, 10**18))
        seen.append(_imported(suite))
    assert seen == ["1", "2", "2"]
    assert len(list(file.parent.glob("__pycache__/mine*"))) == 1
