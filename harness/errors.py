"""Errors that the user of a command can mend, the base of those that each part raises."""


class UsageError(Exception):
    """What was asked for cannot be done: flags, a configuration, a file, a device. The message says which one and why.
    A command ends with it as one sentence, and exit code 2.
    """
