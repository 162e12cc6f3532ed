"""Exit codes of the command line; docs/configuration.md lists their causes, and CI scripts rely on them."""

OK = 0
#: A mismatch, a failed cell, a run that could not go on, a timer that `doctor` finds uncalibrated, or a regression.
BAD = 1
#: Bad usage or configuration, a device that cannot be used, a file that cannot be read or written, or nothing that
#: could be verified.
USAGE = 2
#: A comparison without a verdict.
UNSURE = 3
#: Ctrl-C. The cells measured so far are kept.
INTERRUPTED = 130
