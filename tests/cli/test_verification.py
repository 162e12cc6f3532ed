"""`bench.py verify`: a column for every check, a line for every historic defect, and its exit codes."""

import itertools
import os
import re
import shlex
from collections import Counter

import pytest

from spec_decode_bench.baselines.decode_native.operator import operator as native
from spec_decode_bench.cli import verification
from spec_decode_bench.harness.records.file import read_record
from spec_decode_bench.harness.records.schema import SCHEMA_VERSION
from spec_decode_bench.harness.session import side_by_side
from spec_decode_bench.harness.session.several_gpus import LocalGpu
from tests.cli.test_cli import call
from tests.runnable import defective


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "one.yaml"
    path.write_text(
        "name: one\noperators: [decode_native]\nvariants: [chain_clamp, flat_view]\nsweep: [{batch_size: 3}]\n"
    )
    return path


def test_a_record_has_a_line_for_every_variant_and_place(config, tmp_path):
    arguments = ("verify", config, "--device", "cpu", "--seed", 1, "--no-array")
    code, out, err = call(*arguments, "--out", tmp_path / "record")
    assert code == 0, err
    run = read_record(tmp_path / "record" / "run.jsonl")
    assert (run.header.schema, run.header.seed) == (SCHEMA_VERSION, 1)
    of = [line for line in run.others if line.variant_id == "decode_native/flat_view"]
    assert len({(line.key, line.place) for line in of}) == len(of)
    assert {line.place for line in of} >= {"edge_case", "sequence", "point"}
    assert all(
        line.finding is None and line.passed_checks for line in of if line.place == "edge_case" and not line.reason
    )
    passed = Counter(line.place for line in of if line.status == "passed")
    row = next(line for line in out.splitlines() if line.startswith("decode_native/flat_view  "))
    assert [int(n) for n in re.findall(r"(\d+) passed", row)] == [
        passed["edge_case"] + passed["sequence"],
        passed["point"],
    ]
    defects = [line for line in run.others if line.variant == "strided_slice" and line.status == "mismatch"]
    assert defects[0].finding.check == "contiguous"
    for command in ("plot", "report", "check-record"):
        code, _, err = call(command, tmp_path / "record")
        assert (code, err) == (2, f"error: {run.path} is a record of verify, which has no times\n")
    code, _, err = call(*arguments, "--out", tmp_path / "record")
    assert code == 2
    assert err.endswith("never overwritten; choose another folder with --out\n")


#: Historic defects of the operator of this configuration.
KNOWN = len(defective(native.name))


def test_the_mutation_table_names_the_check_that_rejected_each_defect(config):
    code, out, err = call("verify", "--defects", config, "--device", "cpu", "--seed", 1)
    assert code == 0, err
    text = " ".join(out.split())
    assert "strided_slice contiguous L = 1" in text
    assert "contiguous_per_step stable_address L = 1" in text
    assert "points of the sweep" not in out
    assert out.splitlines()[-1] == f"{KNOWN} of {KNOWN} rejected"


SLIPS = """
from spec_decode_bench.harness.contract import GPU, variant
from spec_decode_bench.baselines.decode_native.chains import chain_clamp

skip = lambda p: "plain rows only" if p.row_alignment == "front" or p.cp_size > 1 else None

@variant("decode_native", defect="none at all", waives="no_alloc", skip=skip)
def no_defect(point, x, out):
    return chain_clamp(point, x, out)

@variant("decode_native", defect="never gets as far as a check")
def raises(point, x, out):
    raise ValueError("it failed")

@variant("decode_native", defect="seen on a GPU alone", requires=GPU)
def elsewhere(point, x, out):
    return None
"""


def test_a_defect_that_slips_fails_the_command_and_one_that_cannot_run_is_not_counted(config, tmp_path):
    (tmp_path / "slips.py").write_text(SLIPS)
    code, out, _ = call("verify", config, "--defects", "--variants", "slips.py", "--device", "cpu", "--seed", 1)
    assert code == 1
    text = " ".join(out.split())
    assert "decode_native/no_defect: a known defect passed every check" in text
    assert (
        "decode_native/raises: a known defect raised at 'B=1' instead of being rejected: ValueError: it failed" in text
    )
    assert "elsewhere unavailable needs a GPU" in text
    assert f"{KNOWN} of {KNOWN + 2} rejected, 1 unavailable" in out.splitlines()[-1]


NOWHERE = """
from spec_decode_bench.harness.contract import consumer, variant

@variant("decode_native", requires="nowhere_to_be_found")
def elsewhere(point, x, out):
    raise AssertionError("must not be called")

@consumer("decode_native", planner="elsewhere")
def reader(point, x, out):
    raise AssertionError("must not be called")
"""
MISSING = (
    "error: nothing could be verified here: needs {} ({}); install what is missing, or use a machine that has it\n"
)


@pytest.mark.parametrize(
    ("arguments", "counted"),
    [
        (["--set", "variants=[elsewhere]", "--set", "batch_size=[3,4]"], "2 cells"),
        (["--consumers"], "3 comparisons"),
        (["--consumers", "--set", "variants=[elsewhere]"], "1 comparison"),
    ],
    ids=["variants", "consumers", "planner"],
)
def test_a_verification_of_nothing_is_not_green(arguments, counted, config, tmp_path):
    (tmp_path / "nowhere.py").write_text(NOWHERE)
    code, _, err = call("verify", config, "--variants", "nowhere.py", "--device", "cpu", *arguments)
    assert (code, err) == (2, MISSING.format("the Python module nowhere_to_be_found", counted))


