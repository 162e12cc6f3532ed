"""bench.py gate --upstream: two versions of a package in turns. The package is made up and has a file where vLLM has
it; the suite is the scratch repository of test_gate.py, in the last test this suite itself.
"""

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.regression import gate, revisions
from tests.cli.test_cli import call
from tests.regression.test_gate import bench, commit, git, processes, repository_of_this_suite, seed_repository, suite
from tests.tier import full

__all__ = ["seed_repository", "suite"]  # fixtures

KERNELS = "vllm/v1/worker/mamba_utils.py"


def write_times(root, **factors):
    path = root / KERNELS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"TIMES = {json.dumps(factors)}")


@pytest.fixture
def engine(tmp_path):
    """A checkout with branch ``base``, and ``slower`` where flat_view takes 1.1 times as long."""
    folder = tmp_path / "engine"
    write_times(folder)
    (folder / "vllm" / "__init__.py").write_text("raise RuntimeError('vLLM is never imported')")
    git(tmp_path, "init", "-q", folder)
    commit(folder, "base")
    git(folder, "branch", "base")
    write_times(folder, flat_view=1.1)
    commit(folder, "slower")
    git(folder, "branch", "slower")
    return folder


def short(engine, revision):
    return git(engine, "rev-parse", revision)[:7]


def gate_engine(*arguments):
    """--all: the variants of the scratch repository require no file."""
    return bench("tiny.yaml", "--upstream", "vllm", "--out", "../out", "--all", *arguments)


def test_two_revisions_of_a_checkout(suite, engine):
    code, out, err = gate_engine("--checkout", "../engine", "--base", "base", "--head", "slower")
    assert (code, err) == (1, "")
    title = f"vLLM {short(engine, 'base')} → {short(engine, 'slower')}"
    assert title in out
    assert "5 slower" in out
    assert title in Path("../out/comparison.md").read_text()
    for side, revision in (("base", "base"), ("head", "slower")):
        environment = read_run(f"../out/{side}/run1.jsonl").header.environment
        assert environment.checkouts["vllm"].commit == git(engine, "rev-parse", revision)
        assert environment.commit == git(suite, "rev-parse", "--short=10", "HEAD")
    assert [what for _, what, _ in processes(suite)].count("verified") == 2
    assert git(engine, "status", "--porcelain") == ""
    assert len(git(engine, "worktree", "list").splitlines()) == 1


def test_equal_files_are_not_measured(suite, engine):
    (engine / "README.md").write_text("vLLM")
    commit(engine)
    arguments = ("--upstream", "vllm", "--checkout", "../engine", "--base", "slower", "--out", "../out")
    code, out, err = bench("tiny.yaml", *arguments)
    assert (code, err, "nothing is measured" in out) == (0, "", True)
    assert not (suite.parent / "log").exists()
    assert not Path("../out").exists()


def test_the_checkout_as_it_stands_is_the_head(suite, engine):
    write_times(engine, flat_view=0.9)
    code, out, _ = gate_engine("--checkout", "../engine", "--base", "base")
    assert code == 0
    assert "5 faster" in out
    checkout = read_run("../out/head/run1.jsonl").header.environment.checkouts["vllm"]
    assert checkout.commit == git(engine, "rev-parse", "HEAD")
    assert checkout.files is not None
    assert str(checkout) in out


def test_two_folders_need_no_repository(suite, tmp_path):
    shutil.rmtree(suite / ".git")
    for name, factor in (("old", 1.0), ("new", 1.1)):
        write_times(tmp_path / name, flat_view=factor)
    code, out, err = gate_engine("--base", "../old", "--head", "../new", "--minutes", "0.0001")
    assert (code, err) == (3, "")
    assert "vLLM files " in out
    assert list(suite.parent.glob("bench-gate-*")) == []
    assert bench("--resume", "../out", "--minutes", "1")[0] == 1


