"""tools.mutate: the table follows the code, mutants are rejected end to end, and what comes out otherwise is said."""

import json
from collections import Counter

import pytest

from spec_decode_bench.harness.records.schema import CheckLine, Code, Finding, Place, Reason, Status
from tests.tier import full
from tools import mutate
from tools.mutate import Case, Mutant, Result, Settings, TableError, all_cases, chosen, main, mutated, run_all

CASES = all_cases()


@pytest.mark.parametrize("operator", sorted({case.operator for case in CASES}))
def test_every_mutant_changes_one_place(operator):
    for case in CASES:
        if case.operator == operator:
            assert mutated(case) != (mutate.ROOT / case.path).read_text(encoding="utf-8")


def test_the_table_names_variants_and_no_mutant_twice(catalog):
    assert {case.id for case in CASES} <= {variant.id for variant in catalog.variants if variant.defect is None}
    assert {case.operator for case in CASES} == set(catalog.operators)
    assert all(case.needs_gpu == ("cuda" in catalog.find(case.operator, case.variant).requires) for case in CASES)
    names = Counter((case.id, case.path, case.mutant.breaks) for case in CASES)
    assert [name for name, count in names.items() if count > 1] == []


def test_kinds_choose_mutants_and_have_a_table(tmp_path, monkeypatch):
    some = chosen(CASES, ["mamba_align_step/op_chain", "mamba_state_gather/hoisted_chain"], ["effect", "large"])
    assert [(case.operator, case.mutant.kind) for case in some] == [
        ("mamba_align_step", "effect"),
        ("mamba_align_step", "effect"),
        ("mamba_align_step", "large"),
        ("mamba_state_gather", "large"),
    ]
    plain = next(case for case in CASES if case.operator == "mamba_align_step" and case.mutant.kind == mutate.PLAIN)
    killed, passed = Result("array", "B=3", "exact", "differs"), Result(None)
    results = zip([*some, plain], [killed, passed, killed, killed, killed], strict=True)
    lines = [mutate.as_json(case, result) for case, result in results]
    assert mutate.documented({"machine": "M", "seed": 0, "mutants": lines})[:5] == [
        "| operator | plain | large | effect | all |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| `mamba_align_step` | 1/1 | 1/1 | 1/2 | 3/4 |",
        "| `mamba_state_gather` |  | 1/1 |  | 1/1 |",
        "| all | 1/1 | 2/2 | 1/2 | 4/5 |",
    ]
    (tmp_path / "decode_native.toml").write_text(TABLE.replace('killer = "array"', 'killer = "array", kind = "efect"'))
    monkeypatch.setattr(mutate, "TABLES", tmp_path)
    with pytest.raises(TableError, match="'a survivor' has kind 'efect'"):
        all_cases()


def test_text_that_is_gone_or_stands_twice_is_named():
    for old, count in (("no such text", 0), ("import", None)):
        case = Case("decode_native", "flat_view", "baselines/decode_native/chains.py", Mutant(old, "x", "it", "random"))
        with pytest.raises(TableError, match=rf"'it' wants to change '{old}', which occurs {count or '[0-9]+'} times"):
            mutated(case)


HANDFUL = [
    ("decode_native/triton_fused", "an entry too many", "edge case"),
    ("decode_native/flat_view", "ratios that are no power of two", "array"),
]


@full
def test_mutants_are_rejected_by_the_part_that_the_table_expects(device):
    cases = [next(c for c in CASES if (c.id, c.mutant.breaks) == (variant, breaks)) for variant, breaks, _ in HANDFUL]
    path, old = "baselines/decode_native/operator.py", 'baseline="chain_clamp",'
    as_is = Case("decode_native", "flat_view", path, Mutant(old, f"{old} ", "nothing", "equivalent"))
    files = {case.path: (mutate.ROOT / case.path).read_bytes() for case in (*cases, as_is)}
    results = dict(run_all([*cases, as_is], 2, Settings(device, sweep=False)))
    assert results[len(cases)].passed
    assert [results[i].killer for i in range(len(cases))] == [killer for _, _, killer in HANDFUL]
    assert [case.mutant.killer for case in cases] == [killer for _, _, killer in HANDFUL]
    assert all((mutate.ROOT / path).read_bytes() == content for path, content in files.items())


