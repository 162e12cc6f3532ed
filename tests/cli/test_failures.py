"""What `verify` says of a variant that fails: the first failure once, and the command that repeats it alone."""

import re
import shlex
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from spec_decode_bench.baselines.decode_native.operator import operator as native
from spec_decode_bench.cli.one_point import parse_key
from spec_decode_bench.harness.config.load import load
from spec_decode_bench.harness.config.sweep import plan
from spec_decode_bench.harness.contract import Point
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.verify import covering_array
from tests.baselines.random_batches import small_points
from tests.cli.test_cli import call

CONFIG = """\
name: two
operators: [decode_native]
variants: [wrong_after_two, frozen]
sweep: [{batch_size: [3, 5], context_len: {uniform: [100, 900]}}]
"""
#: One is wrong from the third column on, the other answers from what set-up saw.
VARIANTS = """\
import torch
from spec_decode_bench.harness.contract import variant

def lengths(point, x):
    steps = torch.arange(1 - point.max_decode_len, 1, dtype=torch.int32, device=x.seq_lens.device)
    return ((x.seq_lens[:, None] + steps).clamp_(min=0) // point.compress_ratio)

def skip(point):
    return "plain rows only" if point.row_alignment == "front" or point.cp_size > 1 else None

@variant("decode_native", skip=skip, waives="no_alloc")
def wrong_after_two(point, x, out):
    fill = out.buffer[: point.batch_size * point.max_decode_len].view(point.batch_size, point.max_decode_len)
    def launch():
        fill.copy_(lengths(point, x))
        fill[1:, 2:] = 7
    return launch

@variant("decode_native", skip=skip, waives="no_alloc")
def frozen(point, x, out):
    answer = lengths(point, x).flatten()
    def launch():
        out.buffer[: len(answer)] = answer
    return launch
"""


