"""The stopwatch of a CPU: how many launches it puts into a sample."""

from contextlib import contextmanager

import pytest

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.timing import cpu_stopwatch
from spec_decode_bench.harness.timing.cpu_stopwatch import LEAST_SAMPLES, CpuStopwatch


def test_a_slow_first_call_does_not_shorten_the_samples(monkeypatch):
    """It compiled something, or was interrupted. The calls after it take 10 us, and a sample 200 us."""
    now_s, durations_s = [0.0], [1.0]

    def launch():
        now_s[0] += durations_s.pop() if durations_s else 1e-5

    monkeypatch.setattr(cpu_stopwatch, "perf_counter", lambda: now_s[0])
    watch = CpuStopwatch(launch)
    began = now_s[0]
    sample = watch.sample()
    assert abs(now_s[0] - began - 2e-4) < 2e-5
    assert abs(sample["cpu_us"] - 10) < 0.01


def test_a_sample_is_taken_under_the_lock():
    held, calls = [False], []

    @contextmanager
    def lock():
        held[0] = True
        yield
        held[0] = False

    watch = CpuStopwatch(lambda: calls.append(held[0]), host_lock=lock)
    assert not any(calls)
    calls.clear()
    watch.sample()
    assert all(calls)
    assert calls


@pytest.mark.parametrize(("others", "rejected"), [(0.0, False), (0.4, False), (0.6, True), (2.0, True)])
def test_work_of_other_threads_is_rejected_from_half_the_time_of_the_launches_on(others, rejected, monkeypatch):
    """Each launch takes 10 ms of this thread, and ``others`` times as much of others."""
    now_s = [0.0]

    def launch():
        now_s[0] += 1e-2

    monkeypatch.setattr(cpu_stopwatch, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(cpu_stopwatch, "thread_time", lambda: now_s[0])
    monkeypatch.setattr(cpu_stopwatch, "process_time", lambda: now_s[0] * (1 + others))
    watch = CpuStopwatch(launch)
    if rejected:
        with pytest.raises(Mismatch, match="one_thread: other threads ran for"):
            watch.sample()
    else:
        watch.sample()


def take_samples(watch):
    for _ in range(LEAST_SAMPLES):
        watch.sample()


class Pause:
    """A probe that comes before a pause. after: whether no call has come since."""

    after = True

    def arm(self):
        self.after = True

    def check(self, stage):
        pass


def assert_rejected(watch):
    with pytest.raises(Mismatch, match="every_call: a call alone takes"):
        take_samples(watch)


@pytest.mark.parametrize(("in_a_row_us", "rejected"), [(10.0, False), (5.0, False), (1.0, True)])
def test_calls_in_a_row_that_take_less_than_one_alone_are_rejected(in_a_row_us, rejected, monkeypatch):
    """A call takes 10 us after a pause; of many in a row the others take less."""
    now_s, pause = [0.0], Pause()

    def launch():
        now_s[0] += 10e-6 if pause.after else in_a_row_us * 1e-6
        pause.after = False

    monkeypatch.setattr(cpu_stopwatch, "perf_counter", lambda: now_s[0])
    watch = CpuStopwatch(launch, pause)
    if rejected:
        assert_rejected(watch)
    else:
        take_samples(watch)


@pytest.mark.parametrize(
    ("before_us", "interruption_s"),
    [(None, 1e-2), (60.0, 0.0)],
    ids=["the first sample is interrupted", "the calls before it are slow, so it has three"],
)
def test_a_short_or_interrupted_sample_does_not_hide_that_calls_in_a_row_take_less(
    before_us, interruption_s, monkeypatch
):
    """A call takes 10 us after a pause and 1 us in a row.

    before_us: what a call takes before the first sample, if it is something else. interruption_s: of the first call of
    that sample.
    """
    now_s, pause, left_s = [0.0], Pause(), [interruption_s]

    def launch():
        us = 10.0 if pause.after else 1.0
        now_s[0] += (us if watch or before_us is None else before_us) * 1e-6
        pause.after = False
        if watch:
            now_s[0] += left_s.pop() if left_s else 0.0

    watch = None
    monkeypatch.setattr(cpu_stopwatch, "perf_counter", lambda: now_s[0])
    watch = CpuStopwatch(launch, pause)
    assert_rejected(watch)
