"""Commands that measure and verify on this machine, and those that show and handle the records of that.

A command file (``commands/``) reads its flags. ``run.py`` plans the cells of each configuration and has the harness
measure them into a record, which ``run_report.py`` reads back, shows and draws; ``verification.py`` checks variants at
more places and times nothing; ``doctor.py`` calibrates the timer alone. Whatever is shown comes from a record.

Begin with ``commands/run.py`` and ``run.py``.
"""

from spec_decode_bench.cli.commands import COMMANDS

__all__ = ["COMMANDS"]
