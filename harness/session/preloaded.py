"""What the fork server imports: what every worker needs, whatever its role: no variant, and Triton only
where no worker may choose to interpret.

torch comes first, so that its libraries lie at the same addresses whatever the suite imports (fork_server.py).
"""

import atexit
import os
import sys
from contextlib import suppress
from importlib import import_module

import torch  # noqa: F401

from spec_decode_bench.harness.session.fork_server import DEVICE

# The server ends with the command: taking torch's modules apart would keep a pipe from the command open meanwhile.
atexit.register(os._exit, 0)
# A fork whose orders never came says nothing: the command was interrupted while it asked for a worker.
sys.excepthook = lambda kind, *error: None if kind is EOFError else sys.__excepthook__(kind, *error)
os.setpgid(0, 0)  # a signal to the command's group must not look like the death of a variant
with suppress(Exception):  # a worker meets it again, and reports it
    if os.environ.get(DEVICE) != "cpu":
        import_module("spec_decode_bench.harness.session.auditor")
    import_module("spec_decode_bench.harness.session.evaluator")
    if os.environ.get(DEVICE) == "cuda":
        import_module("triton.compiler")
