"""The YAML of a run: every fault is one sentence with file, line, key path and the nearest valid name, and exit code
2.
"""

import json
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_decode_bench import bench
from spec_decode_bench.harness.config.load import ConfigError, Measure, load, parse_overrides
from tests.tier import examples

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


LOCATED = {
    "unknown key": ("nam: t\n" + GOOD, "c.yaml:1: nam: unknown key; did you mean name?"),
    "unknown axis": (GRID + "paddin: 0.1\n", "c.yaml:5: sweep[0].paddin: unknown axis 'paddin'; did you mean padding?"),
    "item of a list over several lines": (
        GOOD.replace("[1, 2]", "\n    - 1\n    - x\n"),
        "c.yaml:6: sweep[0].batch_size[1]: must be an integer",
    ),
    "row longer than configured": (
        GRID + "next_n: 2\n    max_decode_len: [1, 3]\n",
        "c.yaml:6: sweep[0].max_decode_len: decode_native: max_decode_len (3) must not exceed next_n (2)",
    ),
    "unknown operator": (
        GOOD.replace("[decode_native]", "[decode_native, decode_flaten]"),
        "c.yaml:2: operators[1]: unknown operator 'decode_flaten'; did you mean decode_flatten?",
    ),
    "variants match nothing": (
        GOOD + "variants: [flat*, chian]\n",
        "c.yaml:5: variants[1]: no variant matches 'chian'; did you mean chain?",
    ),
    "least above most": (
        GOOD + "measure:\n  min_rounds: 50\n",
        "c.yaml:6: measure.min_rounds: must not exceed measure.max_rounds",
    ),
    "more points than anyone measures": (
        GRID + "".join(f"{axis}: {list(range(1, 41))}\n    " for axis in ("next_n", "compress_ratio", "max_model_len")),
        "c.yaml:4: sweep[0]: makes 128,000 points; a sweep may have 100,000",
    ),
    "key of measure given twice": (
        GOOD + "measure:\n  seed: 1\n  seed: 2\n",
        "c.yaml:7: measure.seed: given twice, first on line 6",
    ),
    "nested without end": ("name: " + "[" * 5000, "c.yaml: not readable as YAML: "),
    "code in a tag": (GOOD + "measure: !!python/object/apply:os.abort []\n", "c.yaml:5: not readable as YAML: "),
    "contains itself": ("name: t\noperators: [decode_native]\nsweep: &a [*a]\n", "c.yaml"),
    "no sweep at all": ("name: t\noperators: [decode_native]\n", "c.yaml: the key sweep is missing"),
}


@pytest.mark.parametrize("case", LOCATED)
def test_a_faulty_file_is_one_sentence_with_its_place(case, capsys):
    text, start = LOCATED[case]
    message = refused(capsys, text)
    assert message.startswith(start), message


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("batch_size=[", "--set batch_size=[: the value is not YAML"),
        ("bach_size=3", "--set bach_size: unknown axis 'bach_size'; did you mean batch_size?"),
        ("max_decode_len=9", "max_decode_len (9) must not exceed next_n (4)"),
    ],
)
def test_a_faulty_override_is_one_sentence(override, part, capsys):
    assert part in refused(capsys, GOOD, "--set", override)


def test_a_missing_file_is_named_with_the_nearest_one(capsys, tmp_path):
    (tmp_path / "c2.yaml").write_text(GOOD)
    assert refused(capsys, None).endswith("did you mean c2.yaml?")
    with pytest.raises(ConfigError, match=r"did you mean (\S+)\?") as raised:
        load("confgs/mtp3.yaml")
    assert load(re.search(r"did you mean (\S+)\?", str(raised.value))[1]).config.name == "mtp3"


