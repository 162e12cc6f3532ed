"""A file for each command of this room: its name, help and flags, and what runs. They import nothing heavy before."""

from spec_decode_bench.regression.commands import compare, gate, history

COMMANDS = (compare, gate, history)