TABLE = """
[[file]]
path = "baselines/decode_native/chains.py"
variant = "flat_view"
mutants = [
  { old = "view.clamp_(min=0)", new = "view.clamp_(min=1)", breaks = "padding rows", killer = "edge case" },
  { old = "view.clamp_(min=0)", new = "view.clamp_(min=0 * 1)", breaks = "nothing", killer = "equivalent" },
  { old = "view.clamp_(min=0)", new = "view.clamp_(min=0 * 2)", breaks = "a survivor", killer = "array" },
  { old = "view.clamp_(min=0)", new = "exit(0)", breaks = "the process", killer = "edge case" },
  { old = "view.clamp_(min=0)", new = "view.clamp_(", breaks = "the file", killer = "edge case" },
]
[[file]]
path = "kernels/decode_native/decode_native.cu"
variant = "cuda_fused"
mutants = [{ old = "if (i >= n.batch_size", new = "if (i > n.batch_size", breaks = "the end", killer = "edge case" }]
"""


@full
def test_what_survives_is_printed_and_ends_in_one(tmp_path, monkeypatch, capsys):
    (tmp_path / "decode_native.toml").write_text(TABLE)
    monkeypatch.setattr(mutate, "TABLES", tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["--device", "cpu", "--jobs", "2", "--no-sweep", "--out", str(tmp_path / "results.json")]) == 1
    out = capsys.readouterr().out
    assert "decode_native/flat_view: the file: cannot be run: exit code 2: error: " in out
    assert "SyntaxError: '(' was never closed" in " ".join(out.split())
    assert out[: out.index("flat_view: the file")].splitlines()[-6:-2] == [
        "decode_native/flat_view: a survivor: survived",
        "  baselines/decode_native/chains.py",
        "  - view.clamp_(min=0)",
        "  + view.clamp_(min=0 * 2)",
    ]
    row = next(line.split() for line in out.splitlines() if line.startswith("decode_native "))
    assert row == ["decode_native", "6", "1", "1", "2", "1", "1"]  # edge cases, crash, survived, equivalent, on a GPU
    written = json.loads((tmp_path / "results.json").read_text())
    assert (written["machine"], written["seed"]) == ("CPU", 0)
    results = {one["breaks"]: (one["outcome"], one.get("killer")) for one in written["mutants"]}
    assert results == {
        "padding rows": ("killed", "edge case"),
        "nothing": ("survived", None),
        "a survivor": ("survived", None),
        "the process": ("killed", "no_crash"),
        "the file": ("survived", None),
        "the end": ("needs a GPU", None),
    }


@full
def test_a_mutant_that_hangs_is_rejected():
    endless = Mutant("view.clamp_(min=0)", "[None for _ in iter(int, 1)]", "the end", "edge case")
    case = Case("decode_native", "flat_view", "baselines/decode_native/chains.py", endless)
    ((_, result),) = run_all([case], 1, Settings("cpu", sweep=False, timeout_s=5))
    assert (result.killer, result.where, result.check) == ("no_crash", "B=1", "no_crash")
    assert "5 s" in result.message


