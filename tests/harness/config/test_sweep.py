"""From grids to points: each point once, every one legal; which variants of which operator go with it."""

import dataclasses

import pytest

from harness.config.load import Config, ConfigError, Source
from harness.config.sweep import baselines, expand, plan, select
from harness.contract import Axis, Rule, Variant
from harness.records.choose import matching

NAMES = ("decode_flatten", "decode_native")


def source(sweep, operators=("decode_native",), **more):
    return Source("c.yaml", Config(name="made", operators=list(operators), sweep=sweep, **more))


def points_of(given_source, catalog):
    return [(operator.name, point) for operator, point in expand(given_source, catalog.operators)]


def test_a_grid_is_a_product_in_the_order_of_the_file(catalog):
    points = points_of(source([{"batch_size": [8, 1], "next_n": [2, 3]}]), catalog)
    assert [(p.batch_size, p.next_n) for _, p in points] == [(8, 2), (8, 3), (1, 2), (1, 3)]
    assert [p.max_decode_len for _, p in points] == [2, 3, 2, 3]  # the default follows next_n


def test_grids_are_a_union_without_repetition(catalog):
    points = points_of(
        source([{"batch_size": [1, 8]}, {"batch_size": [8, 9]}, {"batch_size": 1, "next_n": 4}]), catalog
    )
    assert [p.batch_size for _, p in points] == [1, 8, 9]


def test_a_grid_is_projected_on_the_axes_of_each_operator(catalog):
    """An axis that only one operator has must not multiply the points of the other."""
    points = points_of(source([{"batch_size": [1, 8], "token_padding": [0, 16, 32]}], NAMES), catalog)
    assert [name for name, _ in points].count("decode_flatten") == 6
    assert [name for name, _ in points].count("decode_native") == 2


def test_points_come_operator_by_operator_in_the_order_of_the_file(catalog):
    grids = [{"batch_size": [1, 2]}, {"batch_size": [3]}]
    assert [(n, p.batch_size) for n, p in points_of(source(grids, reversed(NAMES)), catalog)] == [
        (name, size) for name in reversed(NAMES) for size in (1, 2, 3)
    ]


def test_traces_of_one_name_are_two_points(catalog, tmp_path):
    """Points that differ must not be taken for one because their labels are alike."""
    paths = []
    for folder in ("monday", "friday"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "trace.csv")
        paths[-1].write_text("ContextTokens,GeneratedTokens\n100,5\n")
    points = points_of(source([{"context_len": [{"trace": str(path)} for path in paths]}]), catalog)
    assert [p.context_len["trace"] for _, p in points] == [str(path) for path in paths]


# --- variants ---------------------------------------------------------------------------------------------------------


def ids(variants):
    return [variant.id for variant in variants]


def test_all_means_every_healthy_variant_of_the_chosen_operators(catalog):
    chosen = select(source([{}]), catalog.variants)
    assert {v.operator for v in chosen} == {"decode_native"}
    assert chosen == [v for v in catalog.of("decode_native") if v.defect is None]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("flat_view", ["decode_native/flat_view"]),
        (["chain*"], ["decode_native/chain", "decode_native/chain_clamp"]),
        (["flat_view", "chain"], ["decode_native/chain", "decode_native/flat_view"]),
        (["decode_native/chain"], ["decode_native/chain"]),
        (["decode_native/*fused"], ["decode_native/triton_fused", "decode_native/cuda_fused"]),
        (["!*fused", "!flat_view"], ["decode_native/chain", "decode_native/chain_clamp"]),
        (["chain*", "!*clamp"], ["decode_native/chain"]),
        (["!*clamp", "chain*"], ["decode_native/chain"]),
    ],
)
def test_patterns_name_variants_in_the_order_of_the_catalogue(patterns, names, catalog):
    assert ids(select(source([{}], variants=patterns), catalog.variants)) == names


def test_a_pattern_matches_case_and_the_whole_name():
    fitting = ["fused", "op/f*", "!fused", "op/fused/batch_size=8"]
    names = ("fused", "op/fused", "op/fused/batch_size=8")
    assert matching([*fitting, "Fused", "fuse", "other/fused"], names) == set(fitting)


@pytest.mark.parametrize("patterns", [["!*"], ["chain", "!chain"]])
def test_leaving_out_every_variant_is_an_error(patterns, catalog):
    with pytest.raises(ConfigError, match="every variant is left out"):
        select(source([{}], variants=patterns), catalog.variants)


def test_only_takes_variants_and_whole_keys_as_alternatives(catalog):
    def keys(*only):
        groups = plan(source([{"batch_size": [1, 8]}]), catalog.operators, catalog.variants, only)
        return [f"{variant.id}/{group.label}" for group in groups for variant in group.variants]

    assert keys("flat_view") == ["decode_native/flat_view/batch_size=1", "decode_native/flat_view/batch_size=8"]
    assert keys("*flat*/batch_size=8") == ["decode_native/flat_view/batch_size=8"]
    assert keys("decode_native/chain/batch_size=1", "flat_view") == [
        "decode_native/chain/batch_size=1",
        "decode_native/flat_view/batch_size=1",
        "decode_native/flat_view/batch_size=8",
    ]


