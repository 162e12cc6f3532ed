"""bench.py gate: two revisions in turns. A scratch repository holds a bench.py that writes made-up records; the last
test measures this suite itself.
"""

import json
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from spec_decode_bench.harness.analysis.stats import interval
from spec_decode_bench.harness.import_by_content import PACKAGES
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.timing.gpus import VisibleGpu
from spec_decode_bench.regression import gate, revisions
from tests import factory
from tests.cli.test_cli import TINY, call
from tests.processes import listening
from tests.tier import full

ROOT = Path(__file__).parents[2]

#: Answers `run` with the cells of template.jsonl, whose times it multiplies by those of times.json and by a noise of
#: its own. $GATE_LOG gets a line for each process; the process of the number in $GATE_INTERRUPT interrupts its parent.
FAKE_BENCH = """\
import fnmatch, json, os, random, signal, subprocess, sys, time, zlib
from pathlib import Path

here = Path(__file__).parent
if sys.argv[1:] == ["run", "--help"]:
    sys.exit(print("--brief", "--until-wrong", "--hold" if (here / "holds.txt").exists() else ""))
words = [part for word in sys.argv[3:] for part in (word.split("=", 1) if word.startswith("--") else [word])]
given = lambda flag: [words[i + 1] for i, word in enumerate(words) if word == flag]
if "--plan" in words:
    _, *cells = map(json.loads, (here / "template.jsonl").read_text().splitlines())
    if (here / "fewer.txt").exists():
        cells = [cell for cell in cells if cell["variant"] != "flat_view"]
    print(*("/".join((cell["operator"], cell["variant"], cell["point"])) for cell in cells), sep="\\n")
    sys.exit(0 if (here / "plans.txt").exists() else 2)
if "--hold" in words:
    with open(os.environ["GATE_LOG"] + ".held", "a") as log:
        print(here.name, file=log)
    if not sys.stdin.readline():
        sys.exit(130)
with open(os.environ["GATE_LOG"], "a") as log:
    what = "timed" if "--brief" in words else "verified"
    print(here.name, what, " ".join(given("--only")), os.environ.get("CUDA_VISIBLE_DEVICES"), sep="|", file=log)
number = len(Path(os.environ["GATE_LOG"]).read_text().splitlines())
times = json.loads((here / "times.json").read_text())
engine, environment = Path(os.environ.get("PYTHONPATH", "").partition(os.pathsep)[0]), {}
if (engine / "vllm").is_dir():
    times |= json.loads((engine / "vllm" / "v1" / "worker" / "mamba_utils.py").read_text().removeprefix("TIMES ="))
    origin = json.loads((engine / "spec-decode-bench.json").read_text())
    environment = {"packages": {"vllm": origin.get("version", "unknown")}}
    environment |= {"checkouts": {"vllm": origin["checkout"]}} if "checkout" in origin else {}
if number == int(os.environ.get("GATE_INTERRUPT", 0)):
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(30)
if times.get("error"):
    sys.exit("error: " + times["error"])
git = lambda *words: subprocess.run(["git", "-C", here, *words], capture_output=True, text=True).stdout.strip()
header, *cells = map(json.loads, (here / "template.jsonl").read_text().splitlines())
noise = random.Random(number)
kept = []
for cell in cells:
    key = "/".join((cell["operator"], cell["variant"], cell["point"]))
    if given("--only") and not any(fnmatch.fnmatchcase(key, one) for one in given("--only")):
        continue
    factor = times.get(cell["variant"], 1) * (1 + times.get("noise " + cell["variant"], 0.002) * noise.gauss(0, 1))
    cell["metrics"]["cpu_us"] = [us * factor for us in cell["metrics"]["cpu_us"]]
    if times.get("broken") == cell["variant"]:
        finding = {"status": "mismatch", "place": "point", "name": cell["point"], "message": "wrong"}
        cell |= {"status": "mismatch", "metrics": None, "finding": finding}
    kept.append((key, cell))
if "--until-wrong" in words and (wrong := {cell["variant"] for _, cell in kept if cell["metrics"] is None}):
    kept = [(key, cell) for key, cell in kept if cell["variant"] in wrong]
header["cells"] = [key for key, _ in kept]
header["started"] = f"2026-01-01T00:{number:02}:00+00:00"
header["environment"] |= {"commit": git("rev-parse", "--short=10", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
header["environment"] |= environment
out = Path(*given("--out"))
out.mkdir(parents=True)
with open(out / "run.jsonl", "wb") as file:
    for line in [header, *(cell for _, cell in kept)]:
        line.pop("crc32", None)
        text = json.dumps(line, separators=(",", ":"))[:-1].encode()
        file.write(text + b',"crc32":"%08x"}\\n' % zlib.crc32(text))
sys.exit({cell["status"] for _, cell in kept} != {"passed"})
"""


