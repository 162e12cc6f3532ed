"""The stopwatch of a CPU: how many launches it puts into a sample."""

from contextlib import contextmanager

import pytest

from harness.checks import Mismatch
from harness.timing import cpu_stopwatch
from harness.timing.cpu_stopwatch import LEAST_SAMPLES, CpuStopwatch


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


class Unprobed:
    def arm(self):
        pass

    def check(self, stage):
        pass


@pytest.mark.parametrize(("in_a_row_us", "rejected"), [(10.0, False), (5.0, False), (1.0, True)])
def test_calls_in_a_row_that_take_less_than_one_alone_are_rejected(in_a_row_us, rejected, monkeypatch):
    """A call takes 10 us after a pause; of many in a row the others take less."""
    now_s, paused = [0.0], [True]

    def launch():
        now_s[0] += 10e-6 if paused[0] else in_a_row_us * 1e-6
        paused[0] = False

    class Pause(Unprobed):
        def arm(self):
            paused[0] = True

    monkeypatch.setattr(cpu_stopwatch, "perf_counter", lambda: now_s[0])
    watch = CpuStopwatch(launch, Pause())
    if rejected:
        with pytest.raises(Mismatch, match="every_call: a call alone takes"):
            take_samples(watch)
    else:
        take_samples(watch)


def test_an_interrupted_sample_does_not_hide_that_calls_in_a_row_take_less(monkeypatch):
    """A call takes 10 us after a pause and 1 us in a row; the first of those in the first sample is interrupted."""
    now_s, after_pause, interrupted = [0.0], [True], [False]

    def launch():
        now_s[0] += 10e-6 if after_pause[0] else 1e-6
        after_pause[0] = False
        if not interrupted[0] and watch:
            interrupted[0] = True
            now_s[0] += 1e-2

    class Pause(Unprobed):
        def arm(self):
            after_pause[0] = True

    watch = None
    monkeypatch.setattr(cpu_stopwatch, "perf_counter", lambda: now_s[0])
    watch = CpuStopwatch(launch, Pause())
    with pytest.raises(Mismatch, match="every_call: a call alone takes"):
        take_samples(watch)


def test_slow_calls_before_the_first_sample_do_not_hide_that_calls_in_a_row_take_less(monkeypatch):
    """They take 60 us, so the first sample has three calls; then a call takes 10 us after a pause and 1 us in a row."""
    now_s, after_pause = [0.0], [True]

    def launch():
        now_s[0] += 60e-6 if not watch else 10e-6 if after_pause[0] else 1e-6
        after_pause[0] = False

    class Pause(Unprobed):
        def arm(self):
            after_pause[0] = True

    watch = None
    monkeypatch.setattr(cpu_stopwatch, "perf_counter", lambda: now_s[0])
    watch = CpuStopwatch(launch, Pause())
    with pytest.raises(Mismatch, match="every_call: a call alone takes"):
        take_samples(watch)
