"""From grids to points: each point once, every one legal; which variants of which operator go with it."""

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spec_decode_bench.harness.config.load import Config, ConfigError, LoadedConfig
from spec_decode_bench.harness.config.sweep import baselines, expand, plan, select
from spec_decode_bench.harness.config.work_items import keys_of
from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.records.select import Selector
from tests.tier import examples

NAMES = ("decode_flatten", "decode_native")


def source(sweep, operators=("decode_native",), **more):
    return LoadedConfig("c.yaml", config=Config(name="made", operators=list(operators), sweep=sweep, **more))


def points_of(given_source, catalog):
    return [(operator.name, point) for operator, point in expand(given_source, catalog.operators)]


def test_a_grid_is_projected_on_the_axes_of_each_operator(catalog):
    """An axis that only one operator has must not multiply the points of the other."""
    points = points_of(source([{"batch_size": [1, 8], "token_padding": [0, 16, 32]}], NAMES), catalog)
    assert [name for name, _ in points].count("decode_flatten") == 6
    assert [name for name, _ in points].count("decode_native") == 2


def test_traces_of_one_name_are_two_points(catalog, tmp_path):
    """Points that differ must not be taken for one because their labels are alike."""
    paths = []
    for folder in ("monday", "friday"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "trace.csv")
        paths[-1].write_text("ContextTokens,GeneratedTokens\n100,5\n")
    points = points_of(source([{"context_len": [{"trace": str(path)} for path in paths]}]), catalog)
    assert [p.context_len["trace"] for _, p in points] == [str(path) for path in paths]


# --- generated sweeps -------------------------------------------------------------------------------------------------

PADDINGS = st.sampled_from([0, 0.1, 0.25, 0.5, 0.9]) | st.floats(0, 0.99, allow_subnormal=False)


def one_or_more(values):
    """A list of different values, or a bare one, as a grid may have either."""
    # 0 and 0.0 are one value, though JSON spells them differently; only a mapping needs to be spelt.
    different = st.lists(
        values, min_size=1, max_size=3, unique_by=lambda value: json.dumps(value) if isinstance(value, dict) else value
    )
    return different | values


def context_lens(longest):
    lengths = st.integers(1, longest)
    return st.one_of(
        lengths,
        st.tuples(lengths, lengths).map(lambda pair: {"uniform": sorted(pair)}),
        st.builds(lambda m, s: {"lognormal": {"median": m, "sigma": s}}, lengths, st.sampled_from([0, 0.5, 1.0])),
        lengths.map(lambda n: {"mix": [[0.8, {"uniform": [1, n]}], [0.2, n]]}),
    )


@st.composite
def legal_grids(draw):
    grid = {"batch_size": draw(one_or_more(st.integers(1, 64)))}
    next_n = grid["next_n"] = draw(one_or_more(st.integers(1, 8)))
    least = min(next_n) if isinstance(next_n, list) else next_n
    longest = grid["max_model_len"] = draw(st.sampled_from([64, 4096, 163840]))
    optional = {
        "max_decode_len": one_or_more(st.integers(1, least)),
        "decode_len": one_or_more(st.sampled_from(["uniform", "ragged", "mixed"])),
        "context_len": one_or_more(context_lens(longest)),
        "padding": one_or_more(PADDINGS),
    }
    for name in draw(st.lists(st.sampled_from(list(optional)), unique=True)):
        grid[name] = draw(optional[name])
    if "context_len" not in grid:  # its default is longer than the shortest model
        grid["context_len"] = longest
    return {name: grid[name] for name in draw(st.permutations(list(grid)))}


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    grids=st.lists(legal_grids(), min_size=1, max_size=3),
    operators=st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True),
)
def test_every_legal_sweep_expands_to_each_point_once(grids, operators, catalog):
    points = points_of(source(grids, operators), catalog)
    wanted = set()
    for name in operators:
        operator = catalog.operators[name]
        parsers = {axis.name: axis.parse for axis in operator.axes}
        for grid in grids:
            options = [value if isinstance(value, list) else [value] for value in grid.values()]
            for values in itertools.product(*options):
                given_values = {axis: parsers[axis](value) for axis, value in zip(grid, values, strict=True)}
                wanted.add((name, json.dumps(dict(operator.complete(given_values)), sort_keys=True)))
    found = [(name, json.dumps(dict(point), sort_keys=True)) for name, point in points]
    assert len(found) == len(set(found))
    assert set(found) == wanted
    labels = [(name, catalog.operators[name].label(point)) for name, point in points]
    assert len(labels) == len(set(labels))
    assert all(catalog.operators[name].broken_rule(point) is None for name, point in points)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(grids=st.lists(legal_grids(), min_size=1, max_size=3), data=st.data())
