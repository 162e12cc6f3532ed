"""tools.mutate: the table follows the code, mutants are rejected end to end, and what comes out otherwise is said."""

import json
from collections import Counter

import pytest

from tools import mutate
from tools.mutate import Case, Mutant, TableError, all_cases, chosen, copy_of_the_tree, main, mutated, run_case

CASES = all_cases()


@pytest.fixture(scope="module")
def tree():
    with copy_of_the_tree() as copy:
        yield copy


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


def test_text_that_is_gone_or_stands_twice_is_named():
    for old, count in (("no such text", 0), ("import", None)):
        case = Case("decode_native", "flat_view", "baselines/decode_native/chains.py", Mutant(old, "x", "it", "random"))
        with pytest.raises(TableError, match=rf"'it' wants to change '{old}', which occurs {count or '[0-9]+'} times"):
            mutated(case)


def test_operators_and_variants_are_chosen_by_globs():
    assert {case.operator for case in chosen(CASES, ["decode_*"])} == {"decode_flatten", "decode_native", "decode_step"}
    assert {case.variant for case in chosen(CASES, ["*/flat_view"])} == {"flat_view"}
    with pytest.raises(TableError, match="no mutant of decode_nativ; did you mean decode_native"):
        chosen(CASES, ["decode_nativ"])


HANDFUL = [
    ("decode_native/triton_fused", "an entry too many"),
    ("mamba_state_gather/triton_fused", "the last request"),
]


@pytest.mark.parametrize(("variant", "breaks"), HANDFUL)
def test_a_mutant_is_rejected_by_a_hard_point(variant, breaks, tree, device):
    case = next(case for case in CASES if (case.id, case.mutant.breaks) == (variant, breaks))
    result = run_case(case, tree, device)
    assert result.killer == case.mutant.killer == "hard point"
    assert (tree / case.path).read_bytes() == (mutate.ROOT / case.path).read_bytes()


TABLE = """
[[file]]
path = "baselines/decode_native/chains.py"
variant = "flat_view"
mutants = [
  { old = "view.clamp_(min=0)", new = "view.clamp_(min=1)", breaks = "padding rows", killer = "hard point" },
  { old = "view.clamp_(min=0)", new = "view.clamp_(min=0 * 1)", breaks = "nothing", killer = "equivalent" },
  { old = "view.clamp_(min=0)", new = "view.clamp_(min=0 * 2)", breaks = "a survivor", killer = "capacity" },
  { old = "view.clamp_(min=0)", new = "exit(0)", breaks = "the process", killer = "hard point" },
  { old = "view.clamp_(min=0)", new = "view.clamp_(", breaks = "the file", killer = "hard point" },
]
[[file]]
path = "kernels/decode_native/decode_native.cu"
variant = "cuda_fused"
mutants = [{ old = "if (i >= batch_size", new = "if (i > batch_size", breaks = "the end", killer = "hard point" }]
"""


def test_what_survives_is_printed_and_ends_in_one(tmp_path, monkeypatch, capsys):
    (tmp_path / "decode_native.toml").write_text(TABLE)
    monkeypatch.setattr(all_cases, "__defaults__", (tmp_path,))
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["--device", "cpu", "--jobs", "2", "--out", str(tmp_path / "results.json")]) == 1
    out = capsys.readouterr().out
    assert "decode_native/flat_view: the file: cannot be run: SyntaxError: '(' was never closed" in out
    assert out[: out.index("flat_view: the file")].splitlines()[-6:-2] == [
        "decode_native/flat_view: a survivor: survived",
        "  baselines/decode_native/chains.py",
        "  - view.clamp_(min=0)",
        "  + view.clamp_(min=0 * 2)",
    ]
    row = next(line.split() for line in out.splitlines() if line.startswith("decode_native "))
    assert row == ["decode_native", "5", "2", "1", "0", "0", "0", "1", "2", "1", "1"]
    results = {
        one["breaks"]: (one["outcome"], one.get("killer"))
        for one in json.loads((tmp_path / "results.json").read_text())
    }
    assert results == {
        "padding rows": ("killed", "hard point"),
        "nothing": ("survived", None),
        "a survivor": ("survived", None),
        "the process": ("killed", "no_crash"),
        "the file": ("survived", None),
        "the end": ("needs a GPU", None),
    }


def test_a_mutant_that_hangs_is_rejected(tree):
    """As does anything within half a second, in which no process has imported torch."""
    case = Case("decode_native", "flat_view", "baselines/decode_native/chains.py", None)
    result = run_case(case, tree, "cpu", timeout_s=0.5)
    assert (result.killer, result.message) == ("no_crash", "no end within 0.5 s")


def test_the_list_runs_nothing(capsys):
    assert main(["decode_native/flat_view", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 2 + len(chosen(CASES, ["decode_native/flat_view"]))
    assert "lengths are one short" in " ".join(lines)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (TABLE.replace('killer = "capacity"', 'killer = "luck"'), "Invalid enum value 'luck'"),
        (TABLE.replace("i >= batch_size", "i == batch_size"), "which occurs 0 times in kernels/decode_native"),
    ],
)
def test_a_bad_table_is_one_sentence(content, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "decode_native.toml").write_text(content)
    monkeypatch.setattr(all_cases, "__defaults__", (tmp_path,))
    assert main([]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1
