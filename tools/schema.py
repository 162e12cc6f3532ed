"""Writes the JSON schema of a configuration: python -m tools.schema > configs/schema.json"""

import json

from spec_decode_bench import bench
from spec_decode_bench.harness import registry
from spec_decode_bench.harness.config.schema import schema

if __name__ == "__main__":
    registry.load((*bench.ROOMS.values(), *bench.REGISTRATIONS))
    print(json.dumps(schema(), indent=2))