def git(folder, *words):
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(folder, message="change"):
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def seed_repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seed") / "suite"
    folder.mkdir()
    cells = [
        factory.cell("decode_native", variant, {"batch_size": size}, cpu=30.0 + size, baseline="chain_clamp")
        for variant in ("chain_clamp", "flat_view")
        for size in (1, 8, 32, 128, 256)
    ]
    record = factory.write(factory.run(factory.cpu_environment(), cells), folder / "record.jsonl")
    (folder / "template.jsonl").write_bytes(record.read_bytes())
    record.unlink()
    (folder / "old.txt").write_text("")
    git(folder.parent, "init", "-q", folder)
    commit(folder, "before there was a bench.py")
    git(folder, "tag", "ancient")
    (folder / "bench.py").write_text("print('usage')")
    commit(folder, "before there was a gate")
    git(folder, "tag", "old")
    (folder / "bench.py").write_text(FAKE_BENCH)
    (folder / "times.json").write_text("{}")
    commit(folder, "base")
    git(folder, "tag", "base")
    return folder


@pytest.fixture
def suite(seed_repository, tmp_path, monkeypatch):
    """The scratch repository as the working directory, with a configuration in it that git ignores."""
    folder = tmp_path / "suite"
    shutil.copytree(seed_repository, folder)
    (folder / ".git" / "info" / "exclude").write_text("tiny.yaml\n")
    (folder / "tiny.yaml").write_text(TINY)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(revisions, "ROOT", folder)
    monkeypatch.setattr(gate, "ROOT", folder)
    monkeypatch.setenv("GATE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with listening(signal.SIGINT):
        yield folder


def bench(*arguments):
    code, out, err = call("gate", *arguments)
    return code, " ".join(out.split()), " ".join(err.split())


def processes(suite):
    """(side, "verified" or "timed", cells) of every process, in order."""
    return [tuple(line.split("|")[:3]) for line in (suite.parent / "log").read_text().splitlines()]


def times(suite, **factors):
    (suite / "times.json").write_text(json.dumps(factors))


def test_unchanged_code_passes_and_leaves_nothing_behind(suite):
    status = git(suite, "status", "--porcelain", "--ignored")
    code, out, err = bench("tiny.yaml", "--base", "base", "--all", "--out", "../out")
    assert (code, err) == (0, "")
    assert "base base (" in out
    assert "the same code twice" in out
    first, *others = processes(suite)
    assert first[:2] == ("head", "verified")
    assert [side for side, _, _ in others] == ["base", "head", "head", "base", "base", "head", "head", "base"]
    assert {what for _, what, _ in others} == {"timed"}
    assert git(suite, "status", "--porcelain", "--ignored") == status
    assert len(git(suite, "worktree", "list").splitlines()) == 1
    assert list(suite.parent.glob("bench-gate-*")) == []
    written = {path.name for path in Path("../out").iterdir()}
    assert {"comparison.md", "comparison.html", "comparison.json", "gate.json", "logs"} <= written
    assert "unfinished" not in written


def test_where_no_code_differs_nothing_is_measured(suite):
    code, out, err = bench("tiny.yaml", "--base", "base", "--out", "../out")
    assert (code, err, "nothing is measured" in out) == (0, "", True)
    assert not (suite.parent / "log").exists()
    assert not Path("../out").exists()


CONTROL = "chain_clamp"


@pytest.fixture
def with_code(suite):
    """A commit that defines its two variants in files, of which the working tree changes one; the base of a gate."""
    (suite / "plans.txt").write_text("")
    for name, variant in (("kernels/decode_native/mine.py", "flat_view"), ("baselines/decode_native/c.py", CONTROL)):
        (suite / name).parent.mkdir(parents=True)
        (suite / name).write_text(f'@variant("decode_native")\ndef {variant}(point, x, out): ...\n')
    base = commit(suite)
    with open(suite / "kernels/decode_native/mine.py", "a") as file:
        file.write("# changed\n")
    return base


def test_only_cells_that_a_change_reaches_are_measured_and_some_others(suite, with_code):
    times(suite, flat_view=1.1)
    code, out, err = bench("tiny.yaml", "--base", with_code, "--out", "../out")
    assert (code, err) == (1, "")
    assert "5 of 10 cells changed" in out
    assert "5 slower, 0 faster, 0 same" in out
    assert "of unchanged code" in Path("../out/comparison.md").read_text()
    variants = Counter(key.split("/")[1] for _, _, only in processes(suite)[:1] for key in only.split())
    assert variants["flat_view"] == 5
    assert 0 < variants[CONTROL] <= 6


def test_a_side_is_asked_for_its_own_cells_only(suite, with_code):
    """Each run refuses a cell that its revision does not have."""
    (suite / "fewer.txt").write_text("")
    code, _, _ = bench("tiny.yaml", "--base", with_code, "--out", "../out")
    assert code == 3  # cells of base are gone
    for side, _, only in processes(suite)[:2]:
        assert ("flat_view" in only) == (side == "base")


@pytest.mark.parametrize(("factor", "code", "said"), [(1.1, 1, "5 slower"), (0.9, 0, "5 faster")])
def test_a_slower_commit_fails_and_a_faster_one_passes(factor, code, said, suite):
    times(suite, flat_view=factor)
    head = commit(suite)
    times(suite)
    found, out, _ = bench("tiny.yaml", "--base", "base", "--head", head, "--out", "../out")
    assert (found, said in out) == (code, True)


@full
def test_a_file_that_the_configuration_names_is_read_by_every_cell(suite, with_code):
    with open("tiny.yaml", "a") as file:
        file.write("# {trace: trace.csv}\n")
    (suite / "trace.csv").write_text("another one")
    bench("tiny.yaml", "--base", with_code, "--minutes", "0.0001", "--out", "../out")
    assert [only for _, _, only in processes(suite)[:2]] == ["", ""]


def test_unchanged_cells_that_move_show_that_the_machine_was_not_steady(suite, with_code):
    times(suite, **{CONTROL: 1.2})
    code, out, _ = bench("tiny.yaml", "--base", with_code, "--out", "../out")
    assert code == 3
    assert "machine was not steady" in out


def test_the_head_is_the_working_tree_as_it_stands(suite):
    """Modified, untracked and deleted files; base keeps its own."""
    times(suite, flat_view=1.1)
    (suite / "untracked.txt").write_text("")
    (suite / "old.txt").unlink()
    checks = 'for name, there in (("untracked.txt", True), ("old.txt", False)):\n    head = here.name == "head"\n'
    checks += "    assert (here / name).exists() == (there == head), name\n"
    source = (suite / "bench.py").read_text()
    git(suite, "stash", "-q", "-u")
    (suite / "bench.py").write_text(source.replace("times = json", f"{checks}times = json"))
    commit(suite)
    git(suite, "tag", "-f", "base")
    git(suite, "stash", "pop", "-q")
    code, out, err = bench("tiny.yaml", "--base", "base", "--out", "../out")
    assert (code, err) == (1, "")
    assert "with changes" in out
    assert (suite / "untracked.txt").exists()
    assert not (suite / "old.txt").exists()
    assert read_run("../out/head/run1.jsonl").header.environment.dirty
    assert not read_run("../out/base/run1.jsonl").header.environment.dirty


def test_a_gate_ends_when_a_variant_is_wrong(suite):
    times(suite, broken="flat_view")
    code, out, _ = bench("tiny.yaml", "--base", "base", "--out", "../out")
    assert code == 1
    assert "broken in head, so nothing is timed: decode_native/flat_view" in out
    assert "5 broken" in out
    assert [what for _, what, _ in processes(suite)] == ["verified", "verified"]
    assert bench("--resume", "../out")[0] == 1
    assert len(processes(suite)) == 2
    code, _, err = bench("tiny.yaml", "--base", "base", "--out", "../out")
    assert (code, "holds a gate already" in err) == (2, True)


def test_where_a_variant_of_head_is_wrong_base_verifies_that_one_alone(suite, with_code):
    times(suite, broken="flat_view")
    code, out, _ = bench("tiny.yaml", "--base", with_code, "--out", "../out")
    assert code == 1
    assert "5 broken" in out
    assert {cell.variant for cell in read_run("../out/verified/head.jsonl").cells} == {"flat_view"}
    assert {cell.variant for cell in read_run("../out/verified/base.jsonl").cells} == {"flat_view"}
    assert [side for side, _, _ in processes(suite)].count("base") <= 2  # the first may have been ended before it wrote


def test_two_gpus_run_a_pair_at_once_and_change_places(suite, monkeypatch):
    monkeypatch.setattr(gate, "choose_gpus", lambda wanted: [VisibleGpu(i, f"uuid{i}") for i in range(int(wanted))])
    arguments = ("tiny.yaml", "--all", "--base", "base", "--out", "../out", "--gpus")
    assert bench(*arguments, "3")[0] == 2
    assert bench(*arguments, "2")[0] == 0
    lines = [line.split("|") for line in (suite.parent / "log").read_text().splitlines()]
    timed = [(side, gpu) for side, what, _, gpu in lines if what == "timed"]
    for first in range(0, 8, 2):  # a pair at a time
        assert {side for side, _ in timed[first : first + 2]} == {"base", "head"}
        assert {gpu for _, gpu in timed[first : first + 2]} == {"uuid0", "uuid1"}
    assert Counter(timed) == Counter({(side, gpu): 2 for side in ("base", "head") for gpu in ("uuid0", "uuid1")})


def test_no_process_times_a_variant_that_is_wrong_on_both_sides(suite):
    times(suite, broken="flat_view")
    commit(suite)
    (suite / "untracked.txt").write_text("")
    assert bench("tiny.yaml", "--base", "HEAD", "--out", "../out")[0] == 0
    assert {"flat_view" in only for _, what, only in processes(suite) if what == "timed"} == {False}
    run = read_run("../out/head/run1.jsonl")
    assert {cell.variant: cell.status for cell in run.cells} == {"chain_clamp": "passed", "flat_view": "mismatch"}


def test_only_undecided_cells_are_measured_again_and_then_it_cannot_tell(suite, monkeypatch):
    monkeypatch.setattr(gate, "LOOKS", (3, 4, 6))
    times(suite, **{"noise flat_view": 0.5})
    code, out, _ = bench("tiny.yaml", "--base", "base", "--out", "../out", "--only", "decode_native/*")
    assert code == 3
    assert "Could not tell" in out
    cells = [only for _, _, only in processes(suite)]
    assert cells[:2] == ["decode_native/*"] * 2
    assert {len(keys.split()) for keys in cells[2:8]} == {10}
    assert len(cells) == 14
    assert "decode_native/flat_view/batch_size=8" in cells[8].split()
    assert "decode_native/*" not in cells[8].split()
    assert {cell.variant for cell in read_run("../out/head/run6.jsonl").cells} >= {"flat_view"}


def test_it_ends_when_the_minutes_are_over(suite):
    code, out, _ = bench("tiny.yaml", "--all", "--base", "base", "--out", "../out", "--minutes", "0.0001")
    assert code == 3
    assert "0.0001 minutes are over after 1 pair" in out
    assert len(processes(suite)) == 3
    code, _, err = bench("--resume", "../out")
    assert (code, err) == (0, "")
    assert len(processes(suite)) == 9


@full
def test_the_next_process_loads_while_one_is_timed(suite, monkeypatch):
    """Up to the next comparison. What is timed, and in which order, stays the same."""
    (suite / "holds.txt").write_text("")
    monkeypatch.setattr(gate, "_is_gpu", lambda run: True)
    code, _, err = bench("tiny.yaml", "--all", "--base", "base", "--out", "../out")
    assert (code, err) == (0, "")
    assert not Path("../log.held").exists()  # base cannot
    commit(suite)
    code, _, err = bench("tiny.yaml", "--all", "--base", "HEAD", "--head", "HEAD", "--out", "../held")
    assert (code, err) == (0, "")
    sides = [side for side, _, _ in processes(suite)][-8:]
    assert sides == ["base", "head", "head", "base", "base", "head", "head", "base"]
    assert sorted(Path("../log.held").read_text().split()) == sorted(sides[1:])  # two may load at the same time


@full
def test_a_held_process_ends_with_the_gate(suite, monkeypatch):
    (suite / "holds.txt").write_text("")
    commit(suite)
    monkeypatch.setattr(gate, "_is_gpu", lambda run: True)
    arguments = ("tiny.yaml", "--all", "--base", "HEAD", "--head", "HEAD", "--out", "../out", "--minutes", "0.0001")
    assert bench(*arguments)[0] == 3
    assert [side for side, _, _ in processes(suite)] == ["head", "base", "head"]  # head of pair 2 was never let go


@pytest.mark.parametrize("number", [2, 5], ids=["while it verifies", "while it measures"])
def test_an_interrupted_gate_goes_on(number, suite, monkeypatch):
    monkeypatch.setenv("GATE_INTERRUPT", str(number))
    code, _, err = bench("tiny.yaml", "--all", "--base", "base", "--out", "../out")
    assert code == 130
    assert "continue with python bench.py gate --resume ../out" in err
    assert len(git(suite, "worktree", "list").splitlines()) == 1
    kept = {path: path.read_bytes() for path in Path("../out/head").glob("*")}
    monkeypatch.delenv("GATE_INTERRUPT")
    code, _, err = bench("--resume", "../out")
    assert (code, err) == (0, "")
    assert len(kept) == (2 if number == 5 else 0)
    assert all(path.read_bytes() == content for path, content in kept.items())
    for side in ("base", "head"):
        assert sorted(path.name for path in Path("../out", side).iterdir()) == [f"run{n}.jsonl" for n in (1, 2, 3, 4)]
        assert [one for one, _, _ in processes(suite)].count(side) <= 6  # those that were interrupted once more


def test_a_changed_working_tree_is_another_head(suite, monkeypatch):
    monkeypatch.setenv("GATE_INTERRUPT", "6")
    bench("tiny.yaml", "--all", "--base", "base", "--out", "out")  # inside of the tree, and no change of it
    times(suite, flat_view=1.1)
    code, _, err = bench("--resume", "out")
    assert code == 2
    assert "which has changed" in err
    git(suite, "checkout", "times.json")
    assert bench("--resume", "out")[0] == 0


def test_a_side_that_cannot_run_is_no_verdict(suite):
    times(suite, error="unknown operator 'decode_natve'")
    code, _, err = bench("tiny.yaml", "--base", "base", "--out", "../out")
    assert code == 2
    assert "a process of head, working tree" in err
    assert "unknown operator 'decode_natve'" in err
    assert "continue with python bench.py gate --resume ../out once the cause is fixed" in err
    assert "Traceback" not in err
    times(suite)


def repository_of_this_suite(suite):
    parts = shutil.ignore_patterns("__pycache__")
    for part in {*PACKAGES, "configs"} - {"kernels", "upstream"}:
        shutil.copytree(ROOT / part, suite / part, ignore=parts)
    (suite / "kernels").mkdir()
    shutil.copy(ROOT / "kernels" / "__init__.py", suite / "kernels")  # those of operators would only be imported
    for file in ("bench.py", "spec_decode_bench.py"):
        shutil.copy(ROOT / file, suite)
    (suite / ".gitignore").write_text("__pycache__/\n")
    git(suite.parent, "init", "-q", suite)
    commit(suite, "base")
    return suite


@full
def test_this_suite_with_a_slowed_variant(tmp_path, monkeypatch):
    """Real processes on the CPU: two commits, one of which slows a chain many times over; each runs its own code."""
    suite = repository_of_this_suite(tmp_path / "suite")
    chains = suite / "baselines" / "decode_native" / "chains.py"
    code, clamp = chains.read_text(), "        view.clamp_(min=0)\n"
    assert code.count(clamp) == 1
    chains.write_text(code.replace(clamp, f"        for _ in range(40):\n    {clamp}"))
    commit(suite, "slower")
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(revisions, "ROOT", suite)
    monkeypatch.setattr(gate, "LOOKS", (1,))
    code, _, err = bench("tiny.yaml", "--base", "HEAD^", "--head", "HEAD", "--device", "cpu", "--out", "out")
    assert (code, err) == (3, "")  # one process a side is too few for a verdict
    runs = {side: [read_run(f"out/{side}/run1.jsonl")] for side in ("base", "head")}
    assert {run.header.environment.commit for run in runs["base"]} == {git(suite, "rev-parse", "--short=10", "HEAD^")}
    for side in runs.values():
        assert all(cell.proof.verified_at for run in side for cell in run.cells)
        assert all(cell.metrics.cpu_us for run in side for cell in run.cells)
    assert runs["base"][0].header.sources != runs["head"][0].header.sources
    assert len({run.header.seed for side in runs.values() for run in side}) == 1
    change = {cell.variant: [] for cell in runs["base"][0].cells}
    for base, head in zip(runs["base"], runs["head"], strict=True):
        for before, after in zip(base.in_order, head.in_order, strict=True):
            change[after.variant].append(interval(after, "cpu_us").median / interval(before, "cpu_us").median)
    assert min(change["flat_view"]) > 2 * max(change["chain_clamp"])
