"""The process that workers are forked from. It loads torch and the engine once, while the parent plans, so a worker
begins at once, and so does the replacement of one that died.

The server never touches the device: the driver does not survive a fork.

Its addresses are not randomized, so that every process times library kernels that lie alike (harness/addresses.py).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from multiprocessing import forkserver
from pathlib import Path

import spec_decode_bench
from spec_decode_bench.harness import interpreter
from spec_decode_bench.harness.addresses import fixed_addresses

#: Where Python finds the suite. In a clone a process has it in its search path no longer than it must, as the folders
#: beside it have names of others' packages, such as kernels.
FOUND_IN = str(Path(spec_decode_bench.__file__).parent)
#: Set by profilers, which follow a process that is spawned, and not one that is forked.
PROFILED = ("NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
FORKS = not any(name in os.environ for name in PROFILED)
CONTEXT = multiprocessing.get_context("forkserver" if FORKS else "spawn")
#: Set for the server: "cuda" where all workers use a GPU.
DEVICE = "SPEC_DECODE_BENCH_DEVICE"
#: Where Python takes no search path from the environment, each worker loads everything itself.
PRELOADED = [] if sys.flags.ignore_environment else ["spec_decode_bench.harness.session.preloaded"]
#: Several devices start their workers in threads of one process, which has one environment and one search path.
_LOCK = threading.Lock()


def start(device: str | None = None) -> None:
    """Start the server unless it runs; does not wait until it has loaded anything. Raises OSError.

    device: "cuda" or "cpu", if it is known.
    """
    if not FORKS:
        return
    CONTEXT.set_forkserver_preload(PRELOADED)
    # The server has no other way to find this checkout, and must not find another one in the working directory.
    with _LOCK:
        path = os.pathsep.join(filter(None, [FOUND_IN, os.environ.get("PYTHONPATH")]))
        changes = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", DEVICE: device or ""}
        if device == "cuda":  # what it loads of Triton must not be for the interpreter
            changes[interpreter.SWITCH] = "0"
        with _ctrl_c_ignored(), _environment(changes), _suite_first(), fixed_addresses():
            forkserver.ensure_running()


def started(target: Callable[..., None], arguments: tuple, name: str) -> multiprocessing.Process:
    """A new process. It ignores Ctrl-C, has the present environment, leads a process group, and ends with this one.
    Raises OSError and EOFError.
    """
    start()
    with _LOCK, nullcontext() if FORKS else _ctrl_c_ignored(), nullcontext() if FORKS else fixed_addresses():
        of = dict(os.environ), target, arguments
        process = CONTEXT.Process(target=_begin, args=of, name=name, daemon=True)
        with _suite_first():
            process.start()
    return process


def _begin(environment: Mapping[str, str], target: Callable[..., None], arguments: tuple) -> None:
    sys.path.remove(FOUND_IN)  # the one of _suite_first
    end_with_parent()
    os.setpgid(0, 0)  # with what its variants start it is a group, which the parent ends
    os.environ.clear()
    os.environ.update(environment)
    # Semaphores that libraries make, such as tqdm's, are then unlinked at once. Of others Python would say
    # on the terminal that they leaked, as this process is killed.
    multiprocessing.set_start_method("fork", force=True)
    target(*arguments)


def end_with_parent() -> None:
    """End this process with the one that started it, whatever it is doing: it must not keep the GPU of a killed run.

    PR_SET_PDEATHSIG would not do: a worker's parent in the system is the server, which lives as long as its workers.
    """

    def watch() -> None:
        multiprocessing.parent_process().join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set some variables for a process that starts meanwhile."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _suite_first() -> Iterator[None]:
    """A process that starts meanwhile takes over the search path, and finds this suite before any other."""
    sys.path.insert(0, FOUND_IN)
    try:
        yield
    finally:
        sys.path.remove(FOUND_IN)


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """A process that starts meanwhile inherits this, so that it ignores Ctrl-C from its first import on."""
    if threading.current_thread() is threading.main_thread():
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)
    else:  # which may not set a handler; a mask is inherited, too
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
