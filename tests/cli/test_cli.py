"""bench.py as a user meets it: exit codes, what is kept when something goes wrong, what a pipe gets."""

import contextlib
import io
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from spec_decode_bench import bench
from spec_decode_bench.harness.command.verdict import exit_code
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.sentences import ending
from tests import factory
from tests.processes import errors, has_ended, run_python
from tests.tier import few, full

ROOT = Path(__file__).parents[2]
TINY = """\
name: tiny
operators: [decode_native]
variants: [chain_clamp, flat_view]
sweep:
  - batch_size: [3, 4]
    context_len: {uniform: [1000, 100000]}
measure: {time_budget_s: 0.2, min_rounds: 3, max_rounds: 3}
"""

#: Variants that do what no variant should.
ADVERSARIES = """
import os, signal, sys, torch
from spec_decode_bench.harness.contract import variant


@variant("decode_native")
def dies_in_setup(point, x, out):
    os.kill(os.getpid(), signal.SIGKILL)


@variant("decode_native", skip=lambda p: (p.row_alignment, p.cp_size) != ("end", 1) and "no" or None, waives="no_alloc")
def dies_while_timed(point, x, out):
    fill = out.buffer[: point.batch_size * point.max_decode_len]
    steps = torch.arange(1 - point.max_decode_len, 1, dtype=torch.int32, device=fill.device)

    def launch():
        if point.batch_size == 4 and "harness/timing" in sys._getframe(1).f_code.co_filename:
            os.kill(os.getpid(), signal.SIGKILL)
        fill.copy_(((x.seq_lens[:, None] + steps).clamp_(min=0) // point.compress_ratio).flatten())

    return launch


@variant("decode_native")
def raises_in_setup(point, x, out):
    raise ValueError("no tile fits\\nand more")


@variant("decode_native")
def returns_nothing(point, x, out):
    out.buffer.zero_()


@variant("decode_native")
def wrong_everywhere(point, x, out):
    def launch():
        out.buffer[: point.batch_size * point.max_decode_len] = 7

    return launch


@variant("decode_native", skip=lambda p: (p.row_alignment, p.cp_size) != ("end", 1) and "no" or None, waives="no_alloc")
def wrong_at_three(point, x, out):
    fill = out.buffer[: point.batch_size * point.max_decode_len]
    steps = torch.arange(1 - point.max_decode_len, 1, dtype=torch.int32, device=fill.device)

    def launch():
        fill.copy_(((x.seq_lens[:, None] + steps).clamp_(min=0) // point.compress_ratio).flatten())
        if point.batch_size == 3:
            fill[-1] += 1

    return launch


@variant("decode_native", requires="nowhere_to_be_found")
def needs_a_module(point, x, out):
    raise AssertionError("must not be called")
"""