def test_only_leaves_out_variants_and_cells(catalog):
    def keys(*only):
        groups = plan(source([{"batch_size": [1, 8]}], variants=["chain*"]), catalog.operators, catalog.variants, only)
        return [f"{variant.name}/{group.label}" for group in groups for variant in group.variants]

    assert keys("!chain") == ["chain_clamp/batch_size=1", "chain_clamp/batch_size=8"]
    assert keys("!*/batch_size=8") == ["chain/batch_size=1", "chain_clamp/batch_size=1"]
    assert keys("chain", "!*/batch_size=8") == ["chain/batch_size=1"]
    with pytest.raises(ConfigError, match="--only leaves out every cell"):
        keys("!*")
    with pytest.raises(ConfigError, match="--only !chian matches no cell"):
        keys("!chian")


def test_only_cannot_bring_in_what_variants_left_out(catalog):
    with pytest.raises(ConfigError, match=r"--only chain matches no cell"):
        plan(source([{"batch_size": 1}], variants=["flat_view"]), catalog.operators, catalog.variants, ["chain"])


def test_an_only_without_effect_is_an_error_even_beside_one_that_has(catalog):
    """A typing error in one of two patterns would silently halve the run."""
    with pytest.raises(ConfigError, match=r"flat_vew.*did you mean .*flat_view"):
        plan(source([{"batch_size": 1}]), catalog.operators, catalog.variants, ["chain", "flat_vew"])


def test_variants_of_an_operator_take_turns_in_one_group(catalog):
    groups = plan(source([{"batch_size": [1, 8]}], NAMES), catalog.operators, catalog.variants)
    assert [(g.operator.name, g.point.batch_size) for g in groups] == [
        (name, size) for name in NAMES for size in (1, 8)
    ]
    for group in groups:
        assert {v.operator for v in group.variants} == {group.operator.name}
        assert len(set(ids(group.variants))) == len(group.variants) > 2


OWN = {
    "parse= raises TypeError": (
        {"n": None},
        {},
        r"c\.yaml: sweep\[0\]\.n: TypeError: int\(\) argument must be .*, got None",
    ),
    "default= raises": (
        {"n": 1},
        {"axes": (Axis("n", int, 1, ""), Axis("m", int, lambda p: p.nope, ""))},
        "this point has no axis 'nope'",
    ),
    "a rule raises": (
        {"n": 0},
        {"rules": (Rule("{n}", lambda p: 1 // p.n > 0),)},
        "o: cannot make a point of this: ZeroDivisionError",
    ),
    "a rule names what is no axis": (
        {"n": 0},
        {"rules": (Rule("{k}", lambda p: False),)},
        "cannot make a point of this: KeyError: 'k'",
    ),
}


@pytest.mark.parametrize("case", OWN)
def test_what_the_code_of_an_operator_raises_is_one_sentence_with_its_place(case, catalog):
    grid, given, sentence = OWN[case]
    own = dataclasses.replace(
        catalog.operators["decode_native"], name="o", **{"axes": (Axis("n", int, 1, ""),), "rules": (), **given}
    )
    with pytest.raises(ConfigError, match=sentence):
        expand(source([grid], ("o",)), {"o": own})


# --- baseline ---------------------------------------------------------------------------------------------------------


def variants_of(**names):
    return [Variant(operator, name, lambda *_: None, "", "test") for operator in names for name in names[operator]]


def source_with(baseline):
    config = Config(name="x", operators=["one", "two"], sweep=[{"n": 1}], baseline=baseline)
    return Source("x.yaml", config, {"baseline": 4, "baseline.one": 5, "baseline.three": 6})


def test_a_baseline_counts_for_the_operators_that_have_it():
    known = variants_of(one=["chain", "peer"], two=["chain"])
    assert baselines(source_with(None), known) == {}
    assert baselines(source_with("peer"), known) == {"one": "peer"}
    assert baselines(source_with("chain"), known) == {"one": "chain", "two": "chain"}
    assert baselines(source_with({"one": "peer"}), known) == {"one": "peer"}


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ("peers", "x.yaml:4: baseline: no variant of this run is called 'peers'; did you mean peer?"),
        ({"one": "chian"}, "x.yaml:5: baseline.one: one has no variant 'chian' in this run; did you mean chain?"),
        ({"three": "chain"}, "x.yaml:6: baseline.three: 'three' is no operator of this run; valid are one, two"),
    ],
)
def test_an_unknown_baseline_is_refused_with_the_nearest_name(baseline, message):
    with pytest.raises(ConfigError) as refused:
        baselines(source_with(baseline), variants_of(one=["chain", "peer"], two=["chain"]))
    assert str(refused.value) == message
