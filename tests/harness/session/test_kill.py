"""The kill test: SIGKILL of a run or of its worker costs at most the current point, and --resume completes the run.

A sweep is killed and resumed until it is complete, then the next one begins, so that both fresh and resumed runs are
killed. With KILLS=50 that happens at moments uniform over the time of a run, start-up included. The suite itself kills
twice, while cells are written.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spec_decode_bench.harness.records.file import read_run
from tests.tier import full

ROOT = Path(__file__).parents[3]
KILLS = int(os.environ.get("KILLS", "2"))
#: Seconds that a run takes.
RUN_S = 8.0
SIZES = tuple(range(301, 313))
CONFIG = f"""\
name: kills
operators: [decode_native]
sweep:
  - batch_size: {list(SIZES)}
    context_len: 1000
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
            with open(os.environ["KILL_TEST_LOG"], "a") as log:
                log.write(f"decode_native/{name}/batch_size={point.batch_size},context_len=1000\\n")
        return work(point, x, out)
    setup.__name__ = name
    skip = lambda p: "front" if p.row_alignment == "front" else None
    return variant("decode_native", skip=skip, waives="no_alloc")(setup)

first = noted("first", chain_clamp)
second = noted("second", flat_view)
"""

WHOLE = {f"decode_native/{name}/batch_size={size},context_len=1000" for name in ("first", "second") for size in SIZES}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@dataclass
class Sweep:
    """One run folder that is killed and resumed until complete. lines: of its record, as last seen."""

    folder: Path
    lines: list[bytes] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def record(self) -> Path:
        return self.folder / "out" / "run.jsonl"

    def start(self) -> subprocess.Popen:
        where = ["--resume", "out"] if self.record.exists() else ["--out", "out"]
        command = [sys.executable, str(ROOT / "bench.py"), "kills.yaml", "--device", "cpu", "--no-plots"]
        command += ["--variants", "noted.py", "--only", "decode_native/first", "--only", "decode_native/second", *where]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=os.environ | {"KILL_TEST_LOG": str(self.log)},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def begun(self) -> Counter[str]:
        """How often each cell has been begun."""
        return Counter(self.log.read_text().split()) if self.log.exists() else Counter()

    def check_lines(self) -> list[str]:
        """Every whole line that was there before is still there, byte by byte; keys of the cells."""
        content = self.record.read_bytes() if self.record.exists() else b""
        whole = content[: content.rfind(b"\n") + 1].splitlines()
        assert whole[: len(self.lines)] == self.lines
        self.lines = whole
        keys = [cell.key for cell in read_run(self.record).cells] if whole else []
        assert len(keys) == len(set(keys)), "a cell stands twice in the record"
        return keys


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    def sweep() -> Sweep:
        folder = tmp_path_factory.mktemp("kills")
        (folder / "kills.yaml").write_text(CONFIG)
        (folder / "noted.py").write_text(VARIANTS)
        return Sweep(folder)

    return sweep


def children(pid: int) -> list[int]:
    """Workers of a run: the children of its fork server."""
    try:
        found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        servers = [child for child in found if b"forkserver" in Path(f"/proc/{child}/cmdline").read_bytes()]
        return [int(child) for one in servers for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
    except OSError:  # ended while we looked
        return []


def alive(group: int) -> list[str]:
    """Command lines of the processes of a group that still run; a zombie only waits for init to notice it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, its_group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # ended while we looked
            pass
    return found


def check_no_orphan(group: int) -> None:
    """Worker and resource tracker end with the parent, as soon as a busy machine lets them."""
    end = time.monotonic() + 30
    while left := alive(group):
        assert time.monotonic() < end, f"outlived its parent by 30 s: {left}"
        time.sleep(0.01)


def wait(sweep: Sweep, process: subprocess.Popen, rng: random.Random) -> None:
    """Until a random moment of the run, or its end."""
    left = len(WHOLE) - len(sweep.lines)
    lines = 0 if KILLS >= 10 else len(sweep.lines) + rng.randint(1, max(1, left // 2))
    end = time.monotonic() + (60 if lines else rng.uniform(0.0, RUN_S))
    while process.poll() is None and time.monotonic() < end:
        if lines and sweep.record.exists() and sweep.record.read_bytes().count(b"\n") >= lines:
            time.sleep(rng.uniform(0.0, 0.2))
            return
        time.sleep(0.01)


@full
def test_a_kill_costs_at_most_the_current_point(make):
    rng, sweep, killed = random.Random(), make(), 0
    while killed < KILLS:
        victim, before = ("run", "worker")[killed % 2], sweep.begun()
        process = sweep.start()
        wait(sweep, process, rng)
        for pid in [process.pid] if victim == "run" else children(process.pid):
            os.kill(pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=120)
        check_no_orphan(process.pid)
        killed += 1
        keys, begun = set(sweep.check_lines()), sweep.begun() - before
        again = {key for key in begun if key not in keys} | {key for key, times in begun.items() if times > 1}
        assert len({key.rpartition("/")[2] for key in again}) <= 1, again
        if victim == "worker":
            assert keys == WHOLE, out
            bad = [cell for cell in read_run(sweep.record).cells if cell.status != "passed"]
            assert all(cell.status == "failed" and "killed by SIGKILL" in cell.finding.message for cell in bad), bad
            assert process.returncode == len(bad) <= 1, out
        if keys == WHOLE:
            sweep = make()
    if sweep.record.exists():
        out, _ = (process := sweep.start()).communicate(timeout=120)
        assert process.returncode == 0, out
        assert set(sweep.check_lines()) == WHOLE
