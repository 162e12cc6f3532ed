"""Every shipped configuration: it loads, plans cells of every operator it names, fits five minutes on an H200, and is
documented.
"""

from pathlib import Path

import pytest

from baselines.workloads.axes import num_padding_requests
from harness.analysis.itl_tpot import ServingModel
from harness.config.load import Config, Measure, load
from harness.config.sweep import plan

SHIPPED = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))
#: Those with a sweep; test_decode_loop.py looks at the others.
CONFIGS = [path for path in SHIPPED if load(path).config.decode_loop is None]
#: As many as an H200 measures in five minutes in the slower configurations.
MAX_CELLS = 360


def planned(path, catalog):
    """(operator, point, variant) of every cell that would be measured on a GPU without the engines that peers/ wraps;
    their skip= asks the installed package.
    """
    ours = [variant for variant in catalog.variants if not variant.origin.startswith("peers.")]
    groups = plan(load(path), catalog.operators, ours)
    cells = [(group.operator, group.point, variant) for group in groups for variant in group.variants]
    return [(o, p, v) for o, p, v in cells if not o.redundant(p) and not v.skip(p)]


def test_the_named_workloads_are_there():
    named = {"smoke", "mtp1", "mtp3", "mtp5", "ragged", "native", "mamba_spec", "mamba_copy", "k_gather"} | {
        "cold",
        "full",
    }
    assert {path.stem for path in CONFIGS} >= named


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_plans_cells_of_every_operator_and_variant(path, catalog):
    config = load(path).config
    assert config.name == path.stem
    assert path.read_text(encoding="utf-8").startswith("# ")
    cells = planned(path, catalog)
    for name in config.operators:
        measured = {variant.name for operator, _, variant in cells if operator.name == name}
        assert catalog.operators[name].baseline in measured, name
        assert {"triton_fused", "cuda_fused"} <= measured, name
    assert len(cells) <= MAX_CELLS


DOCUMENTED = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("section", [Config, Measure, ServingModel])
def test_every_key_is_documented(section):
    assert [name for name in section.__struct_fields__ if f"| `{name}` |" not in DOCUMENTED] == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_configuration_is_documented(path):
    assert f"`{path.stem}`" in DOCUMENTED[DOCUMENTED.index("| `configs/` |") :]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_its_points_can_be_drawn(path, catalog):
    """The point with the most requests of every operator: its inputs can be made and counted."""
    largest = {}
    for operator, point, _ in planned(path, catalog):
        if point.batch_size > largest.setdefault(operator.name, (operator, point))[1].batch_size:
            largest[operator.name] = operator, point
    for operator, point in largest.values():
        x = operator.make_inputs(point, 1)
        assert operator.bytes_moved(point, x) > 0


def points_of(stem, catalog):
    """(operator's name, point) of every cell of a configuration."""
    return [(o.name, point) for o, point, _ in planned(next(path for path in CONFIGS if path.stem == stem), catalog)]


@pytest.mark.parametrize(
    ("stem", "names"),
    [("mamba_spec", ("mamba_spec_metadata", "mamba_state_gather")), ("mamba_copy", ("mamba_state_copy",))],
)
def test_mamba_configurations_sweep_blocks_and_batches(stem, names, catalog):
    points = points_of(stem, catalog)
    for name in names:
        mine = [point for operator, point in points if operator == name]
        assert {point.num_speculative_blocks for point in mine} == {1, 2, 3, 5}
        assert {point.batch_size for point in mine} == {1, 4, 8, 16, 32, 64, 128, 256, 1024}
        assert {point.mamba_block_size for point in mine} == {1, 4, 128, 256, 528, 1024, 1056, 1088, 1600, 2048}
        assert {point.max_model_len for point in mine} == {21525, 65536, 262144, 1048576}


def test_gathers_are_repeated_in_as_many_layers_as_models_have(catalog):
    layers = {
        point.num_layers for operator, point in points_of("mamba_spec", catalog) if operator == "mamba_state_gather"
    }
    assert layers == {30, 36, 40}


def test_mamba_spec_sweeps_what_a_step_before_leaves_behind(catalog):
    points = points_of("mamba_spec", catalog)
    values = lambda axis, *names: {point[axis] for name, point in points if name in names and axis in point}  # noqa: E731
    assert {name for name, _ in points} == {"mamba_spec_metadata", "mamba_state_gather", "seq_lens_update"}
    assert values("acceptance", "mamba_spec_metadata", "mamba_state_gather") == {0.0, 0.65, 0.8, 0.9}
    assert values("acceptance", "seq_lens_update") >= {0.0, 0.65, 0.9}
    for name in ("mamba_spec_metadata", "seq_lens_update"):
        assert values("churn", name) == {0.0, 0.01, 0.05}
    assert values("next_n", "seq_lens_update") == {2, 3, 4, 6}


@pytest.mark.parametrize(
    ("stem", "names"), [("mamba_spec", {"mamba_spec_metadata", "mamba_state_gather"}), ("k_gather", {"k_quant_gather"})]
)
def test_rows_of_tables_lie_together_and_ten_entries_apart(stem, names, catalog):
    points = points_of(stem, catalog)
    for name in names:
        assert {point.table_padding for operator, point in points if operator == name} == {0, 10}


def test_mtp1_holds_even_and_odd_batches(catalog):
    points = points_of("mtp1", catalog)
    for name in ("decode_native", "paged_mqa_schedule", "mla_tile_schedule"):
        mine = [point for operator, point in points if operator == name]
        assert {point.batch_size for point in mine if not point.padding} == {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}
        assert {point.batch_size - num_padding_requests(point) for point in mine if point.padding} == {5, 37, 100, 250}
    updated = {point.batch_size for operator, point in points if operator == "seq_lens_update"}
    assert updated >= {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}
    assert {point.num_heads_q for operator, point in points if operator == "mla_tile_schedule"} == {16, 128}


def test_cold_finds_every_operator_of_a_decode_step_out_of_the_cache(catalog):
    config = load(next(path for path in CONFIGS if path.stem == "cold")).config
    assert config.measure.cache == "cold"
    # States are moved at block boundaries alone, keys gathered for a prefill chunk.
    assert set(catalog.operators) - set(config.operators) == {"mamba_state_copy", "k_quant_gather"}
    points = points_of("cold", catalog)
    for name in config.operators:
        assert {point.batch_size for operator, point in points if operator == name} == {1, 32, 128}
    hot = {path.stem for path in CONFIGS if load(path).config.measure.cache == "hot"}
    assert hot == {path.stem for path in CONFIGS} - {"cold"}


def test_full_holds_the_points_of_the_targets(catalog):
    points = points_of("full", catalog)

    def holds(operator, **axes):
        return any(name == operator and axes.items() <= dict(point).items() for name, point in points)

    assert holds("mla_tile_schedule", num_sm_parts=16, batch_size=128)
    assert holds("mla_tile_schedule", num_sm_parts=16, batch_size=1024)
    assert holds("mla_tile_schedule", num_sm_parts=132, batch_size=1024)
    assert holds("k_quant_gather", chunk_tokens=131072)
    assert holds("k_quant_gather", chunk_tokens=524288)
    assert holds("decode_flatten", batch_size=256, context_len={"uniform": [65536, 131072]})
    assert holds("paged_mqa_schedule", batch_size=1024)
