"""Command-line tools besides bench.py, each run as ``python -m tools.NAME``."""
