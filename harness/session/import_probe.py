"""Imports the files of --variants in a separate process before the parent does: if an import ends, hangs or breaks its
process, the parent can still report it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from spec_decode_bench.harness import interpreter
from spec_decode_bench.harness.discover import DiscoveryError, import_file
from spec_decode_bench.harness.errors import first_line
from spec_decode_bench.harness.session import fork_server
from spec_decode_bench.harness.session.interrupt import kill_group
from spec_decode_bench.harness.session.worker import EXIT_LIMIT_S, RunError, how_it_ended


class ImportProbe:
    """The process, which starts when it is entered. device: "cuda" or "cpu"."""

    def __init__(self, files: Sequence[str], device: str) -> None:
        self._files, self._device = files, device

    def __enter__(self) -> ImportProbe:
        """Raises RunError where the system starts no process."""
        try:
            self._connection, writer = fork_server.CONTEXT.Pipe(duplex=False)
            self._process = fork_server.started(
                _import_all, (writer, tuple(self._files), self._device), "import of --variants"
            )
        except (OSError, EOFError) as error:
            raise RunError(
                f"could not start a process: {first_line(error)}; see the system's limits with ulimit -a"
            ) from None
        writer.close()
        return self

    def wait(self, limit_s: float) -> None:
        """Raises DiscoveryError for a file that cannot be imported, or not within ``limit_s`` seconds."""
        file = self._files[0]  # before it says which one it imports, it loads torch
        try:
            while self._connection.poll(limit_s):
                file, problem = self._connection.recv()
                if problem is not None:
                    raise DiscoveryError(problem)
                if not file:
                    return
        except (EOFError, OSError):
            self._process.join(EXIT_LIMIT_S)
            code = self._process.exitcode
            how = "closed all its files" if code is None else how_it_ended(code)
            raise DiscoveryError(f"--variants {file}: the process that imported it {how}") from None
        raise DiscoveryError(f"--variants {file}: its import did not finish within {limit_s:g} s")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join(EXIT_LIMIT_S)
        kill_group(self._process.pid)
        self._connection.close()


def _import_all(connection: Connection, files: Sequence[str], device: str) -> None:
    """Body of the process. Sends (file, None) before each import, (file, problem) for one that fails, and ("", None) at
    the end. What it prints is dropped, as the parent imports the same files again.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    interpreter.choose(device)
    for file in files:
        connection.send((file, None))
        problem = None
        try:
            import_file(Path(file))
        except DiscoveryError as error:
            problem = str(error)
        except BaseException as error:
            problem = f"--variants {file}: cannot be imported: {first_line(error)}"
        if problem is None and _closed_a_stream():
            problem = f"--variants {file}: its import closes standard output or standard error"
        if problem is not None:
            connection.send((file, problem))
    connection.send(("", None))
    connection.close()
    os._exit(0)


def _closed_a_stream() -> bool:
    with suppress(OSError):
        for descriptor in (1, 2):
            os.fstat(descriptor)
        return any(stream is not None and stream.closed for stream in (sys.stdout, sys.stderr))
    return True