def test_lines_of_verify_are_judged_up_to_the_first_rejection():
    def line(place, status, reason=None, **of_finding):
        finding = Finding(status=status, place=place, name="B=3", reason=reason, **of_finding)
        return CheckLine.of("decode_native", "flat_view", finding, 1.0)

    passed = line(Place.EDGE_CASE, Status.PASSED)
    slow = line(Place.ARRAY_POINT, Status.SKIPPED, Reason(code=Code.INTERPRETER_BUDGET, seconds=8.0))
    rejected = line(Place.ARRAY_POINT, Status.MISMATCH, check="exact", message="differs")
    no_room = line(Place.POINT, Status.FAILED, error="OutOfMemoryError", message="no room")
    assert mutate.judged([passed, slow], sweep=True) is None
    assert mutate.judged([passed, slow, rejected], sweep=True) == Result("array", "B=3", "exact", "differs")
    assert mutate.judged([passed, slow, no_room], sweep=False) == Result(None, left_out=1)
    assert mutate.judged([passed, slow, no_room], sweep=True) is None
    assert mutate._ended(1, [passed, slow, no_room], "") == Result(None, left_out=2)
    assert mutate._ended(1, [], "Error: it\n").killer == "no_crash"


def test_a_variant_that_fails_as_it_is_costs_its_own_mutants_only(tmp_path, monkeypatch, capsys):
    def run(cases, *more):
        for number, case in enumerate(cases):
            passed = case.mutant is None and case.variant == "flat_view"
            yield number, Result(None) if passed else Result("edge case", "B=1", "exact", "differs")

    monkeypatch.setattr(mutate, "run_all", run)
    out = tmp_path / "results.json"
    assert main(["decode_native/flat_view", "decode_native/chain_clamp", "--device", "cpu", "--out", str(out)]) == 2
    written = json.loads(out.read_text())["mutants"]
    assert {(one["variant"], one["outcome"]) for one in written} == {("flat_view", "killed")}
    assert "decode_native/chain_clamp does not pass as it is: 'B=1'" in capsys.readouterr().err


def test_only_what_results_lack_or_have_otherwise_is_run_again(tmp_path, monkeypatch, capsys):
    ran, file = [], tmp_path / "results.json"

    def run(cases, *more):
        ran.append([case.mutant.breaks for case in cases if case.mutant is not None])
        yield from ((i, Result("array", "B=3", "exact", "differs")) for i in range(len(ran[-1])))

    killed, survived, lacking = (case.mutant.breaks for case in CASES_OF_FLAT_VIEW[:3])
    of = {"operator": "decode_native", "variant": "flat_view"}
    lines = [of | {"breaks": killed, "outcome": "killed"}, of | {"breaks": survived, "outcome": "survived"}]
    file.write_text(json.dumps({"machine": "CPU", "seed": 0, "mutants": lines}))
    monkeypatch.setattr(mutate, "run_all", run)
    again = ["decode_native/flat_view", "--device", "cpu", "--again", str(file)]
    main(again)
    written = {one["breaks"]: one["outcome"] for one in json.loads(file.read_text())["mutants"]}
    assert list(written)[:3] == [killed, survived, lacking]
    assert ran[0][:2] == [survived, lacking]
    assert set(written.values()) == {"killed"}
    main(again)
    equivalent = [case.mutant.breaks for case in CASES_OF_FLAT_VIEW if case.mutant.killer == "equivalent"]
    assert ran[1] == equivalent
    assert main([*again, "--seed", "1"]) == 2
    assert "was made on CPU with seed 0; this is CPU with seed 1" in capsys.readouterr().err


CASES_OF_FLAT_VIEW = chosen(CASES, ["decode_native/flat_view"])


def test_a_mutant_whose_points_were_left_out_is_not_tried():
    case = next(case for case in CASES if case.mutant.killer == "array")
    equivalent = next(case for case in CASES if case.mutant.killer == "equivalent")
    assert mutate.outcome_of(case, Result(None, left_out=3)) == "not tried"
    assert not mutate.unexpected(case, Result(None, left_out=3))
    assert mutate.unexpected(case, Result(None))
    assert mutate.outcome_of(equivalent, Result(None, left_out=3)) == "survived"
    assert not mutate.unexpected(equivalent, Result(None, left_out=3))
