"""The kill test: SIGKILL of a run or of its worker costs at most the current point, and --resume completes the run.

A sweep is killed and resumed until it is complete, then the next one begins, so that both fresh and resumed runs are
killed. With KILLS=50 that happens at moments uniform over the time of a run, start-up included. The suite itself kills
twice, while cells are written.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from spec_decode_bench.harness.records.file import read_run
from tests.processes import ROOT, has_ended
from tests.tier import full

KILLS = int(os.environ.get("KILLS", "2"))
#: Seconds that a run takes.
RUN_S = 8.0
SIZES = tuple(range(301, 313))
CONFIG = f"""\
name: kills
operators: [decode_native]
sweep: [{{batch_size: {list(SIZES)}, context_len: 1000}}]
measure: {{time_budget_s: 3, min_rounds: 200, max_rounds: 200, seed: 5}}
"""
#: Correct variants that log when they are set up at a point of the sweep: which cells had begun when the kill came.
VARIANTS = """\
import os
from spec_decode_bench.baselines.decode_native.chains import chain_clamp, flat_view
from spec_decode_bench.harness.contract import variant

def noted(name, work):
    def setup(point, x, out):
        if point.batch_size > 300:
            with open("log", "a") as log:
                log.write(f"decode_native/{name}/batch_size={point.batch_size},context_len=1000\\n")
        return work(point, x, out)
    setup.__name__ = name
    skip = lambda p: None if (p.row_alignment, p.cp_size) == ("end", 1) else "no"
    return variant("decode_native", skip=skip, waives="no_alloc")(setup)

first = noted("first", chain_clamp)
second = noted("second", flat_view)
"""
WHOLE = {f"decode_native/{name}/batch_size={size},context_len=1000" for name in ("first", "second") for size in SIZES}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Sweep:
    """One run folder that is killed and resumed until complete."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.record, self.lines = folder, folder / "out" / "run.jsonl", []
        (folder / "kills.yaml").write_text(CONFIG)
        (folder / "noted.py").write_text(VARIANTS)

    def start(self) -> subprocess.Popen:
        command = [sys.executable, ROOT / "bench.py", "kills.yaml", "--device", "cpu", "--no-plots"]
        command += ["--variants", "noted.py", "--only", "decode_native/first", "--only", "decode_native/second"]
        command += ["--resume" if self.record.exists() else "--out", "out"]
        to = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=self.folder, start_new_session=True, **to)

    def begun(self) -> Counter[str]:
        """How often each cell has been begun."""
        log = self.folder / "log"
        return Counter(log.read_text().split()) if log.exists() else Counter()

    def content(self) -> bytes:
        return self.record.read_bytes() if self.record.exists() else b""

    def keys(self) -> set[str]:
        """Of the cells, each once; every whole line that was there before is still there, byte by byte."""
        whole = self.content().rpartition(b"\n")[0].splitlines()
        assert whole[: len(self.lines)] == self.lines
        self.lines = whole
        keys = [cell.key for cell in read_run(self.record).cells] if whole else []
        assert len(keys) == len(set(keys))
        return set(keys)

    def wait(self, process: subprocess.Popen) -> None:
        """Until a random moment of the run, or its end."""
        lines = 0 if KILLS >= 10 else len(self.lines) + random.randint(1, max(1, (len(WHOLE) - len(self.lines)) // 2))
        end = time.monotonic() + (60 if lines else random.uniform(0.0, RUN_S))
        while process.poll() is None and time.monotonic() < end and not 0 < lines <= self.content().count(b"\n"):
            time.sleep(0.01)
        time.sleep(random.uniform(0.0, 0.2) if lines else 0.0)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # ended while we looked
        return []


def is_server(pid: int) -> bool:
    try:
        return b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@full
def test_a_kill_costs_at_most_the_current_point(tmp_path_factory):
    make = lambda: Sweep(tmp_path_factory.mktemp("kills"))  # noqa: E731
    sweep = make()
    for number in range(KILLS):
        before, process = sweep.begun(), sweep.start()
        sweep.wait(process)
        servers = [one for one in children(process.pid) if is_server(one)]
        workers = [worker for server in servers for worker in children(server)]
        for pid in workers if number % 2 else [process.pid]:
            os.kill(pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=120)
        assert all(has_ended(pid, 30) for pid in (*servers, *workers)), "nothing outlives its parent"
        keys, begun = sweep.keys(), sweep.begun() - before
        again = {key for key, times in begun.items() if times > 1 or key not in keys}
        assert len({key.rpartition("/")[2] for key in again}) <= 1, again
        if number % 2:
            assert keys == WHOLE, out
            bad = [cell for cell in read_run(sweep.record).cells if cell.status != "passed"]
            assert all(cell.status == "failed" and "killed by SIGKILL" in cell.finding.message for cell in bad), bad
            assert process.returncode == len(bad) <= 1, out
        if keys == WHOLE:
            sweep = make()
    if sweep.record.exists():
        out, _ = (process := sweep.start()).communicate(timeout=120)
        assert process.returncode == 0, out
        assert sweep.keys() == WHOLE