@full
def test_a_wheel_against_an_unpacked_one(suite, tmp_path):
    write_times(tmp_path / "unpacked", flat_view=1.1)
    with zipfile.ZipFile("../vllm-0.33.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(KERNELS, "TIMES = {}")
        wheel.writestr("vllm/unneeded.py", "")
    code, out, err = gate_engine("--base", "../vllm-0.33.0-py3-none-any.whl", "--head", "../unpacked")
    assert (code, err) == (1, "")
    assert "vLLM 0.33.0 → files " in out
    assert not Path("../out/packages/base/vllm/unneeded.py").exists()
    assert read_run("../out/base/run1.jsonl").header.environment.packages == {"vllm": "0.33.0"}


@full
def test_history_orders_checkouts_by_when_they_were_committed(suite, engine, monkeypatch):
    """Not by when they were measured."""
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01T00:00:00+00:00")
    git(engine, "checkout", "-q", "--orphan", "old")
    write_times(engine, flat_view=1.2)
    commit(engine, "old")
    assert gate_engine("--checkout", "../engine", "--base", "base", "--head", "old")[0] == 1
    code, out, err = call("history", "../out/base", "../out/head", "--out", "../history")
    assert (code, err) == (0, "")
    assert f"vLLM {short(engine, 'old')} (" in out
    assert f"vLLM {short(engine, 'base')} (" in out
    assert out.index(short(engine, "old")) < out.index(short(engine, "base"))


#: Like a variant of upstream/, with a kernel of PyTorch operators, which a CPU times.
VARIANT = """
from spec_decode_bench.harness.contract import variant
from spec_decode_bench.harness.packages import file_in

FILE = "v1/worker/lens.py"


def at_the_front(point):
    return "plain rows only" if point.row_alignment == "front" or point.cp_size > 1 else None


@variant("decode_native", requires=f"vllm:{FILE}::fill", skip=at_the_front, waives="no_alloc")
def vllm_fill(point, x, out):
    space = {}
    exec(file_in("vllm", FILE).read_text(), space)
    return lambda: space["fill"](x.seq_lens, out.buffer, point.max_decode_len, point.compress_ratio)
"""
KERNEL = """
import torch

def fill(seq_lens, buffer, width, ratio):
    lens = seq_lens[:, None] - width + 1 + torch.arange(width, dtype=torch.int32)
    lens = lens.clamp(min=0) // ratio
    buffer[: lens.numel()].copy_(lens.view(-1))
"""
CONFIG = """\
name: tiny
operators: [decode_native]
variants: ["vllm*", chain_clamp]
sweep: [{batch_size: 4, context_len: {uniform: [1000, 100000]}}]
measure: {time_budget_s: 0.2, min_rounds: 3, max_rounds: 3}
"""


def engine_with(folder, kernel):
    path = folder / "vllm" / "v1" / "worker" / "lens.py"
    path.parent.mkdir(parents=True)
    path.write_text(kernel)
    git(folder.parent, "init", "-q", folder)
    return commit(folder)


@full
def test_this_suite_with_two_repositories_of_an_engine(tmp_path, monkeypatch):
    """Real processes on the CPU. Equal kernels are not measured, whatever else their file holds. Other ones are, beside
    a variant of the suite of unchanged code, and a wrong one is rejected.
    """
    suite = repository_of_this_suite(tmp_path / "suite")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(revisions, "ROOT", suite)
    monkeypatch.setattr(gate, "LOOKS", (1,))
    Path("tiny.yaml").write_text(CONFIG)
    Path("mine.py").write_text(VARIANT)
    base = engine_with(tmp_path / "base", KERNEL)
    engine_with(tmp_path / "equal", KERNEL)
    engine_with(tmp_path / "elsewhere", f"{KERNEL}\ndef clear(buffer):\n    buffer.zero_()\n")
    wrong = engine_with(tmp_path / "wrong", KERNEL.replace("min=0", "min=1"))
    same = engine_with(tmp_path / "same", KERNEL.replace("lens.clamp(min=0)", "torch.relu(lens)"))

    def gated(head):
        arguments = ("--upstream", "vllm", "--base", "base", "--head", head, "--variants", "mine.py")
        return bench("tiny.yaml", *arguments, "--device", "cpu", "--out", f"out-{head}")

    for head in ("equal", "elsewhere"):
        code, out, err = gated(head)
        assert (code, err) == (0, "")
        assert "nothing is measured" in out

    code, out, err = gated("wrong")
    assert (code, err) == (1, "")
    assert f"vLLM {base[:7]} → {wrong[:7]}" in out
    assert "1 broken" in out

    code, out, err = gated("same")
    assert (code, err) == (3, "")  # one process a side is too few for a verdict
    assert f"vLLM {base[:7]} → {same[:7]}" in out
    assert "1 of 2 cells changed" in out
    sides = [read_run(f"out-same/{side}/run1.jsonl") for side in ("base", "head")]
    assert [run.header.environment.checkouts["vllm"].commit for run in sides] == [base, same]
    assert all(cell.metrics.cpu_us for run in sides for cell in run.cells)
    digests = {run.header.sources["vllm:v1/worker/lens.py"] for run in sides}
    assert len(digests) == 2
    Path("mixed").mkdir()
    for run, name in zip(sides, ("base", "head"), strict=True):
        Path(run.path).rename(f"mixed/{name}.jsonl")
    code, _, err = call("compare", "mixed", "out-same/verified/base.jsonl", "--any-config")
    assert code == 2
    assert "checkouts.vllm" in err
