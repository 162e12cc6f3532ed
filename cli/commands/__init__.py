"""A file for each command of this room: its name, help and flags, and what runs. They import nothing heavy before."""

from spec_decode_bench.cli.commands import check_record, doctor, export, listing, merge, plot, report, run, verify

COMMANDS = (run, verify, merge, plot, report, check_record, export, listing, doctor)
