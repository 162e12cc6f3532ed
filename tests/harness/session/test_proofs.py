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


def test_with_kernels_from_a_folder_nothing_is_remembered(catalog):
    environment = factory.gpu_environment(compiler_settings={"TRITON_KERNEL_OVERRIDE": "1"})
    assert key(environment, catalog=catalog) is None


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


@pytest.mark.parametrize("here", [True, False])
def test_a_proof_of_this_machine_is_believed_but_no_wrong_result(here, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE.format(line=""))  # it writes nothing
    checked = []
    monkeypatch.setattr(evaluator, "check_variant", lambda operator, variant, *_, **__: checked.append(variant) or [])
    measure = Measure(max_rounds=3, min_rounds=3)
    owner = evaluator.Evaluator(Job("cpu", (str(tmp_path / "mine.py"),), 0, measure, timed=True))
    operator, names = owner.catalog.operators["decode_native"], ("chain_clamp", "mine")
    variants = [owner.catalog.find("decode_native", name) for name in names]
    proof, own = Proof(key="a", verified_at="2026", gpu_id="b"), proofs.machine_hash(owner.bring_up())
    machine = own if here else proofs.machine_hash(factory.gpu_environment())
    item = task_of(operator, operator.complete({"batch_size": 3}), variants)
    item = replace(item, budget_s=0.1, proven=dict.fromkeys(names, proof), machine=machine)
    found = measured(owner, item, own)
    if here:
        assert [found[name].status for name in names] == ["passed", "mismatch"]
    assert [found[name].proof for name in names] == [proof if here else None, None]
    assert checked == ([] if here else variants)


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
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(Path(torch.__file__).parent / "bin" / "ptxas"))
    assert "TRITON_PTXAS_PATH" not in describe("cpu").compiler_settings, "Inductor sets it itself"


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


@pytest.mark.parametrize(
    ("seen", "now", "stored"),
    [("", "k", True), ("P", "k", True), ("P", "other", False), ("PM", "k", False)],
    ids=["kept", "passed", "the sources changed during the run", "failed, also with --reverify"],
)
def test_what_is_remembered_is_that_all_cells_of_one_code_passed(seen, now, stored, monkeypatch):
    cell = factory.cell("decode_native", "a", {"batch_size": 1}, 1.0)
    if now == "k":
        remember("k")
    monkeypatch.setattr(_Remembered, "_keys_now", lambda self: {cell.variant_id: now})
    remembered = _Remembered(None, factory.cpu_environment(), {cell.variant_id: "k"}, {}, {0: None})
    for status in seen:
        remembered.see(replace(cell, status={"P": Status.PASSED, "M": Status.MISMATCH}[status]))
    remembered.keep()
    assert (proofs.load({"v": "k"}) != {}) is stored


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


def test_a_poisoned_cache_is_never_believed(tmp_path, monkeypatch):
    """A whole run for each poison. The kernel is right at the point of the run and wrong at another one."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    helper = Path("mine.py")
    helper.write_text(RIGHT.format(more="0"))
    run = ("tiny.yaml", "--device", "cpu", "--no-plots", "--seed", "3", "--variants", "mine.py")
    run += ("--set", "variants=[mine]", "--set", "baseline=mine", "--set", "sweep=[{batch_size: 3}]")

    def verdict(folder, *more):
        call(*run, "--out", folder, *more)
        (cell,) = read_run(f"{folder}/run.jsonl").cells[:1]
        return cell.status, cell.proof is not None

    assert verdict("first") == ("passed", False)
    (proof,) = Path(os.environ[proofs.FOLDER]).iterdir()
    assert verdict("again") == ("passed", True)
    assert verdict("reverified", "--reverify") == verdict("other inputs", "--seed", "4") == ("passed", False)
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
