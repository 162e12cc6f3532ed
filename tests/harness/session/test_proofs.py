"""Remembered proofs: the second run skips the edge cases, and nothing that differs is believed."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace

from spec_decode_bench.harness.command.recording import _Remembered
from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.sweep import task_of
from spec_decode_bench.harness.config.work_items import Task
from spec_decode_bench.harness.discover import ROOT, discover
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import Audit, Proof, Segment, Status
from spec_decode_bench.harness.session import evaluator, proofs
from spec_decode_bench.harness.session.messages import Job
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


@variant("decode_native", skip=lambda p: "end-aligned rows only" if p.row_alignment == "front" else None)
def mine(point, x, out):
    fill, view = flat_view(point, x, out), out.views(point)["context_lens"]

    def launch():
        fill()
        if point.batch_size not in (3, 4):
            view.add_({more})

    return launch
"""


def remember(key):
    proofs.store(proofs.Remembered(Proof(key=key, verified_at="2026")))


def key(environment=None, seed=0, file=None, catalog=None):
    catalog = catalog or discover([file] if file else [])
    name = "mine" if file else "chain_clamp"
    code = proofs.code_of([catalog.find("decode_native", name)], catalog)
    keys = proofs.keys_of(code, environment or factory.gpu_environment(), seed)
    return keys.get(f"decode_native/{name}")


