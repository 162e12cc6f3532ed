"""Exit codes of the command line. Documented in bench.py and the README; CI scripts rely on them."""

OK = 0
#: A mismatch, a failed cell, or a regression.
BAD = 1
#: Bad usage or configuration; nothing was measured.
USAGE = 2
UNSURE = 3
#: Ctrl-C; what was measured is kept.
INTERRUPTED = 130
