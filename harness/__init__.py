"""The benchmark engine: verifies, times, records and compares variants. It names no operator."""