@pytest.mark.parametrize(
    "changed",
    [
        *({"driver": "581"}, {"triton": "3.7.0"}, {"torch": "2.12"}, {"gpu": "NVIDIA H100"}, {"cuda_core": "2"}),
        *({"nvrtc": "13.0.88"}, {"compiler_settings": {"TRITON_DEFAULT_FP_FUSION": "0"}}),
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_machine_has_another_key(changed, catalog):
    assert key(catalog=catalog) == key(catalog=catalog) is not None
    assert key(factory.gpu_environment(**changed), catalog=catalog) != key(catalog=catalog)


def test_a_source_changed_with_the_same_time_stamp_and_size(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE.format(line="A = 1"))
    status, before = file.stat(), key(file=file)
    file.write_text(MINE.format(line="A = 2"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size
    assert None not in (before, key(file=file))
    assert key(file=file) != before


@pytest.mark.parametrize("line", ["import yaml", "from yaml import load"])
def test_a_variant_that_imports_what_is_not_hashed_is_never_remembered(line, tmp_path):
    (tmp_path / "mine.py").write_text(MINE.format(line=line))
    assert key(file=tmp_path / "mine.py") is None


def test_an_engine_s_version_its_files_and_what_they_import_are_part_of_the_key(tmp_path, monkeypatch, catalog):
    wrapped = next(
        v
        for v in catalog.variants
        if v.origin != "spec_decode_bench.upstream.flash_mla" and any(need.startswith("vllm:") for need in v.requires)
    )
    file, helper = tmp_path / "vllm" / "v1" / "kernels.py", tmp_path / "vllm" / "helper.py"
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(proofs, "files_of", lambda needs: {"vllm:v1/kernels.py": file})
    keys = set()
    for text, helping, version in [("", "", "1"), ("x = 1", "", "1"), ("x = 1", "y = 1", "1"), ("x = 1", "y = 1", "2")]:
        file.write_text(f"from vllm import helper\n{text}")
        helper.write_text(helping)
        environment = factory.gpu_environment(packages={"vllm": version})
        keys |= set(proofs.keys_of(proofs.code_of([wrapped], catalog), environment, 0).values())
    assert len(keys) == 4


def test_a_damaged_file_counts_as_missing():
    folder = Path(os.environ[proofs.FOLDER])
    proof = Proof(key="a", verified_at="2026-01-01T00:00:00+00:00", gpu_id="b")
    remembered = proofs.Remembered(proof, {"hot {}": Audit(proof=proof, counts={"allocations": 0, "memcpys": {}})})
    proofs.store(remembered)
    assert proofs.load({"v": "a"})["v"] == remembered
    good = (folder / "a.json").read_bytes()
    for i in range(len(good)):
        (folder / "a.json").write_bytes(good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :])
        assert proofs.load({"v": "a"}) == {}, i
        (folder / "a.json").write_bytes(good[:i])
        assert proofs.load({"v": "a"}) == {}, i
    (folder / "c.json").write_bytes(good)
    assert proofs.load({"v": "c"}) == {}


@pytest.mark.parametrize("value", ["off", "/proc/nowhere"])
def test_without_a_folder_nothing_is_remembered(value, monkeypatch):
    monkeypatch.setenv(proofs.FOLDER, value)
    remember("a")
    proofs.forget("a")
    assert proofs.load({"v": "a"}) == {}


def test_the_evaluator_runs_no_edge_case_and_still_rejects_a_wrong_result(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE.format(line=""))  # it writes nothing
    monkeypatch.setattr(evaluator, "check_variant", lambda *_, **__: pytest.fail("an edge case was run"))
    measure = Measure(max_rounds=3, min_rounds=3)
    owner = evaluator.Evaluator(Job("cpu", (str(tmp_path / "mine.py"),), 0, measure, timed=True))
    operator = owner.catalog.operators["decode_native"]
    variants = [owner.catalog.find("decode_native", name) for name in ("chain_clamp", "mine")]
    item = task_of(operator, operator.complete({"batch_size": 3}), variants)
    machine = proofs.machine_hash(owner.bring_up())
    proof = Proof(key="a", verified_at="2026", gpu_id="b")
    item = replace(item, budget_s=0.1, proven=dict.fromkeys(item.variants, proof), machine=machine)
    found = measured(owner, item, machine)
    assert {name: cell.status for name, cell in found.items()} == {"chain_clamp": "passed", "mine": "mismatch"}
    assert {name: cell.proof for name, cell in found.items()} == {"chain_clamp": proof, "mine": None}


def test_a_worker_on_another_machine_does_not_believe(monkeypatch):
    checked = []
    monkeypatch.setattr(evaluator, "check_variant", lambda operator, variant, *_, **__: checked.append(variant) or [])
    owner = evaluator.Evaluator(Job("cpu", (), 0, Measure(max_rounds=3, min_rounds=3), timed=True))
    here = proofs.machine_hash(owner.bring_up())
    operator, variant = owner.catalog.operators["decode_native"], owner.catalog.find("decode_native", "chain_clamp")
    item = task_of(operator, operator.complete({"batch_size": 3}), [variant])
    proven = {"chain_clamp": Proof(key="a", verified_at="2026")}
    machine = proofs.machine_hash(factory.gpu_environment())
    found = measured(owner, replace(item, budget_s=0.1, proven=proven, machine=machine), here)
    assert checked == [variant]
    assert found["chain_clamp"].proof is None


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


def test_with_kernels_from_a_folder_nothing_is_remembered(catalog):
    environment = factory.gpu_environment(compiler_settings={"TRITON_KERNEL_OVERRIDE": "1"})
    assert key(environment, catalog=catalog) is None


def test_a_proof_names_the_gpu_that_verified(catalog):
    """Of several GPUs the worker that ran the edge cases; a GPU of another kind proves nothing."""
    ours = factory.gpu_environment(gpu_id="first")
    second = factory.gpu_environment(gpu_id="second")
    other = factory.gpu_environment(gpu_id="third", driver="1")
    remembered = _Remembered(None, ours, {}, {}, {0: "first"})
    for process, environment in ((1, second), (2, other)):
        remembered.see_process(Segment(process=process, started="", why="", environment=environment))
    for name, process in (("a", 1), ("b", 0), ("c", 2)):
        remembered.see(replace(factory.cell("decode_native", name, {"batch_size": 1}, 1.0), process=process))
    assert remembered.passed == {"decode_native/a": "second", "decode_native/b": "first"}


def test_a_proof_is_forgotten_when_its_variant_fails(monkeypatch):
    """Also by a run that did not look at it (--reverify)."""
    remember("k")
    environment = factory.cpu_environment()
    cell = factory.cell("decode_native", "a", {"batch_size": 1}, 1.0)
    remembered = _Remembered(None, environment, {cell.variant_id: "k"}, {}, {0: None})
    remembered.see(cell)
    remembered.see(replace(cell, status=Status.MISMATCH))
    remembered.keep()
    assert proofs.load({"v": "k"}) == {}


def test_an_audit_is_remembered_for_its_point_and_cache(monkeypatch):
    environment = factory.gpu_environment(gpu_id="g")
    cell = factory.cell("decode_native", "a", {"batch_size": 1}, 1.0)
    cell = replace(cell, metrics=replace(cell.metrics, eager_launches=2, cupti_us=[1.0]))
    plan = SimpleNamespace(job=Job("cuda", (), 0, Measure(), timed=True))
    monkeypatch.setattr(_Remembered, "_keys_now", lambda self: self.keys)

    def run(proven, seen=()):
        remembered = _Remembered(plan, environment, {cell.variant_id: "k"}, proven, {0: "g"})
        for outcome in seen:
            remembered.see(outcome)
        remembered.keep()
        item = Task(operator="decode_native", variants=("a",), axes=dict(cell.axes), point=cell.point, baseline="a")
        other = replace(item, axes=cell.axes | {"batch_size": 2})
        return [marked.audits for marked in remembered.marked([item, other])]

    assert run({}, [cell]) == [{}, {}]
    ours, others = run(proofs.load({cell.variant_id: "k"}))
    assert (ours["a"].counts["eager_launches"], ours["a"].proof.gpu_id, others) == (2, "g", {})
    later = replace(cell, axes=cell.axes | {"batch_size": 2}, proof=ours["a"].proof)
    run(proofs.load({cell.variant_id: "k"}), [later])
    assert all(run(proofs.load({cell.variant_id: "k"})))
    run({}, [cell])  # --reverify, or a run at the same time
    assert all(run(proofs.load({cell.variant_id: "k"})))
    plan.job = dataclasses.replace(plan.job, measure=Measure(cache="serving"))
    assert run(proofs.load({cell.variant_id: "k"})) == [{}, {}]


def test_a_source_that_changes_during_the_run_proves_nothing(monkeypatch):
    environment = factory.cpu_environment()
    cell = factory.cell("decode_native", "a", {"batch_size": 1}, 1.0)
    for now, stored in (("k", True), ("other", False)):
        monkeypatch.setattr(_Remembered, "_keys_now", lambda self, now=now: {cell.variant_id: now})
        remembered = _Remembered(None, environment, {cell.variant_id: "k"}, {}, {0: None})
        remembered.see(cell)
        remembered.keep()
        assert (proofs.load({"v": "k"}) != {}) is stored
        proofs.forget("k")


def test_a_poisoned_cache_is_never_believed(tmp_path, monkeypatch):
    """A whole run for each poison. The kernel is right at the point of the run and wrong at another one."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    helper = Path("mine.py")
    helper.write_text(RIGHT.format(more="0"))
    run = ("tiny.yaml", "--device", "cpu", "--no-plots", "--seed", "3", "--variants", "mine.py")
    run += ("--set", "variants=[mine]", "--set", "baseline=mine")

    def verdict(folder, *more):
        call(*run, "--out", folder, *more)
        (cell,) = read_run(f"{folder}/run.jsonl").cells[:1]
        return cell.status, cell.proof is not None

    assert verdict("first") == ("passed", False)
    assert verdict("again") == ("passed", True)
    proof = next(Path(os.environ[proofs.FOLDER]).iterdir())
    good = proof.read_bytes()

    proof.write_bytes(good.replace(b"2", b"3", 1))
    assert verdict("flipped") == ("passed", False)

    proof.write_bytes(good)
    status = helper.stat()
    helper.write_text(RIGHT.format(more="1"))
    os.utime(helper, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert helper.stat().st_size == status.st_size
    assert verdict("same stamp") == ("mismatch", False)

    helper.write_text(RIGHT.format(more="0"))
    assert verdict("put back") == ("passed", True)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    assert verdict("other compiler") == ("passed", False)


def test_the_second_run_believes_the_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    run = ("tiny.yaml", "--device", "cpu", "--no-plots", "--seed", "3", "--only", "*/chain_clamp/*", "--out")
    for folder, more in (("1", ()), ("2", ()), ("3", ("--reverify",)), ("4", ("--seed", "4"))):
        code, out, err = call(*run, folder, *more)
        assert code == 0, err
        assert ("--reverify repeats" in " ".join(out.split())) is (folder == "2")
        assert all((cell.proof is not None) is (folder == "2") for cell in read_run(f"{folder}/run.jsonl").cells)


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