def call(*arguments):
    """One command in this process: (exit code, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = bench.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), err.getvalue()


def completed(*arguments):
    """``call``, with what it returns named as by subprocess.run."""
    return SimpleNamespace(**dict(zip(("returncode", "stdout", "stderr"), call(*arguments), strict=True)))


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A small configuration in an otherwise empty working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return "tiny.yaml"


@pytest.fixture(scope="module")
def adversaries(tmp_path_factory):
    path = tmp_path_factory.mktemp("variants") / "adversaries.py"
    path.write_text(ADVERSARIES)
    return path


@pytest.fixture(scope="module")
def misbehaving(tmp_path_factory, adversaries):
    """One sweep over two points with every adversary beside a variant that is right."""
    folder = tmp_path_factory.mktemp("misbehaving")
    (folder / "tiny.yaml").write_text(TINY.replace("variants: [chain_clamp, flat_view]\n", ""))
    only = [word for name in FATES for word in ("--only", name)]
    more = ("--variants", adversaries, *only, "--seed", 7, "--no-plots", "--out", folder / "out")
    code, out, err = call(folder / "tiny.yaml", *more)
    return SimpleNamespace(code=code, out=out, err=err, folder=folder, run=read_run(folder / "out" / "run.jsonl"))


def cells_of(misbehaving, name):
    return [cell for cell in misbehaving.run.cells if cell.variant == name]


# --- a sweep with variants that misbehave -----------------------------------------------------------------------------


DIED = "the worker process was killed by SIGKILL"
AT_AN_EDGE_CASE = r"edge case '.+': .*context_lens.*\[b=0, j=0\] expected \d+, got 7"
#: Variant -> how its cells at batch sizes of 3 and 4 end: status, and a pattern of the sentence.
FATES = {
    "flat_view": (("passed", None),) * 2,
    "dies_in_setup": (("failed", rf"edge case '.+': .*{DIED}"), ("failed", f".*{DIED}")),
    "dies_while_timed": (("passed", None), ("failed", DIED)),
    "raises_in_setup": (("failed", ".*ValueError: no tile fits"),) * 2,
    "returns_nothing": (("failed", ".*TypeError: set-up returned a NoneType instead of the closure to time"),) * 2,
    "wrong_everywhere": (("mismatch", AT_AN_EDGE_CASE),) * 2,
    "wrong_at_three": (("mismatch", r".*context_lens.*\[b=2, j=3\] expected \d+, got \d+"), ("passed", None)),
    "needs_a_module": (("unavailable", "needs the Python module nowhere_to_be_found"),) * 2,
}


@pytest.mark.parametrize("name", FATES)
def test_a_variant_that_misbehaves_costs_itself_and_says_why(name, misbehaving):
    cells = cells_of(misbehaving, name)
    for cell, (status, pattern) in zip(cells, FATES[name], strict=True):
        told = ending(cell)
        assert (cell.status, told is None) == (status, pattern is None), told
        assert pattern is None or re.match(pattern, told), told
        assert "\n" not in (told or "")
        assert (cell.metrics is not None) == (status == "passed")
        assert status != "passed" or cell.metrics.rounds >= 3
    if name == "dies_in_setup":
        assert (cells[0].finding.check, cells[0].finding.place) == ("no_crash", "edge_case")


def test_the_run_ends_with_1_and_every_cell_is_in_the_record(misbehaving):
    assert misbehaving.code == 1
    assert "Traceback" not in misbehaving.err + misbehaving.out
    keys = [cell.key for cell in misbehaving.run.cells]
    assert len(keys) == len(set(keys)) == 2 * len(FATES)
    assert not misbehaving.run.truncated
    header = misbehaving.run.header
    assert (header.seed, header.config["measure"]["seed"]) == (7, 7)
    assert "decode_native/wrong_at_three" in header.variants
    assert max(map(len, misbehaving.out.splitlines())) <= 100  # a command on stderr is one line, to be copied


def test_a_run_in_which_nothing_can_be_verified_is_not_green(config, adversaries):
    """Nor is its record, completed or merged."""
    only = [config, "--variants", adversaries, "--set", "variants=[needs_a_module]", "--device", "cpu", "--no-plots"]
    missing = "needs the Python module nowhere_to_be_found (2 cells)"
    remedy = "install what is missing, or use a machine that has it"
    said = 2, f"error: nothing could be verified here: {missing}; {remedy}\n"
    assert call(*only, "--out", "out")[::2] == said
    assert call(*only, "--resume", "out")[::2] == said
    assert call("merge", "out", "--out", "all", "--no-plots")[::2] == said


@pytest.mark.parametrize(
    ("statuses", "compiled", "code"),
    [
        (["unavailable", "skipped"], {}, 2),
        (["unavailable", "skipped"], {"sm_90": "ok"}, 2),
        (["unavailable"], {"sm_90": "no such header"}, 1),
        (["unavailable", "passed"], {"sm_90": "ok"}, 0),
        (["unavailable", "mismatch"], {}, 1),
        ([], {}, 0),
    ],
)
def test_what_is_unavailable_or_skipped_is_no_verdict(statuses, compiled, code, capsys):
    cells = [
        factory.cell("o", "v", {"n": n}, status=status, reason=None if status == "passed" else "why")
        for n, status in enumerate(statuses)
    ]
    header = {"compiled": {"mine.cu": compiled}} if compiled else {}
    assert exit_code(factory.run(factory.cpu_environment(), cells, **header)) == code
    assert ("though the CUDA sources compile" in capsys.readouterr().err) == (code == 2 and bool(compiled))


def reason_of(tmp_path, adversaries, seed, *flags):
    folder = tmp_path / f"out{seed}"
    only = ("--set", "variants=all", "--variants", adversaries, "--only", "*/wrong_at_three/batch_size=3*")
    code, _, err = call(tmp_path / "tiny.yaml", *only, "--no-plots", "--out", folder, *flags)
    assert code == 1, err
    run = read_run(folder / "run.jsonl")
    return run.header.seed, ending(run.cells[0])


def test_one_seed_gives_the_same_inputs_and_another_one_others(misbehaving, config, tmp_path, adversaries):
    """The values in a mismatch are those of the inputs."""
    before = ending(cells_of(misbehaving, "wrong_at_three")[0])
    assert reason_of(tmp_path, adversaries, 7, "--set", "measure.seed=7") == (7, before)
    seed, reason = reason_of(tmp_path, adversaries, 8, "--seed", 8)
    assert seed == 8
    assert reason != before


needs_proc = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")


# --- interruption -----------------------------------------------------------------------------------------------------


def start(folder, *arguments, ignored=()):
    """bench.py in a process group of its own and listening to Ctrl-C, as a terminal would start it; a shell's
    background is deaf.
    """
    return subprocess.Popen(
        [sys.executable, str(ROOT / "bench.py"), *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: (
            signal.signal(signal.SIGINT, signal.default_int_handler),
            [signal.signal(number, signal.SIG_IGN) for number in ignored],
        ),
    )


def wait_for(condition, process, seconds=60):
    """Poll until a condition holds; it must do so before the process ends or the time is up."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode}: {process.communicate()}"
        assert time.monotonic() < end, "waited in vain"
        select.select([], [], [], 0.005)


