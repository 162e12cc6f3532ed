"""The JSON schema of a configuration, by which editors complete and check the files in configs/.

python -m spec_decode_bench.harness.config.schema > configs/schema.json
"""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import msgspec

from spec_decode_bench.harness.config.load import Config


def schema() -> dict[str, Any]:
    """msgspec's schema of Config, with what its docstrings say of each key."""
    _, structs = msgspec.json.schema_components([Config], ref_template="#/$defs/{name}")
    for struct in structs.values():
        struct["description"], meanings = _documented(struct["description"])
        for name, key in struct["properties"].items():
            if name in meanings:
                key["description"] = meanings[name]
            if "pattern" in key:
                key["pattern"] = key["pattern"].replace(r"\Z", "$")  # as ECMAScript has it
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "#/$defs/Config", "$defs": structs}
    return json.loads(json.dumps(document))  # tuples of the defaults are arrays


def _documented(docstring: str) -> tuple[str, dict[str, str]]:
    """The first paragraph, and key -> meaning from lines such as ``seed:  of all random inputs``."""
    summary, _, rest = inspect.cleandoc(docstring).partition("\n\n")
    meanings = re.findall(r"^(\w+): +(.*(?:\n +.*)*)", rest, re.MULTILINE)
    return " ".join(summary.split()), {name: " ".join(meaning.split()) for name, meaning in meanings}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
