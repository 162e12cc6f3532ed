"""What a user runs beside bench.py, each as ``python -m tools.NAME``."""
