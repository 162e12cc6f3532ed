"""The NVTX ranges of a session as a tool gets them, through NVTX's injection interface."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from spec_decode_bench.harness.nvtx_ranges import DOMAIN, is_listened_to, payload_of
from tests.nvtx_session import BREAKING, CALLS, HEALTHY, OPERATOR

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
KEY = f"{OPERATOR}/{{}}/batch_size=2,context_len=64"
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="needs a C compiler for the listening library"),
    pytest.mark.skipif(sys.platform != "linux", reason="the listening library is built for Linux"),
]


@pytest.fixture(scope="module")
def events(tmp_path_factory) -> list[list[str]]:
    """What a session announced: ["push", domain, category, name, kind of message, payload] and ["pop", domain]."""
    folder = tmp_path_factory.mktemp("nvtx")
    library, log = folder / "listener.so", folder / "log"
    source = Path(__file__).with_name("nvtx_listener.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source], check=True, timeout=60)
    environment = {**os.environ, "NVTX_INJECTION64_PATH": str(library), "NVTX_LISTENER_LOG": str(log)}
    environment.pop("NVTX_DISABLE", None)
    command = [sys.executable, "-m", "tests.nvtx_session"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "breaks_when_timed failed during timing: RuntimeError: broken by now" in done.stdout
    assert "breaks_at_once failed edge case" in done.stdout
    assert f"profile: {KEY.format(BREAKING[0])} RuntimeError: broken by now" in done.stdout
    return [line.split("\t") for line in log.read_text().splitlines()]


def ranges(events):
    """(the ranges around it, category, name, payload) of every range of the suite, in order."""
    found, open_ranges = [], []
    for event in events:
        assert event[1] == DOMAIN
        if event[0] == "push":
            assert event[4] == "registered", "its name is a registered string"
            found.append((tuple(open_ranges), event[2], event[3], event[5]))
            open_ranges.append((event[2], event[3]))
        else:
            open_ranges.pop()
    assert open_ranges == [], "a range was never closed"
    return found


def test_every_range_is_closed_after_failing_variants_too(events):
    names = {name for _, _, name, _ in ranges(events)}
    assert {KEY.format(HEALTHY), KEY.format(BREAKING[0]), f"{OPERATOR}/{BREAKING[1]}/edge cases"} <= names


def test_categories_are_the_phases(events):
    of_healthy = Counter(phase for _, phase, name, _ in ranges(events) if name == KEY.format(HEALTHY))
    # One verification at the point, one after timing; three rounds; a profile of a CPU has no graphs.
    assert of_healthy == {"verify": 2, "warmup": 1, "measure": 3, "eager": 1, "call": CALLS}


def test_nothing_lies_inside_of_a_timed_phase_and_its_payload_holds_the_axes(events):
    """A profile has ranges within ranges, the calls of a cell; a measurement has none."""
    nested = [(outside, phase, name) for outside, phase, name, _ in ranges(events) if outside]
    assert all(outside == (("eager", name),) and phase == "call" for outside, phase, name in nested)
    calls = Counter(name for _, _, name in nested)
    assert calls[KEY.format(HEALTHY)] == CALLS > calls[KEY.format(BREAKING[0])] > 0
    (payload,) = {payload for _, phase, _, payload in ranges(events) if phase in ("warmup", "measure", "eager")}
    assert {"batch_size=2", "next_n=4", "context_len=64"} <= set(payload.split(";"))


def test_a_payload_has_numbers_as_numbers_and_all_else_as_text():
    found = payload_of({"batch_size": 8, "padding": 0.25, "compact": True, "context_len": "uniform(4;8)"})
    assert (found.dtype["batch_size"], found.dtype["padding"]) == (np.int64, np.float64)
    assert found.item() == (8, 0.25, 1, b"uniform(4;8)")
    assert not is_listened_to(), "nobody listens in this process"
