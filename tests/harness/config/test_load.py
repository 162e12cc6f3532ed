"""The YAML of a run: every fault is one sentence with file, line, key path and the nearest valid name, and exit code
2.
"""

import re

import pytest

import bench
import harness.config.load
from harness.config.load import ConfigError, Measure, load, parse_overrides

GOOD = (
    "name: tiny\noperators: [decode_native]\nsweep:\n  - batch_size: [1, 2]\n"  # four lines: additions start in line 5
)
GRID = GOOD + "    "


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    """Short relative paths, and a width at which no message is wrapped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "2000")


def refused(capsys, text, *flags):
    """What the command line says of a configuration that it must not accept."""
    if text is not None:
        with open("c.yaml", "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
    code = bench.main(["c.yaml", "--plan", *flags])
    out, err = capsys.readouterr()
    assert code == 2, f"exit code {code}, stdout: {out}"
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("error: ")
    assert "Traceback" not in err
    return err.removeprefix("error: ").rstrip("\n")


def test_the_good_one_is_accepted(capsys, tmp_path):
    """Without this, every test below could pass for the wrong reason."""
    (tmp_path / "c.yaml").write_text(GOOD)
    assert bench.main(["c.yaml", "--plan"]) == 0
    assert "decode_native/flat_view/batch_size=2\n" in capsys.readouterr().out


@pytest.mark.parametrize("number", ["1e4", "1.2e4", "1.e+4", "12000e-1"])
def test_a_number_with_an_exponent_is_a_number(number, tmp_path):
    (tmp_path / "c.yaml").write_text(GOOD + f"itl_tpot: {{model_step_us: {number}, acceptance: 75e-2}}\n")
    itl_tpot = load("c.yaml", parse_overrides([f"measure.time_budget_s={number}"])).config.itl_tpot
    assert (itl_tpot.model_step_us, itl_tpot.acceptance) == (float(number), 0.75)


LOCATED = {
    "unknown key": ("nam: t\n" + GOOD, "c.yaml:1: nam: unknown key; did you mean name?"),
    "unknown key in measure": (
        GOOD + "measure:\n  seed: 1\n  min_round: 3\n",
        "c.yaml:7: measure.min_round: unknown key; did you mean min_rounds?",
    ),
    "unknown key in itl_tpot": (
        GOOD + "itl_tpot: {model_step_us: 1, acceptanc: 0.5}\n",
        "c.yaml:5: itl_tpot.acceptanc: unknown key; did you mean acceptance?",
    ),
    "unknown axis": (
        GRID + "paddin: 0.1\n",
        "c.yaml:5: sweep[0].paddin: no operator of this sweep has an axis 'paddin'; did you mean padding?",
    ),
    "axis of another operator": (
        GRID + "table_columns: 3\n",
        "c.yaml:5: sweep[0].table_columns: no operator of this sweep has an axis",
    ),
    "bool for an integer": (
        GOOD.replace("2]", "true]"),
        "c.yaml:4: sweep[0].batch_size[1]: must be an integer >= 1, got True",
    ),
    "item of a list over several lines": (
        GOOD.replace("[1, 2]", "\n    - 1\n    - x\n"),
        "c.yaml:6: sweep[0].batch_size[1]: must be an integer",
    ),
    "padding of one": (GRID + "padding: 1\n", "c.yaml:5: sweep[0].padding: must be a number in [0, 1), got 1"),
    "unknown choice": (
        GRID + "decode_len: [uniform, raged]\n",
        "c.yaml:5: sweep[0].decode_len[1]: must be one of uniform, ragged, mixed",
    ),
    "unknown form of lengths": (
        GRID + "context_len: {unifrm: [1, 2]}\n",
        "c.yaml:5: sweep[0].context_len: must be a positive integer, {uniform",
    ),
    "lengths the wrong way round": (
        GRID + "context_len: {uniform: [9, 2]}\n",
        "c.yaml:5: sweep[0].context_len: must be",
    ),
    "empty list": (GOOD.replace("[1, 2]", "[]"), "c.yaml:4: sweep[0].batch_size: is empty"),
    "empty sweep": ("name: t\noperators: [decode_native]\nsweep: []\n", "c.yaml:3: sweep: "),
    "empty grid": ("name: t\noperators: [decode_native]\nsweep: [{}]\n", "c.yaml:3: sweep[0]: is empty"),
    "row longer than configured": (
        GRID + "next_n: 2\n    max_decode_len: [1, 3]\n",
        "c.yaml:6: sweep[0].max_decode_len: decode_native: max_decode_len (3) must not exceed next_n (2)",
    ),
    "context longer than the model's": (
        GRID + "context_len: 5000\n    max_model_len: 4096\n",
        "c.yaml:5: sweep[0].context_len: decode_native: context_len",
    ),
    "batch over capacity": (
        GOOD.replace("2]", "9000]"),
        "c.yaml:4: sweep[0].batch_size: decode_native: batch_size x max_decode_len (9000 x 4)",
    ),
    "unknown operator": (
        GOOD.replace("[decode_native]", "[decode_native, decode_flaten]"),
        "c.yaml:2: operators[1]: unknown operator 'decode_flaten'; did you mean decode_flatten?",
    ),
    "operators no list": (
        GOOD.replace("[decode_native]", "decode_native"),
        "c.yaml:2: operators: Expected a list, got text",
    ),
    "no operators": (GOOD.replace("[decode_native]", "[]"), "c.yaml:2: operators: "),
    "variants match nothing": (
        GOOD + "variants: [flat*, chian]\n",
        "c.yaml:5: variants[1]: no variant matches 'chian'; did you mean chain?",
    ),
    "a defect is not timed": (
        GOOD + "variants: [missing_clamp]\n",
        "c.yaml:5: variants[0]: no variant matches 'missing_clamp'",
    ),
    "measure a list": (GOOD + "measure: [1]\n", "c.yaml:5: measure: "),
    "seed bool": (
        GOOD + "measure: {seed: true}\n",
        "c.yaml:5: measure.seed: Expected a whole number or nothing, got bool",
    ),
    "too few rounds": (GOOD + "measure: {min_rounds: 2}\n", "c.yaml:5: measure.min_rounds: "),
    "least above most": (
        GOOD + "measure:\n  min_rounds: 50\n",
        "c.yaml:6: measure.min_rounds: must not exceed measure.max_rounds",
    ),
    "a slope through one point": (GOOD + "measure: {graph_copies: [2, 2]}\n", "c.yaml:5: measure.graph_copies"),
    "itl_tpot incomplete": (
        GOOD + "itl_tpot: {model_step_us: 1}\n",
        "c.yaml:5: itl_tpot: the key itl_tpot.acceptance is missing",
    ),
    "acceptance above one": (
        GOOD + "itl_tpot: {model_step_us: 1, acceptance: 1.5}\n",
        "c.yaml:5: itl_tpot.acceptance: ",
    ),
    "more points than anyone measures": (
        GRID + "".join(f"{axis}: {list(range(1, 41))}\n    " for axis in ("next_n", "compress_ratio", "max_model_len")),
        "c.yaml:4: sweep[0]: makes 128,000 points; a sweep may have 100,000",
    ),
    "name with a slash": (GOOD.replace("tiny", "a/b"), "c.yaml:1: name: "),
    "key given twice": (GOOD + "name: other\n", "c.yaml:5: name: given twice, first on line 1"),
    "axis given twice": (GRID + "batch_size: 3\n", "c.yaml:5: sweep[0].batch_size: given twice, first on line 4"),
    "tabs": ("name: t\noperators:\n\t- decode_native\n", "c.yaml:3: not readable as YAML: "),
    "unclosed bracket": (
        "name: t\noperators: [decode_native\nsweep: [{batch_size: 1}]\n",
        "c.yaml:3: not readable as YAML: ",
    ),
    "binary file": (bytes(range(256)), "c.yaml: not a text file"),
    "an empty file": ("", "c.yaml: expected a mapping"),
    "no name": (GOOD.replace("name: tiny\n", ""), "c.yaml: the key name is missing"),
}


@pytest.mark.parametrize("case", LOCATED)
def test_a_faulty_file_is_one_sentence_with_its_place(case, capsys):
    text, start = LOCATED[case]
    message = refused(capsys, text)
    assert message.startswith(start), message


OVERRIDDEN = {
    "no value": ("batch_size", "--set batch_size: expected KEY=VALUE"),
    "no key": ("=3", "--set =3: expected KEY=VALUE"),
    "value no YAML": ("batch_size=[", "--set batch_size=[: the value is not YAML"),
    "empty list": ("batch_size=[]", "--set batch_size: is empty"),
    "unknown axis": ("bach_size=3", "no operator of this sweep has an axis 'bach_size'; did you mean batch_size?"),
    "wrong type": ("batch_size=[1, true]", "--set batch_size: must be an integer >= 1, got True"),
    "unknown key of measure": ("measure.sed=3", "measure.sed: unknown key; did you mean seed?"),
    "misspelt section": ("mesure.seed=3", "did you mean measure.seed?"),
    "part of a section": ("itl_tpot.acceptance=0.5", "the key itl_tpot.model_step_us is missing"),
    "unknown operator": ("operators=[decode_nativ]", "unknown operator 'decode_nativ'; did you mean decode_native?"),
    "breaks a rule": ("max_decode_len=9", "max_decode_len (9) must not exceed next_n (4)"),
}


@pytest.mark.parametrize("case", OVERRIDDEN)
def test_a_faulty_override_is_one_sentence(case, capsys):
    text, part = OVERRIDDEN[case]
    assert part in refused(capsys, GOOD, "--set", text)


def test_a_missing_file_is_named_with_the_nearest_one(capsys, tmp_path):
    (tmp_path / "c2.yaml").write_text(GOOD)
    assert refused(capsys, None) == "c.yaml: No such file or directory; did you mean c2.yaml?"


def test_a_folder_is_no_configuration(capsys, tmp_path):
    (tmp_path / "c.yaml").mkdir()
    assert refused(capsys, None).startswith("c.yaml: Is a directory")


def test_a_missing_folder_is_no_traceback(capsys):
    assert bench.main(["nowhere/c.yaml", "--plan"]) == 2
    assert capsys.readouterr().err == "error: nowhere/c.yaml: No such file or directory; see configs/ for examples\n"


@pytest.mark.parametrize("given", ["configs/mtp3.yaml", "confgs/mtp3.yaml", "mtp3", "mtp3.yml"])
def test_the_configurations_of_the_suite_are_found_from_anywhere(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"did you mean (\S+)\?") as raised:
        load(given)
    named = re.search(r"did you mean (\S+)\?", str(raised.value))[1]
    assert load(named).config.name == "mtp3"


@pytest.mark.parametrize(
    ("key", "legal"), [("measure.cache", "hot, cold, serving"), ("itl_tpot.scheduling", "sync, async")]
)
def test_a_wrong_word_is_answered_with_the_legal_ones(key, legal):
    with pytest.raises(ConfigError, match=f"{key}: .*'warm'; valid are {legal}$"):
        load(harness.config.load.CONFIGS / "smoke.yaml", {key: "warm"})


def test_a_value_is_taken_as_it_stands():
    """Defaults, every section and an alias: what a legal file says arrives unchanged."""
    with open("c.yaml", "w") as file:
        file.write(
            "name: x\noperators: [a]\nsweep: [&first {b: [1]}, {<<: *first, c: 2}]\n"
            "measure: {seed: 5, time_budget_s: 2, graph_copies: [1, 3]}\n"
            "itl_tpot: {model_step_us: 9000, acceptance: 1}\n"
        )
    config = load("c.yaml").config
    assert config.sweep == [{"b": [1]}, {"b": [1], "c": 2}]
    assert (config.variants, config.measure) == ("all", Measure(seed=5, time_budget_s=2.0, graph_copies=(1, 3)))
    assert (config.itl_tpot.model_step_us, config.itl_tpot.acceptance, config.itl_tpot.scheduling) == (
        9000.0,
        1.0,
        "sync",
    )


def test_an_override_of_an_axis_reaches_every_grid_and_a_dotted_key_its_section():
    with open("c.yaml", "w") as file:
        file.write("name: x\noperators: [a]\nsweep: [{b: 1}, {c: 2}]\n")
    config = load("c.yaml", parse_overrides(["b=[8, 9]", "measure.seed=4", "variants=x*"])).config
    assert config.sweep == [{"b": [8, 9]}, {"c": 2, "b": [8, 9]}]
    assert config.measure.seed == 4
    assert config.variants == "x*"