def interrupt(process, number=signal.SIGINT):
    os.killpg(process.pid, number)
    return process.communicate(timeout=60)


def session_is_empty(process):
    """No process of the session is left: the worker, its children, Python's resource tracker."""
    return all(has_ended(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_of(pid, process.pid))


def is_of(pid, session):
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == session
    return False


def loading_worker(process):
    """/proc folder of a worker whose interpreter runs and imports modules; None while there is none."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = [Path(f"/proc/{child}") for child in children]
        return next(
            (
                w
                for w in workers
                if b"forkserver" in (w / "cmdline").read_bytes() and "numpy" in (w / "maps").read_text()
            ),
            None,
        )
    except OSError:
        return None


def is_deaf_to_sigint(worker):
    """Whether SIGINT is ignored or blocked. Only then does no traceback depend on who of the two is faster."""
    masks = re.findall(r"^Sig(?:Blk|Ign):\s*([0-9a-f]+)$", (worker / "status").read_text(), re.MULTILINE)
    return any(int(mask, 16) >> (signal.SIGINT - 1) & 1 for mask in masks)


@needs_proc
@pytest.mark.parametrize("number", few([signal.SIGINT, signal.SIGTERM], 1), ids=lambda number: number.name)
def test_an_interrupt_keeps_what_was_measured_and_leaves_no_process(number, tmp_path):
    (tmp_path / "many.yaml").write_text(TINY.replace("[3, 4]", str(list(range(3, 500)))))
    process = start(tmp_path, "many.yaml", "--no-plots", "--out", "out", "--seed", 1)
    record = tmp_path / "out" / "run.jsonl"
    wait_for(lambda: record.exists() and record.read_bytes().count(b"\n") >= 5, process)
    before = read_run(record).cells
    out, err = interrupt(process, number)
    assert process.returncode == 130, err
    run = read_run(record)
    assert not run.truncated
    assert run.cells[: len(before)] == before
    assert 4 <= len(run.cells) < 2 * 497
    assert f"interrupted: {len(run.cells)} of {2 * 497} cells are kept in out/run.jsonl" in " ".join(err.split())
    assert "Traceback" not in out + err
    assert "complete them with --resume out/run.jsonl" in " ".join(err.split())
    assert "batch" in out  # the table of what there is
    assert session_is_empty(process)


@needs_proc
def test_ctrl_c_while_the_worker_starts_is_quiet(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    process = start(tmp_path, "tiny.yaml", "--no-plots", "--out", "out")
    wait_for(lambda: loading_worker(process), process)
    deaf = is_deaf_to_sigint(loading_worker(process))
    _, err = interrupt(process)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.strip().startswith("interrupted")
    assert deaf
    assert not (tmp_path / "out" / "run.jsonl").exists()
    assert session_is_empty(process)


LEAVES_CHILDREN = """
import os, signal, subprocess, sys
from spec_decode_bench.harness.contract import variant

@variant("decode_native")
def leaves_children(point, x, out):
    child = subprocess.Popen(["sleep", "600"])
    with open("children", "a") as file:
        print(child.pid, file=file)
    if point.batch_size == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    return lambda: None
"""


@needs_proc
def test_children_that_a_variant_leaves_behind_end_with_the_worker(config, tmp_path):
    (tmp_path / "children.py").write_text(LEAVES_CHILDREN)
    only = ["--set", "variants=[leaves_children]", "--no-plots", "--out", "out"]
    assert call(config, "--variants", "children.py", *only)[0] == 1
    children = [int(line) for line in (tmp_path / "children").read_text().split()]
    assert children
    assert all(has_ended(child) for child in children)


@full
def test_a_reader_that_goes_away_changes_neither_the_exit_code_nor_the_files(adversaries, config, tmp_path):
    """`bench.py CONFIG | head -1` of a run with a mismatch must not be green."""
    names = ["--set", "variants=[flat_view, wrong_at_three]"]
    process = start(tmp_path, config, "--variants", adversaries, *names, "--no-plots", "--out", "out")
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=120) == 1
    told = [line.partition(":")[0] for line in errors(err).splitlines()]
    assert told == ["decode_native/wrong_at_three", "this one alone"]
    assert len(read_run(tmp_path / "out" / "run.jsonl").cells) == 4
    assert "flat_view" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "command",
    [["list"], pytest.param(["tiny.yaml", "--only", "*flat_view/batch_size=3*", "--no-plots"], marks=full)],
    ids=["list", "run"],
)
def test_a_full_disk_under_the_output_is_one_sentence_and_costs_no_record(command, config, tmp_path):
    with open("/dev/full", "w") as disk:
        ended = subprocess.run(
            [sys.executable, str(ROOT / "bench.py"), *command],
            cwd=tmp_path,
            stdout=disk,
            stderr=subprocess.PIPE,
            text=True,
        )
    said = " ".join(ended.stderr.split())
    assert ended.returncode == 2
    assert re.match(r"error: cannot write .*standard output: No space left on device", said)
    if "run.jsonl" in said:
        assert len(read_run(next(tmp_path.glob("results/*/run.jsonl"))).cells) == 1


# --- records are never lost or overwritten ----------------------------------------------------------------------------


@pytest.fixture
def no_worker(monkeypatch):
    """A tripwire: whatever is under test must be over before a process is started."""

    def trip(*_):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("spec_decode_bench.harness.session.worker.Worker.__init__", trip)


def test_an_existing_record_is_never_overwritten(config, tmp_path, no_worker):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.jsonl").write_text("precious\n")
    code, _, err = call(config, "--out", "out")
    assert code == 2
    assert "out/run.jsonl already exists" in " ".join(err.split())
    assert "--resume" in err
    assert (tmp_path / "out" / "run.jsonl").read_text() == "precious\n"


def test_a_folder_that_cannot_be_written_is_found_before_anything_is_measured(config, tmp_path, no_worker):
    (tmp_path / "file").write_text("")
    code, _, err = call(config, "--out", "file/out")
    assert code == 2
    assert "cannot write file/out/run.jsonl: Not a directory" in " ".join(err.split())


# --- usage ------------------------------------------------------------------------------------------------------------


def test_plan_lists_keys_and_touches_nothing(config, tmp_path, no_worker):
    code, out, err = call(config, "--plan")
    assert code == 0
    assert out.splitlines() == [
        f"decode_native/{variant}/batch_size={size},context_len=uniform(1000;100000)"
        for size in (3, 4)
        for variant in ("chain_clamp", "flat_view")
    ]
    assert err == "2 points, 4 cells\n"
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


def test_plan_follows_only_and_set(config, no_worker):
    settings = ("--set", "batch_size=[1, 9]", "--set", "context_len=100", "--seed", 3)
    code, out, _ = call("run", config, "--plan", "--only", "*flat*", *settings)
    assert code == 0
    assert out.splitlines() == [f"decode_native/flat_view/batch_size={size},context_len=100" for size in (1, 9)]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["tiny.yaml", "--pla"],
        ["tiny.yaml", "--device", "gpu"],
        ["tiny.yaml", "--seed", "x"],
        ["compare", "a"],
        ["plot"],
        ["run"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_2(arguments, config):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+; see python bench\.py( \w+)? --help\n", err)


def test_every_command_of_the_rooms_has_its_function_and_help():
    commands = bench.commands()
    assert tuple(commands) == bench.ORDER
    for name, command in commands.items():
        assert callable(command.run)
        code, out, _ = call(name, "--help")
        assert code == 0
        assert all(example in out for example in command.EXAMPLES)


def test_help_loads_nothing_that_is_slow():
    """Neither do the commands' own help."""
    arguments = [["--help"], *([name, "--help"] for name in bench.ORDER)]
    program = f"""
import contextlib, io, sys
from spec_decode_bench import bench
for arguments in {arguments}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        bench.main(arguments)
print(*{{"torch", "numpy", "rich", "msgspec", "yaml", "matplotlib"}} & set(sys.modules))
"""
    done = run_python(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_a_variant_of_a_file_cannot_change_the_suites_own(config, tmp_path):
    """It makes a method of torch wrong that a chain calls, and forks: that chain passes, each cell is there once."""
    (tmp_path / "mine.py").write_text(
        "import os, torch\nfrom spec_decode_bench.harness.contract import variant\n\n\n@variant('decode_native')\n"
        "def patches_torch(point, x, out):\n"
        "    torch.Tensor.clamp_ = lambda self, *args, **more: self.fill_(7)\n"
        "    os.fork()\n"
        "    return lambda: None\n"
    )
    text = Path(config).read_text().replace("[chain_clamp, flat_view]", "[chain_clamp, flat_view, patches_torch]")
    Path(config).write_text(text)
    code, _, _ = call(config, "--variants", "mine.py", "--device", "cpu", "--no-plots", "--out", "out")
    run = read_run("out/run.jsonl")
    assert code == 1
    statuses = [(cell.variant, cell.status) for cell in run.in_order]
    assert statuses == [("chain_clamp", "passed"), ("flat_view", "passed"), ("patches_torch", "mismatch")] * 2
    assert run.segments == []


def test_a_metric_that_nothing_is_compared_by_is_refused():
    record = ROOT / "results" / "reference" / "nvidia-h200" / "token_tables.jsonl"
    for more in ((), (record, "--point", "*")):
        code, out, err = call("report", record, *more, "--metric", "host_us")
        assert (code, out) == (2, "")
        assert "give two or more" in err