def test_one_illegal_row_length_is_found_in_its_grid(grids, data, catalog):
    g = data.draw(st.integers(0, len(grids) - 1))
    next_n = grids[g]["next_n"]
    too_long = (min(next_n) if isinstance(next_n, list) else next_n) + 1
    grids[g]["max_decode_len"] = too_long
    with pytest.raises(ConfigError) as caught:
        points_of(source(grids), catalog)
    assert str(caught.value).startswith(
        f"c.yaml: sweep[{g}].max_decode_len: decode_native: max_decode_len ({too_long}) must not exceed next_n"
    )


# --- variants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["flat_view", "chain"], ["chain", "flat_view"]),
        (["decode_native/*fused"], ["triton_fused", "cuda_fused"]),
        (["chain*", "!*clamp"], ["chain"]),
        (["!*"], None),
        (["chain", "!chain"], None),
    ],
)
def test_patterns_name_variants_in_the_order_of_the_catalogue(patterns, names, catalog):
    given = source([{}], variants=patterns)
    if names:
        assert [v.id for v in select(given, catalog.variants)] == [f"decode_native/{name}" for name in names]
    else:
        with pytest.raises(ConfigError, match="every variant is left out"):
            select(given, catalog.variants)


def test_all_means_every_healthy_variant_of_the_chosen_operators(catalog):
    assert select(source([{}]), catalog.variants) == [v for v in catalog.of("decode_native") if v.defect is None]


def test_a_pattern_matches_case_and_the_whole_name():
    fitting = ["fused", "op/f*", "!fused", "op/fused/batch_size=8"]
    names = ("fused", "op/fused", "op/fused/batch_size=8")
    used = []
    for glob in (*fitting, "Fused", "fuse", "other/fused"):
        selector = Selector([glob])
        assert selector.keeps(names) == (glob in fitting and not glob.startswith("!"))
        used += [glob] if selector.unused is None else []
    assert used == fitting


@pytest.mark.parametrize(
    ("only", "cells"),
    [
        (["flat_view"], ["flat_view/batch_size=1", "flat_view/batch_size=8"]),
        (["*flat*/batch_size=8"], ["flat_view/batch_size=8"]),
        (["decode_native/chain/batch_size=1", "*/flat_view/*=8"], ["chain/batch_size=1", "flat_view/batch_size=8"]),
        (["!*/batch_size=8", "!flat*"], ["chain/batch_size=1"]),
        (["chain", "!*/batch_size=8"], ["chain/batch_size=1"]),
        (["!*"], "--only leaves out every cell"),
        (["!chian"], "--only !chian matches no cell"),
        (["chain", "flat_vew"], "flat_vew.*did you mean .*flat_view"),  # which would silently halve the run
    ],
)
def test_only_takes_variants_and_whole_keys_as_alternatives_and_leaves_out(only, cells, catalog):
    given = source([{"batch_size": [1, 8]}], variants=["chain", "flat_view"])
    if isinstance(cells, list):
        planned = keys_of(plan(given, catalog.operators, catalog.variants, only))
        assert sorted(planned) == [f"decode_native/{cell}" for cell in cells]
    else:
        with pytest.raises(ConfigError, match=cells):
            plan(given, catalog.operators, catalog.variants, only)


# --- baseline ---------------------------------------------------------------------------------------------------------


def variants_of(**names):
    return [Variant(operator, name, lambda *_: None, "", "test") for operator in names for name in names[operator]]


def source_with(baseline):
    config = Config(name="x", operators=["one", "two"], sweep=[{"n": 1}], baseline=baseline)
    return LoadedConfig("x.yaml", {"baseline": 4, "baseline.one": 5, "baseline.three": 6}, config=config)


def test_a_baseline_counts_for_the_operators_that_have_it():
    known = variants_of(one=["chain", "peer"], two=["chain"])
    assert baselines(source_with(None), known) == {}
    assert baselines(source_with("peer"), known) == {"one": "peer"}
    assert baselines(source_with("chain"), known) == {"one": "chain", "two": "chain"}
    assert baselines(source_with({"one": "peer"}), known) == {"one": "peer"}


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ("peers", "x.yaml:4: baseline: unknown variant 'peers'; did you mean peer?"),
        ({"one": "chian"}, "x.yaml:5: baseline.one: unknown variant 'chian'; did you mean chain?"),
        ({"three": "chain"}, "x.yaml:6: baseline.three: unknown operator 'three'; valid are one, two"),
    ],
)
def test_an_unknown_baseline_is_refused_with_the_nearest_name(baseline, message):
    with pytest.raises(ConfigError) as refused:
        baselines(source_with(baseline), variants_of(one=["chain", "peer"], two=["chain"]))
    assert str(refused.value) == message
