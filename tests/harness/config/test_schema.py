"""The JSON schema in configs/: up to date, right for every shipped configuration, and strict as the loader is."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from spec_decode_bench.harness.config.load import CONFIGS, Config, Measure
from spec_decode_bench.harness.config.schema import schema

SHIPPED = sorted(CONFIGS.glob("*.yaml"))


def test_the_schema_is_up_to_date():
    """Else: python -m tools.schema > configs/schema.json"""
    assert json.loads((CONFIGS / "schema.json").read_text(encoding="utf-8")) == schema()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_configuration_names_the_schema_and_fits_it(path: Path):
    text = path.read_text(encoding="utf-8")
    assert "\n# yaml-language-server: $schema=schema.json\n" in text
    jsonschema.validate(yaml.safe_load(text), schema())


GOOD = {"name": "x", "operators": ["a"], "sweep": [{"b": [1]}]}


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "a/b"},
        {"operators": []},
        {"sweep": {}},
        {"measur": {}},
        {"measure": {"cache": "warm"}},
        {"measure": {"min_rounds": 1}},
        {"itl_tpot": {"model_step_us": 1}},
    ],
    ids=str,
)
def test_what_the_loader_refuses_does_not_fit(bad):
    jsonschema.validate(GOOD, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(GOOD | bad, schema())


@pytest.mark.parametrize("struct", [Config, Measure])
def test_documented_keys_have_their_meaning(struct):
    given = schema()["$defs"][struct.__name__]
    documented = [name for name in struct.__struct_fields__ if f"\n    {name}:" in struct.__doc__]
    assert len(documented) >= 3
    assert all(given["properties"][name]["description"] for name in documented)
    assert "\n" not in given["description"]
