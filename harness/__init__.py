"""The engine: it verifies, times, records and compares, and knows no operator by name."""
