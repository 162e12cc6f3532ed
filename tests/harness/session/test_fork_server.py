"""The process that workers are forked from: what it has loaded, and what a worker gets from the command."""

import ctypes
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from spec_decode_bench.harness.addresses import fixed_addresses, has_fixed_addresses
from spec_decode_bench.harness.session import fork_server
from tests.processes import has_ended, run_python
from tests.tier import full


def addresses(connection):
    connection.send((has_fixed_addresses(), ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value))


@full
def test_a_worker_has_the_addresses_of_every_other_one():
    """Also of one that another command starts; where the system forbids it, it says so."""
    program = (
        "from tests.harness.session.test_fork_server import addresses; "
        "from spec_decode_bench.harness.session import fork_server; "
        "ours, theirs = fork_server.CONTEXT.Pipe(duplex=False); "
        "fork_server.started(addresses, (theirs,), 'test'); print(*ours.recv())"
    )
    (fixed, first), (_, second) = (run_python(program).stdout.split() for _ in range(2))
    with fixed_addresses():
        permitted = has_fixed_addresses()
    assert fixed == str(permitted)
    assert first == second or not permitted
    assert not has_fixed_addresses(), "this process keeps its own"


def answer(connection, wanted):
    connection.send((os.environ.get(wanted), os.getpgid(0) == os.getpid(), os.getpgid(os.getppid()) == os.getppid()))


def test_a_process_has_the_environment_of_its_start_and_a_group_of_its_own(monkeypatch):
    """The server is older than the variable, and is in no group that a terminal signals."""
    fork_server.start()
    monkeypatch.setenv("SET_LATER", "seen")
    ours, theirs = fork_server.CONTEXT.Pipe(duplex=False)
    process = fork_server.started(answer, (theirs, "SET_LATER"), "test")
    assert ours.recv() == ("seen", True, True)
    process.join(10)
    assert process.exitcode == 0
    assert "PYTHONSAFEPATH" not in os.environ


def test_starts_in_two_threads_leave_the_environment_as_it_was(monkeypatch):
    """Each saves and restores it: the second one must not save what the first one has set."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr(fork_server.forkserver, "ensure_running", lambda: time.sleep(0.2))
    with ThreadPoolExecutor(2) as threads:
        threads.submit(fork_server.start)
        time.sleep(0.1)
        threads.submit(fork_server.start)
    assert "PYTHONSAFEPATH" not in os.environ


@full
def test_the_server_outlives_the_thread_that_started_it():
    program = (
        "import os, threading; from spec_decode_bench.harness.session import fork_server; "
        "ends = lambda: fork_server.started(os._exit, (5,), 'test').join(60); "
        "thread = threading.Thread(target=ends); thread.start(); thread.join(); "
        "process = fork_server.started(os._exit, (5,), 'test'); process.join(60); print(process.exitcode)"
    )
    done = run_python(program)
    assert (done.stdout, done.stderr) == ("5\n", "")


@full
def test_a_process_that_is_busy_ends_with_the_one_that_started_it():
    """Not with the server, which lives as long as the processes that it has forked."""
    program = (
        "import os, signal, time; from spec_decode_bench.harness.session import fork_server; "
        "process = fork_server.started(time.sleep, (600,), 'test'); print(process.pid, flush=True); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = run_python(program)
    assert done.returncode == -signal.SIGKILL
    assert has_ended(int(done.stdout))


@full
def test_it_loads_torch_and_the_engine_but_no_variant_and_no_triton():
    """Nor may it look for a GPU, as the driver does not survive a fork."""
    program = (
        "import spec_decode_bench.harness.session.preloaded, sys, torch; "
        "print('triton' in sys.modules, torch.cuda.is_initialized(), "
        "'spec_decode_bench.harness.session.evaluator' in sys.modules, "
        "sorted(n for n in sys.modules if n.startswith('spec_decode_bench.') "
        "and n.endswith(('.chains', '.defects', '.triton', '.cuda')) "
        "and n.split('.')[1] in ('baselines', 'kernels', 'upstream')), flush=True)"  # the server ends with os._exit
    )
    done = run_python(program)
    assert (done.stdout, done.stderr) == ("False False True []\n", "")


@pytest.mark.parametrize("name", fork_server.PROFILED)
def test_a_profiled_command_spawns_its_workers(name):
    program = "from spec_decode_bench.harness.session import fork_server; print(fork_server.CONTEXT.get_start_method())"
    done = run_python(program, {**os.environ, name: "/x"})
    assert done.stdout == "spawn\n", done.stderr


@full
def test_a_server_of_workers_for_a_gpu_loads_no_interpreted_triton():
    """Whatever the user, or an earlier command for the CPU, has set."""
    program = (
        "from spec_decode_bench.harness.session import fork_server; "
        "from tests.harness.session.test_fork_server import is_compiled; "
        "fork_server.start('cuda'); ours, theirs = fork_server.CONTEXT.Pipe(duplex=False); "
        "fork_server.started(is_compiled, (theirs,), 'test'); print(ours.recv())"
    )
    assert run_python(program, {**os.environ, "TRITON_INTERPRET": "1"}).stdout == "True\n"


def is_compiled(connection):
    from triton.language import standard
    from triton.runtime.jit import JITFunction

    connection.send(isinstance(standard.cdiv, JITFunction))
