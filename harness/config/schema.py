"""The JSON schema of a configuration, by which editors complete and check the files in configs/.

python -m tools.schema > configs/schema.json
"""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import msgspec

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.config.load import Config


def schema() -> dict[str, Any]:
    """msgspec's schema of Config and of the sections of rooms, with what their docstrings say of each key."""
    sections = registry.SECTIONS.values()
    kinds = [Config, *(section.schema for section in sections)]
    _, structs = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for section in sections:
        either = [{"$ref": f"#/$defs/{section.schema.__name__}"}, {"type": "null"}]
        structs["Config"]["properties"][section.key] = {"anyOf": either, "default": None}
    for struct in structs.values():
        struct["description"], meanings = _documented(struct["description"])
        for name, key in struct["properties"].items():
            if name in meanings:
                key["description"] = meanings[name]
            elif struct is structs["Config"] and name in registry.SECTIONS:
                key["description"] = registry.SECTIONS[name].help
            if "pattern" in key:
                key["pattern"] = key["pattern"].replace(r"\Z", "$")  # as ECMAScript has it
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "#/$defs/Config", "$defs": structs}
    return json.loads(json.dumps(document))  # tuples of the defaults are arrays


def _documented(docstring: str) -> tuple[str, dict[str, str]]:
    """The first paragraph, and key -> meaning from lines such as ``seed:  of all random inputs``."""
    summary, _, rest = inspect.cleandoc(docstring).partition("\n\n")
    meanings = re.findall(r"^(\w+): +(.*(?:\n +.*)*)", rest, re.MULTILINE)
    return " ".join(summary.split()), {name: " ".join(meaning.split()) for name, meaning in meanings}
