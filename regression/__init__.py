"""Is a revision slower than another one, is a variant slower than another, and in which commit did a time change?

Records of several processes a side -> ``comparison.py``, a trimmed mean per process and cell, verdicts at a controlled
rate of false alarms (``harness/analysis/verdicts.py``) -> ``comparison_report.py``, a comment for a pull request.
``gate.py`` measures both sides itself, in turns, until that is sure; ``changed_cells.py`` leaves out cells whose code
is the same.
``history.py`` cuts the times of many commits into levels.

Begin with ``comparison.py``: ``compare``.
"""

from spec_decode_bench.regression.commands import COMMANDS

__all__ = ["COMMANDS"]