@pytest.mark.parametrize("name", ["native", "configs/native.yaml"])  # the command is not taken for gate
def test_a_shipped_configuration_is_found_by_name_in_any_folder(name, capsys, tmp_path):
    assert bench.main([name, "--plan", "--only", "decode_native/*"]) == 0
    assert "decode_native/" in capsys.readouterr().out
    file = tmp_path / name  # a file of the user's goes before it
    file.parent.mkdir(exist_ok=True)
    file.write_text("name: mine")
    assert bench.main([name, "--plan"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {name}: the key ")


@pytest.mark.parametrize("number", ["1e4", "1.e+4"])
def test_a_value_is_taken_as_it_stands(number):
    """An alias, and a number with an exponent."""
    with open("c.yaml", "w") as file:
        file.write(
            "name: x\noperators: [a]\nsweep: [&first {b: [1]}, {<<: *first, c: 2}]\n"
            f"measure: {{seed: 5, graph_copies: [1, 3]}}\nitl_tpot: {{model_step_us: {number}, acceptance: 75e-2}}\n"
        )
    config = load("c.yaml", parse_overrides([f"measure.time_budget_s={number}", "variants=x*"])).config
    assert config.sweep == [{"b": [1]}, {"b": [1], "c": 2}]
    assert config.measure == Measure(seed=5, time_budget_s=float(number), graph_copies=(1, 3))
    assert (config.variants, config.itl_tpot.model_step_us, config.itl_tpot.acceptance) == ("x*", float(number), 0.75)


# --- generated configurations -----------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-z][a-z_]{0,12}", fullmatch=True).filter(
    lambda name: not isinstance(yaml.safe_load(name), bool | None)
)
NUMBERS = st.integers(1, 10**6) | st.sampled_from([0.25, 0.5, 12.5])
VALUES = st.one_of(NUMBERS, NAMES, st.lists(NUMBERS, min_size=1, max_size=3))

CONFIGS = st.fixed_dictionaries(
    {
        "name": NAMES,
        "operators": st.lists(NAMES, min_size=1, max_size=3),
        "sweep": st.lists(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3), min_size=1, max_size=3),
    },
    optional={
        "variants": st.just("all") | st.lists(NAMES, min_size=1, max_size=3),
        "measure": st.fixed_dictionaries(
            {},
            optional={
                "seed": st.none() | st.integers(0, 2**31),
                "time_budget_s": st.integers(1, 100) | st.just(2.5),
                "min_rounds": st.integers(3, 10),
                "max_rounds": st.integers(20, 50),
                "graph_copies": st.lists(st.integers(1, 64), min_size=2, max_size=4, unique=True),
            },
        ).filter(bool),
        "itl_tpot": st.fixed_dictionaries(
            {"model_step_us": st.integers(1, 20000) | st.just(0.5), "acceptance": st.sampled_from([0, 0.75, 1])},
            optional={"calls_per_step": st.integers(1, 90), "scheduling": st.sampled_from(["sync", "async"])},
        ),
    },
)
WRONG = {
    "name": [3, None, "a b"],
    "operators": ["x", {"a": 1}, []],
    "operators[0]": [3, None],
    "sweep": [None, {"b": 1}, []],
    "sweep[0]": ["x", [1]],
    "variants": [3, {"a": 1}, []],
    "measure": [None, [1]],
    "measure.seed": ["1", True, 1.5, -1],
    "measure.time_budget_s": ["60", 0],
    "measure.min_rounds": [3.5, 2],
    "measure.graph_copies": [4, [1]],
    "itl_tpot": ["x", [1]],
    "itl_tpot.model_step_us": [None, 0],
    "itl_tpot.acceptance": ["1", 1.5],
    "itl_tpot.scheduling": ["both", None],
}


def render(data, blank):
    """Block YAML with every key and item on its own line, and comments in between where ``blank()`` says so."""
    text, lines = [], {}

    def put(key, value, indent, lead):
        if blank():
            text.append(" " * indent + "# a: comment")
        lines[key] = len(text) + 1
        nested = isinstance(value, dict | list) and value
        text.append(" " * indent + lead + ("" if nested else json.dumps(value)))
        if isinstance(value, dict):
            for name, inner in value.items():
                put(f"{key}.{name}", inner, indent + 2, f"{name}: ")
        elif isinstance(value, list):
            for i, inner in enumerate(value):
                put(f"{key}[{i}]", inner, indent + 2, "- ")
        if nested and lead == "- ":  # an item begins where its first key stands
            lines[key] = min(line for known, line in lines.items() if known.startswith((f"{key}.", f"{key}[")))

    for name, value in data.items():
        put(name, value, 0, f"{name}: ")
    return "\n".join(text) + "\n", lines


def refused_by_load(data, key, draw, tmp):
    """The message for ``data``, whose fault is at ``key``; it must start with file, line and key path."""
    text, lines = render(data, lambda: draw(st.booleans()))
    path = tmp / "generated.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:{lines[key]}: {key}: "), f"{caught.value}\n{text}"
    return str(caught.value)


@pytest.fixture(scope="module")
def tmp(tmp_path_factory):
    """One folder for all generated examples."""
    return tmp_path_factory.mktemp("generated")


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), config=CONFIGS)
def test_a_legal_configuration_is_read_back(data, config, tmp):
    text, lines = render(config, lambda: data.draw(st.booleans()))
    (tmp / "legal.yaml").write_text(text)
    source = load(tmp / "legal.yaml")
    assert source.config.sweep == config["sweep"]
    assert source.config.operators == config["operators"]
    assert {key: source.lines[key] for key in lines} == lines
    for key, value in config.get("measure", {}).items():
        assert getattr(source.config.measure, key) == (tuple(value) if isinstance(value, list) else value)


@settings(max_examples=examples(120), deadline=None)
@given(data=st.data(), config=CONFIGS, fault=st.sampled_from([(key, wrong) for key in WRONG for wrong in WRONG[key]]))
def test_one_wrong_value_is_found_where_it_stands(data, config, fault, tmp):
    key, wrong = fault
    section, _, name = key.partition(".")
    if name:
        full = {"itl_tpot": {"model_step_us": 1, "acceptance": 0.5}, "measure": {}}[section]
        config[section] = full | config.get(section, {}) | {name: wrong}
    elif key.endswith("]"):
        config[key[:-3]][0] = wrong
    else:
        config[key] = wrong
    refused_by_load(config, key, data.draw, tmp)


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), config=CONFIGS)
def test_an_override_equals_the_same_value_in_the_file(data, config, tmp):
    axis, value = data.draw(NAMES.map(lambda name: f"{name}_x")), data.draw(VALUES)
    seed = data.draw(st.integers(0, 99))
    (tmp / "plain.yaml").write_text(render(config, bool)[0])
    changed = config | {
        "sweep": [grid | {axis: value} for grid in config["sweep"]],
        "measure": config.get("measure", {}) | {"seed": seed},
    }
    (tmp / "changed.yaml").write_text(render(changed, bool)[0])
    overrides = parse_overrides([f"{axis}={json.dumps(value)}", f"measure.seed={seed}"])
    assert load(tmp / "plain.yaml", overrides).config == load(tmp / "changed.yaml").config
