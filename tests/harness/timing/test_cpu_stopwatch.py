"""The stopwatch of a CPU: how many launches it puts into a sample."""

from contextlib import contextmanager

from harness.timing import cpu_stopwatch
from harness.timing.cpu_stopwatch import CpuStopwatch


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
