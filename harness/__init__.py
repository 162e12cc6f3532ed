"""The benchmark engine: verifies, times, records and compares variants. It names no operator."""

__version__ = "0.1.0"

from spec_decode_bench.harness import import_by_content

import_by_content.install()
