"""What the commands of bench.py do."""
