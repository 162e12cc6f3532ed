"""The timing loop under a simulated clock: what is sampled when, when it stops, what an exception ends."""

import numpy as np
import pytest

from spec_decode_bench.harness.analysis.stats import fit, slopes
from spec_decode_bench.harness.timing.rounds import RETRIES, interleave


class FakeGpu:
    """A device whose time advances only when something is measured on it."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def now_s(self):
        return self.now


class FakeStopwatch:
    """A launch of known cost: T(k) = overhead + cost * k, times (1 + noise)."""

    leading = "gpu_us"
    replay = None

    def __init__(self, gpu, name, cost_us, noise=0.0, fails_at=None, seed=0):
        self.gpu, self.name, self.cost, self.noise, self.fails_at = gpu, name, cost_us, noise, fails_at
        self.calls, self.rng = 0, np.random.default_rng(seed)

    def sample(self, round_number=0):
        self.calls += 1
        self.gpu.log.append(self.name)
        if self.calls == self.fails_at:
            raise RuntimeError("an illegal memory access was encountered")
        times = {k: (3.0 + self.cost * k) * (1 + self.noise * self.rng.standard_normal()) for k in (1, 2, 4, 8)}
        self.gpu.now += sum(times.values()) * 1e-6
        return {"host_us": 2 * self.cost, "graph_us": times}

    def facts(self):
        return {"launches": 1}


def run(gpu, *stopwatches, **settings):
    settings = {"min_rounds": 5, "max_rounds": 40, "budget_s": 1e9} | settings
    return list(interleave({s.name: s for s in stopwatches}, now_s=gpu.now_s, **settings))[-1]


def test_recovers_a_known_cost_and_stops_as_soon_as_it_is_settled():
    gpu = FakeGpu()
    timing = run(gpu, FakeStopwatch(gpu, "a", 5.0, noise=0.001))["a"]
    metrics = timing.metrics(bytes_moved=1)
    assert timing.stopped == "settled"
    assert timing.rounds == 5
    assert np.median(slopes(metrics.graph_us)) == pytest.approx(5.0, rel=0.005)
    assert fit(metrics.graph_us).overhead == pytest.approx(3.0, abs=0.1)
    assert metrics.launches == 1
    assert metrics.host_us == [10.0] * 5


def test_variants_take_turns_and_the_order_reverses_every_round():
    gpu = FakeGpu()
    run(gpu, *(FakeStopwatch(gpu, name, 1.0) for name in "abc"), min_rounds=3, max_rounds=3)
    assert "".join(gpu.log) == "abccbaabc"


def test_a_noisy_variant_goes_on_after_the_others_have_settled():
    gpu = FakeGpu()
    timings = run(gpu, FakeStopwatch(gpu, "steady", 5.0), FakeStopwatch(gpu, "noisy", 5.0, noise=0.3))
    assert timings["steady"].stopped == "settled"
    assert timings["noisy"].stopped == "rounds"
    assert timings["noisy"].rounds == 40
    assert timings["steady"].rounds < timings["noisy"].rounds


@pytest.mark.parametrize(("spread", "stopped"), [(0.007, "settled"), (0.013, "rounds")])
def test_a_median_is_settled_at_one_per_cent(spread, stopped):
    """As many samples at either end of the spread, so that the interval of the median reaches from end to end."""

    class Alternates(FakeStopwatch):
        leading = "host_us"

        def sample(self, round_number=0):
            self.calls += 1
            return {"host_us": 100 * (1 + (spread if self.calls % 2 else -spread))}

    gpu = FakeGpu()
    assert run(gpu, Alternates(gpu, "a", 1.0))["a"].stopped == stopped


def test_the_budget_ends_a_run_that_does_not_settle_but_not_before_min_rounds():
    gpu = FakeGpu()
    timing = run(gpu, FakeStopwatch(gpu, "a", 1e6, noise=0.5), min_rounds=7, budget_s=1.0)["a"]
    assert timing.stopped == "budget"
    assert timing.rounds == 7


def test_an_exception_ends_one_variant_and_keeps_the_others():
    gpu = FakeGpu()
    timings = run(gpu, FakeStopwatch(gpu, "good", 5.0), FakeStopwatch(gpu, "bad", 5.0, fails_at=3))
    assert str(timings["bad"].error) == "an illegal memory access was encountered"
    assert timings["bad"].stopped == "error"
    assert timings["good"].error is None
    assert timings["good"].stopped == "settled"


def test_every_sample_is_taken_inside_its_own_range():
    gpu, opened = FakeGpu(), []

    class Range:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            opened.append(self.name)

        def __exit__(self, *_):
            assert gpu.log[-1] == self.name

    run(gpu, FakeStopwatch(gpu, "a", 1.0), FakeStopwatch(gpu, "b", 2.0), around=Range, max_rounds=5)
    assert opened == gpu.log


def test_a_variant_without_a_graph_is_settled_by_its_eager_time():
    class Eager(FakeStopwatch):
        leading = "eager_us"

        def sample(self, round_number=0):
            self.calls += 1
            return {"host_us": 1.0, "eager_us": 30.0}

        def facts(self):
            return {"no_graph": "RuntimeError: cannot be captured"}

    gpu = FakeGpu()
    timing = run(gpu, Eager(gpu, "a", 1.0))["a"]
    assert timing.stopped == "settled"
    assert timing.metrics(1).no_graph == "RuntimeError: cannot be captured"
    assert not timing.metrics(1).graph_us


@pytest.mark.parametrize(
    ("throttled", "discarded", "disturbed"),
    [({2, 3, 7}, {"hot": 3}, 0), (range(99), {"hot": 10 * RETRIES}, 10)],
    ids=["at times", "always"],
)
def test_a_throttled_sample_is_repeated_and_after_the_last_retry_kept_and_counted(throttled, discarded, disturbed):
    gpu = FakeGpu()
    watch = FakeStopwatch(gpu, "a", 5.0)
    reason = lambda: "hot" if watch.calls in throttled else None  # noqa: E731
    metrics = run(gpu, watch, throttle_reason=reason, max_rounds=10, min_rounds=10)["a"].metrics(1)
    assert (metrics.discarded, metrics.disturbed, metrics.rounds) == (discarded, disturbed, 10)
    assert len(gpu.log) == 10 + sum(discarded.values())
