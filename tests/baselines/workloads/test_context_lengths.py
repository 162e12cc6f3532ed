"""The context_len axis: legal values, draws, labels."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_decode_bench.baselines.workloads.context_lengths import draw_lengths, label_lengths, longest, parse_lengths
from tests.tier import examples

WHOLE = st.integers(1, 200_000)
SIMPLE = st.one_of(
    WHOLE,
    st.tuples(WHOLE, WHOLE).map(lambda pair: {"uniform": sorted(pair)}),
    st.builds(
        lambda median, sigma: {"lognormal": {"median": median, "sigma": sigma}},
        WHOLE,
        st.floats(0, 3, allow_subnormal=False),
    ),
)
WEIGHTS = st.floats(0.01, 100)
SPECS = st.recursive(
    SIMPLE,
    lambda part: st.lists(st.tuples(WEIGHTS, part).map(list), min_size=1, max_size=3).map(lambda m: {"mix": m}),
    max_leaves=4,
)

ILLEGAL = [0, "4096", {"uniform": [2, 1]}, {"uniform": [1, float("inf")]}, {"normal": [1, 2]}, {"mix": [[0, 5]]}]


@pytest.mark.parametrize("value", ILLEGAL, ids=repr)
def test_an_illegal_value_is_refused_with_the_legal_forms(value):
    with pytest.raises(ValueError, match=r"must be .*positive integer"):
        parse_lengths(value)


@given(SPECS)
def test_the_canonical_form_parses_to_itself_and_its_label_holds_no_separator(value):
    parsed = parse_lengths(value)
    assert parse_lengths(parsed) == parsed
    label = label_lengths(parsed)
    assert label
    assert not set(label) & set(",=/ \n")


@settings(max_examples=examples(60))
@given(SPECS, st.integers(0, 2**32), st.integers(1, 50))
def test_draws_follow_from_the_seed_and_stay_in_bounds(value, seed, count):
    parsed = parse_lengths(value)
    drawn = draw_lengths(parsed, count, np.random.default_rng(seed))
    assert (drawn.dtype, drawn.shape) == (np.int64, (count,))
    assert np.array_equal(drawn, draw_lengths(parsed, count, np.random.default_rng(seed)))
    low, high = bounds(parsed)
    assert low <= drawn.min() <= drawn.max() <= high
    if "lognormal" not in repr(parsed):
        assert longest(parsed) == high


def bounds(value):
    if isinstance(value, int):
        return value, value
    ((kind, argument),) = value.items()
    if kind == "mix":
        low, high = zip(*(bounds(part) for _, part in argument), strict=True)
        return min(low), max(high)
    return argument if kind == "uniform" else (1, 2**31 - 1)


def test_lognormal_has_its_median_and_spread():
    drawn = draw_lengths(parse_lengths({"lognormal": {"median": 4096, "sigma": 1.0}}), 40_000, np.random.default_rng(1))
    assert np.median(drawn) == pytest.approx(4096, rel=0.03)
    assert np.log(drawn).std() == pytest.approx(1.0, rel=0.03)


def test_a_mixture_keeps_its_weights_though_they_do_not_add_up_to_one():
    value = parse_lengths({"mix": [[3, {"uniform": [100, 200]}], [1, 5]]})
    drawn = draw_lengths(value, 20_000, np.random.default_rng(2))
    assert (drawn == 5).mean() == pytest.approx(0.25, abs=0.02)
    assert (drawn[drawn != 5]).min() >= 100


# --- traces -----------------------------------------------------------------------------------------------------------

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03,374,44\n2023-11-16 18:17:04,396,109\n2023-11-16 18:17:05,7,1\n"
)
MOONCAKE = (
    '{"timestamp": 27482, "input_length": 374, "output_length": 44, "hash_ids": [46, 47]}\n'
    '{"timestamp": 30535, "input_length": 396, "output_length": 109, "hash_ids": []}\n\n'
    '{"timestamp": 30535, "input_length": 7, "output_length": 1}\n'
)


@pytest.mark.parametrize(("name", "text"), [("azure.csv", AZURE), ("mooncake.jsonl", MOONCAKE)])
def test_a_trace_is_sampled_at_a_random_moment_of_each_request(name, text, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    value = parse_lengths({"trace": str(path)})
    assert value == {"trace": str(path)}
    assert label_lengths(value) == f"trace({path})"
    assert longest(value) is None
    drawn = draw_lengths(value, 5000, np.random.default_rng(0))
    requests = [range(374 + 1, 374 + 44 + 1), range(396 + 1, 396 + 109 + 1), range(7 + 1, 7 + 1 + 1)]
    possible = set(itertools.chain(*requests))
    assert set(drawn) <= possible
    assert len(set(drawn)) > 100  # not only the prompts
    assert (drawn == 8).mean() == pytest.approx(1 / 3, abs=0.03)  # all requests are equally likely
    assert np.array_equal(drawn, draw_lengths(value, 5000, np.random.default_rng(0)))


def test_a_request_without_output_counts_with_its_first_token(tmp_path):
    (tmp_path / "t.csv").write_text("ContextTokens,GeneratedTokens\n100,0\n")
    value = parse_lengths({"trace": str(tmp_path / "t.csv")})
    assert set(draw_lengths(value, 20, np.random.default_rng(0))) == {101}


BAD_TRACES = {
    "other columns.csv": ("a,b\n1,2\n", "needs the columns .*ContextTokens.*input_length"),
    "short row.csv": ("ContextTokens,GeneratedTokens\n1,2\n1\n", "line 3: needs whole numbers"),
    "header only.csv": ("ContextTokens,GeneratedTokens\n", "holds no request"),
    "torn.jsonl": ('{"input_length": 3, "output_length": 4}\n{"input_length": 3, "output_le', "line 2: is not JSON"),
}


@pytest.mark.parametrize("name", BAD_TRACES)
def test_a_bad_trace_is_refused_with_its_name(name, tmp_path):
    text, words = BAD_TRACES[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words) as caught:
        parse_lengths({"trace": str(tmp_path / name)})
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_binary_or_missing_trace_is_refused_with_its_name(tmp_path):
    (tmp_path / "b.csv").write_bytes(bytes(range(256)))
    for path in (tmp_path / "b.csv", tmp_path / "none.csv", tmp_path):
        with pytest.raises(ValueError, match="trace") as caught:
            parse_lengths({"trace": str(path)})
        assert str(path) in str(caught.value)


def test_labels_tell_lengths_apart(tmp_path):
    """Cell keys and comparisons of runs see nothing of a context length but its label."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "trace.csv").write_text(AZURE)
    values = [
        {"trace": str(tmp_path / "a" / "trace.csv")},
        {"trace": str(tmp_path / "b" / "trace.csv")},
        {"lognormal": {"median": 12345678, "sigma": 1}},
        {"lognormal": {"median": 12345679, "sigma": 1}},
        {"lognormal": {"median": 4096, "sigma": 1}},
        {"lognormal": {"median": 4096, "sigma": 1.0000001}},
        {"mix": [[1234567, 5], [1, 6]]},
        {"mix": [[1234568, 5], [1, 6]]},
        {"mix": [[1, 5], [1234567, 6]]},
        {"uniform": [5, 6]},
        {"uniform": [5, 7]},
        5,
        6,
    ]
    labels = [label_lengths(parse_lengths(value)) for value in values]
    assert sorted(label for label in labels if labels.count(label) > 1) == []
