"""The stopwatch of a CPU: how many launches it puts into a sample, and which ones it rejects."""

from contextlib import contextmanager, nullcontext

import pytest

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.timing import cpu_stopwatch
from spec_decode_bench.harness.timing.cpu_stopwatch import LEAST_SAMPLES, CpuStopwatch


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(cpu_stopwatch, "perf_counter", made)
    return made


def rejected(words, is_rejected):
    return pytest.raises(Mismatch, match=words) if is_rejected else nullcontext()


def test_a_slow_first_call_does_not_shorten_the_samples(clock):
    """It compiled something, or was interrupted. The calls after it take 10 us, and a sample 200 us."""
    durations_s = [1.0]

    def launch():
        clock.now_s += durations_s.pop() if durations_s else 1e-5

    watch = CpuStopwatch(launch)
    began = clock.now_s
    sample = watch.sample()
    assert clock.now_s - began == pytest.approx(2e-4, abs=2e-5)
    assert sample["cpu_us"] == pytest.approx(10, abs=0.01)


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
    assert calls
    assert all(calls)


@pytest.mark.parametrize(("others", "is_rejected"), [(0.0, False), (0.4, False), (0.6, True), (2.0, True)])
def test_work_of_other_threads_is_rejected_from_half_the_time_of_the_launches_on(
    others, is_rejected, clock, monkeypatch
):
    """Each launch takes 10 ms of this thread, and ``others`` times as much of others."""

    def launch():
        clock.now_s += 1e-2

    monkeypatch.setattr(cpu_stopwatch, "thread_time", clock)
    monkeypatch.setattr(cpu_stopwatch, "process_time", lambda: clock.now_s * (1 + others))
    watch = CpuStopwatch(launch)
    with rejected("one_thread: other threads ran for", is_rejected):
        watch.sample()


class Pause:
    """A probe that comes before a pause. after: whether no call has come since."""

    after = True

    def arm(self):
        self.after = True

    def check(self, stage):
        pass


#: (us of a call in a row, us of a call before the first sample where it is another, seconds by which the first call of
#: that sample is interrupted, whether it is rejected): a call takes 10 us after a pause.
IN_A_ROW = {
    "as alone": (10.0, None, 0.0, False),
    "half": (5.0, None, 0.0, False),
    "a tenth": (1.0, None, 0.0, True),
    "a tenth, the first sample is interrupted": (1.0, None, 1e-2, True),
    "a tenth, the calls before are slow, so the first sample has three": (1.0, 60.0, 0.0, True),
}


@pytest.mark.parametrize("case", IN_A_ROW)
def test_calls_in_a_row_that_take_less_than_one_alone_are_rejected(case, clock):
    in_a_row_us, before_us, interruption_s, is_rejected = IN_A_ROW[case]
    pause, watch, left_s = Pause(), None, [interruption_s]

    def launch():
        us = 10.0 if pause.after else in_a_row_us
        clock.now_s += (us if watch or before_us is None else before_us) * 1e-6
        pause.after = False
        clock.now_s += left_s.pop() if watch and left_s else 0.0

    watch = CpuStopwatch(launch, pause)
    with rejected("every_call: a call alone takes", is_rejected):
        for _ in range(LEAST_SAMPLES):
            watch.sample()
