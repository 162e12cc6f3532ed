"""The benchmark engine: verifies, times, records and compares variants. It names no operator."""

__version__ = "0.1.0"
