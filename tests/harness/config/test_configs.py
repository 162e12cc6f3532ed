"""Every shipped configuration: it loads, plans cells of every operator it names, fits five minutes on an H200, and is
documented.
"""

from pathlib import Path

import pytest

from spec_decode_bench.decode_loop.configuration import DecodeLoop, Geometry
from spec_decode_bench.harness.analysis.itl_tpot import ServingModel
from spec_decode_bench.harness.config.load import Config, Measure, load
from spec_decode_bench.harness.config.sweep import plan
from spec_decode_bench.harness.contract import Point

SHIPPED = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))
#: Those with a sweep over variants of ours: test_decode_loop.py, test_gate_upstream.py and test_shipped_captures.py
#: look at the others.
CONFIGS = [path for path in SHIPPED if load(path).section is None and path.stem not in ("vllm", "captured")]
#: As many as an H200 measures in five minutes in the slower configurations.
MAX_CELLS = 400


def planned(path, catalog):
    """(operator, point, variant) of every cell that would be measured on a GPU without the variants of upstream/, whose
    skip= asks the installed package.
    """
    ours = [variant for variant in catalog.variants if variant.folder != "upstream"]
    items = plan(load(path), catalog.operators, ours)
    cells = [
        (catalog.operators[item.operator], Point(item.axes), catalog.find(item.operator, name))
        for item in items
        for name in item.variants
    ]
    return [(o, p, v) for o, p, v in cells if not o.redundant(p) and not v.skip(p)]


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


DOCS = Path(__file__).parents[3] / "docs"
DOCUMENTED = (DOCS / "configuration.md").read_text(encoding="utf-8")
OF_LOOPS = (DOCS / "decode-loop.md").read_text(encoding="utf-8")
SECTIONS = {Config: DOCUMENTED, Measure: DOCUMENTED, ServingModel: DOCUMENTED, DecodeLoop: OF_LOOPS, Geometry: OF_LOOPS}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_documented(section):
    assert [name for name in section.__struct_fields__ if f"| `{name}` |" not in SECTIONS[section]] == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_configuration_is_documented(path):
    assert f"`{path.stem}`" in DOCUMENTED.partition("## Shipped configurations")[2]


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


def test_what_gates_vllm_has_a_variant_of_vllms_for_each_of_its_operators(catalog):
    source = load(next(path for path in SHIPPED if path.stem == "vllm"))
    items = plan(source, catalog.operators, catalog.variants)
    assert {item.operator for item in items} == set(source.config.operators)