#: The first edge case with a second request and a third column.
FIRST_WRONG = next(
    case
    for case in native.edge_cases
    if (point := native.complete(case.point)).batch_size > 1 and point.max_decode_len > 2
)


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    folder = tmp_path_factory.mktemp("failures")
    (folder / "two.yaml").write_text(CONFIG)
    (folder / "mine.py").write_text(VARIANTS)
    arguments = [folder / "two.yaml", "--variants", folder / "mine.py", "--device", "cpu"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", "4000")
        code, out, err = call("verify", *arguments, "--seed", 5, "--no-array")
    return SimpleNamespace(code=code, out=out, err=err, folder=folder)


def told(verified, name):
    """The lines of one variant's failure: what, how many more, how to repeat it."""
    lines = verified.out.splitlines()
    begins = [i for i, line in enumerate(lines) if line.startswith(f"decode_native/{name} at ")]
    assert len(begins) == 1
    return lines[begins[0] : begins[0] + 3]


def test_the_first_failure_is_told_once_as_the_consumer_sees_it(verified):
    assert verified.code == 1, verified.err
    first, more, _ = told(verified, "wrong_after_two")
    axes = native.label(native.complete(FIRST_WRONG.point))
    where = f"edge case {FIRST_WRONG.name!r} ({axes})"
    assert first.startswith(f"decode_native/wrong_after_two at {where}: exact: context_lens (")
    assert "first at [b=1, j=2] expected " in first
    assert re.fullmatch(r"and \d+ further failures", more)


def test_answers_to_earlier_inputs_are_called_so(verified):
    frozen, *_ = told(verified, "frozen")
    assert frozen.endswith("; the output matches earlier inputs, which were replaced after set-up")
    assert "earlier inputs" not in told(verified, "wrong_after_two")[0]


@pytest.mark.parametrize("name", ["wrong_after_two", "frozen"])
def test_the_command_repeats_the_failure_alone(name, verified):
    failure, _, repeat = told(verified, name)
    words = shlex.split(repeat.removeprefix("this one alone: "))
    assert words[:3] == ["python", "bench.py", "verify"]
    code, out, err = call(*words[2:])
    assert code == 1, err
    said = " ".join(out.split())
    assert " ".join(failure.partition("exact: ")[2].split()) in said
    assert re.search(r"its inputs: seq_lens = \[\d+", said)
    assert re.findall(r"decode_native/(\w+) at ", said) == [name, name]  # in aligned and in unaligned buffers


def test_a_run_tells_the_command_too(verified):
    arguments = [verified.folder / "two.yaml", "--variants", verified.folder / "mine.py", "--device", "cpu"]
    code, _, err = call(*arguments, "--only", "*/frozen/*", "--no-plots", "--out", verified.folder / "out")
    failure, repeat = err.splitlines()[:2]
    assert code == 1
    assert failure.startswith("decode_native/frozen: edge case ")
    assert "--point decode_native/frozen/B=1" in repeat
    again, out, _ = call(*shlex.split(repeat.removeprefix("this one alone: "))[2:])
    assert again == 1
    assert "decode_native/frozen at " in out


def test_a_point_of_the_sweep_is_verified_alone_and_a_right_variant_passes(verified):
    key = "decode_native/chain_clamp/batch_size=5,context_len=uniform(100;900)"
    code, out, err = call("verify", verified.folder / "two.yaml", "--set", "variants=all", "--point", key)
    assert (code, err) == (0, "")
    assert out.count("passed") == 2


@pytest.fixture
def parse(verified, catalog):
    source = load(verified.folder / "two.yaml", {"variants": "all"})
    groups = plan(source, catalog.operators, catalog.variants)
    return lambda key: parse_key(key, catalog, groups)


def test_every_key_of_a_plan_is_taken(parse, verified, catalog):
    for item in plan(load(verified.folder / "two.yaml", {"variants": "all"}), catalog.operators, catalog.variants):
        for name in item.variants:
            assert parse(item.key(name)).where.axes == item.axes
        spelt_out = catalog.operators[item.operator].spelt_out(Point(item.axes))
        assert parse(f"decode_native/chain/{spelt_out}").where.axes == item.axes


def test_every_edge_case_and_sequence_is_taken_by_its_name(parse, catalog):
    for operator in catalog.operators.values():
        variant = catalog.of(operator.name)[0].name
        for name in (*(case.name for case in operator.edge_cases), *operator.sequences):
            assert parse(f"{operator.name}/{variant}/{name}").where.name == name


MISALIGNED = """\
from spec_decode_bench.harness.contract import variant
from spec_decode_bench.baselines.decode_native.chains import chain_clamp

@variant("decode_native", skip=chain_clamp.__variant__.skip)
def misaligned(point, x, out):
    work = chain_clamp(point, x, out)
    def launch():
        work()
        if x.seq_lens.data_ptr() % 16 == 8:
            out.buffer[:1] += 1
    return launch
"""


CHANGES_TORCH = """\
import torch
from spec_decode_bench.harness.contract import variant

torch.set_default_dtype(torch.float64)

@variant("decode_native")
def imported(point, x, out):
    return lambda: None
"""


@pytest.mark.parametrize("text", [MISALIGNED, CHANGES_TORCH], ids=["point of the array", "import"])
def test_other_failures_are_repeated_alone_too(text, tmp_path, request, monkeypatch):
    monkeypatch.setattr(covering_array, "MOST_BYTES", 1 << 16)  # whose reference is computed in a moment
    request.addfinalizer(partial(torch.set_default_dtype, torch.get_default_dtype()))
    name = re.search(r"def (\w+)\(point", text)[1]
    (tmp_path / "one.yaml").write_text(
        f"name: one\noperators: [decode_native]\nvariants: [{name}]\nsweep: [{{batch_size: 3}}]\n"
    )
    (tmp_path / "mine.py").write_text(text)
    arguments = ["verify", tmp_path / "one.yaml", "--variants", tmp_path / "mine.py", "--device", "cpu", "--seed", 3]
    code, out, _ = call(*arguments)
    assert code == 1
    repeat = next(line for line in out.splitlines() if line.startswith("this one alone: "))
    again, out, _ = call(*shlex.split(repeat.removeprefix("this one alone: "))[2:])
    assert again == 1
    assert f"decode_native/{name} at " in out


def test_a_file_of_variants_is_verified_without_a_configuration(verified):
    """At edge cases, in sequences and at the array; the command that repeats a failure needs none either."""
    file = verified.folder / "mine.py"
    code, out, _ = call("verify", "--variants", file, "--device", "cpu", "--seed", 5)
    assert code == 1
    summary = out[out.rindex("pairs of") :]
    assert re.search(r"decode_native/frozen .*\d+ mismatch", summary)
    assert "chain" not in summary
    assert "sweep" not in summary
    repeat = next(line for line in out.splitlines() if line.startswith("this one alone: "))
    again, out, _ = call(*shlex.split(repeat.removeprefix("this one alone: "))[2:])
    assert again == 1
    assert "expected" in out


def test_every_point_is_taken_by_its_label(parse, catalog):
    """As a point of an array is printed."""
    for operator in catalog.operators.values():
        for point in small_points(operator, 8):
            key = f"{catalog.of(operator.name)[0].id}/{operator.label(point)}"
            assert parse(key).where.axes == dict(point)


def test_until_wrong_records_the_wrong_variants_alone(verified, tmp_path):
    """Nothing is timed, and the record is complete."""
    (tmp_path / "two.yaml").write_text(CONFIG.replace("[wrong_after_two, frozen]", "[chain_clamp, frozen]"))
    arguments = [tmp_path / "two.yaml", "--variants", verified.folder / "mine.py", "--device", "cpu", "--no-plots"]
    assert call("run", *arguments, "--until-wrong", "--out", tmp_path / "out")[0] == 1
    run = read_run(tmp_path / "out" / "run.jsonl")
    assert [(cell.variant, cell.status) for cell in run.cells] == [("frozen", "mismatch")] * 2
    assert not run.missing