def test_defects_of_which_none_can_run_are_not_green(config, tmp_path, monkeypatch):
    (tmp_path / "slips.py").write_text(SLIPS)
    monkeypatch.setattr(verification, "defects_of", lambda catalog, _: [catalog.find("decode_native", "elsewhere")])
    code, out, err = call("verify", config, "--defects", "--variants", "slips.py", "--device", "cpu")
    assert (code, err) == (2, MISSING.format("a GPU", "1 defect"))
    assert "0 of 0 rejected, 1 unavailable on this machine" in out


def test_a_point_that_is_skipped_is_not_green(config):
    key = "decode_native/chain_clamp/row_alignment=front"
    code, out, err = call("verify", config, "--point", key, "--device", "cpu")
    assert code == 2
    assert "skipped: end-aligned rows only" in " ".join(out.split())
    assert re.fullmatch(r"error: nothing could be verified here: [^\n;]*; choose other points or variants\n", err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verify"], "verify needs a configuration"),
        (["verify", "--defects", "--only", "x"], "give its configuration"),
        (["verify", "--defects", "--set", "batch_size=1"], "give its configuration"),
    ],
)
def test_verify_without_a_configuration(arguments, words, config):
    code, _, err = call(*arguments)
    assert code == 2
    assert words in " ".join(err.split())


@pytest.fixture
def two_operators(config, monkeypatch):
    """The arguments of a verification with a process for each of them."""
    text = config.read_text().replace("[decode_native]", "[decode_native, dcp_lengths]")
    config.write_text(text.replace("[chain_clamp, flat_view]", "[chain_clamp, op_chain]"))
    monkeypatch.setattr(side_by_side, "CORES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    return "verify", config, "--device", "cpu", "--seed", 1, "--no-array"


def test_operators_are_verified_beside_each_other(two_operators, monkeypatch):
    def outcome():
        code, out, err = call(*two_operators)
        assert (code, err) == (0, "")
        return re.sub(r"\d+ s: .*", "", out, flags=re.DOTALL)

    started = []
    start = LocalGpu.start
    monkeypatch.setattr(LocalGpu, "start", lambda self: started.append(self) or start(self))
    together, beside = outcome(), len(started)
    monkeypatch.setattr(side_by_side, "PROCESSES", 1)
    assert outcome() == together
    assert 1 == len(started) - beside < beside


def test_an_interrupt_ends_all_processes_and_blames_no_variant(two_operators, monkeypatch):
    waits = itertools.count()

    def interrupted(*arguments):
        if next(waits):
            raise KeyboardInterrupt
        return set(), arguments[0]

    monkeypatch.setattr(side_by_side, "wait", interrupted)
    code, out, err = call(*two_operators)
    assert code == 130
    assert "interrupted" in err
    assert "no_crash" not in out


CRASHES = """\
import os, signal
from spec_decode_bench.harness.contract import variant
from spec_decode_bench.baselines.decode_native.chains import chain_clamp

@variant("decode_native", skip=chain_clamp.__variant__.skip)
def crashes(point, x, out):
    work = chain_clamp(point, x, out)

    def launch():
        if {where}:
            os.kill(os.getpid(), signal.SIGSEGV)
        work()

    return launch
"""


@pytest.mark.parametrize(
    ("where", "parts", "not_run", "passed", "told"),
    [
        ("point.batch_size > 400", (), 100, 2, "batch_size="),
        ("x.seq_lens.data_ptr() % 16 == 4", ("--no-array",), 0, 1, "unaligned buffers"),
    ],
    ids=["array", "unaligned buffers"],
)
def test_a_crash_names_where_and_what_was_not_run(where, parts, not_run, passed, told, config, tmp_path, monkeypatch):
    """passed: parts of which the summary counts what passed before the crash."""
    monkeypatch.setenv("COLUMNS", "200")  # no count in two lines
    mine = tmp_path / "mine.py"
    mine.write_text(CRASHES.format(where=where))
    config.write_text(config.read_text().replace("[chain_clamp, flat_view]", "[crashes]"))
    common = ("verify", config, "--variants", mine, "--device", "cpu", "--seed", 1)
    code, out, err = call(*common, *parts)
    assert (code, err) == (1, "")
    assert "no_crash: the worker process was killed by SIGSEGV" in " ".join(out.split())
    assert len(re.findall(r"\d+ passed\b", out)) == passed
    repeat = next(line for line in out.splitlines() if line.startswith("this one alone: "))
    assert told in " ".join(out.split())
    flags = shlex.split(repeat)[shlex.split(repeat).index("verify") :]
    code, out_alone, _ = call(*flags)
    assert code == 1
    assert "no_crash" in out_alone
    times = re.search(r"not run (\d+) times, as it had ended its process", out)
    assert (int(times[1]) if times else 0) >= not_run


WRONG_UNALIGNED = CRASHES.replace("os.kill(os.getpid(), signal.SIGSEGV)", "return")


def test_a_line_of_a_point_says_why_the_variant_was_not_run_there(config, tmp_path):
    (tmp_path / "mine.py").write_text(WRONG_UNALIGNED.format(where="x.seq_lens.data_ptr() % 16 == 4"))
    config.write_text(config.read_text().replace("[chain_clamp, flat_view]", "[crashes]"))
    arguments = ("verify", config, "--variants", "mine.py", "--device", "cpu", "--only", "*/crashes", "--no-array")
    code, _, _ = call(*arguments, "--out", tmp_path / "record")
    assert code == 1
    line = next(line for line in read_record(tmp_path / "record" / "run.jsonl").others if line.place == "point")
    assert (line.name, line.buffers, line.status) == ("batch_size=3", None, "mismatch")
    assert (line.finding.place, line.finding.buffers) == ("edge_case", "unaligned")
