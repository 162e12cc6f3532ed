"""A launch that holds work of the suite's own beside an engine's: what runs, and what is timed."""

import pytest

from spec_decode_bench.harness import engine_launch
from spec_decode_bench.harness.cuda import launcher
from spec_decode_bench.harness.engine_launch import EngineLaunch, own, own_launches
from spec_decode_bench.harness.timing.cache import CALIBRATION_KERNELS
from spec_decode_bench.harness.timing.cuda_timer import CudaTimer
from spec_decode_bench.harness.timing.rounds import PlacedLaunch
from tests.simulated_gpu import simulated_gpu


def noted(*names):
    seen = []
    return seen, [lambda name=name: seen.append(name) for name in names]


def test_all_launches_run_in_order_and_the_suites_own_alone():
    seen, (first, second, third) = noted("back", "engine", "copy")
    inner = EngineLaunch(own(first), None, second)
    launch = EngineLaunch(inner, own(third))
    launch()
    assert seen == ["back", "engine", "copy"]
    seen.clear()
    own_launches(launch)()
    assert seen == ["back", "copy"]
    assert own_launches(EngineLaunch(second)) is None
    assert own_launches(second) is None


def test_only_the_engines_launches_take_time(monkeypatch):
    clock = [0.0]

    def takes(seconds):
        def launch():
            clock[0] += seconds

        return launch

    monkeypatch.setattr(engine_launch, "perf_counter", lambda: clock[0])
    launch = EngineLaunch(own(takes(100)), takes(1), takes(2), own(takes(50)), takes(4))
    assert launch.engine_s() == 7
    waits = []
    assert launch.engine_s(lambda: (waits.append(clock[0]), takes(0.5)())) == 8  # a wait after each run of the engine's
    assert len(waits) == 4 + 2


def spin(microseconds):
    return launcher(CALIBRATION_KERNELS, "spin", 1, 1, int(1000 * microseconds))


def test_the_timer_leaves_out_what_is_the_suites_own():
    with simulated_gpu():
        timer = CudaTimer((1, 2, 4, 8))
        alone = timer.stopwatch(PlacedLaunch(spin(3)))
        around = timer.stopwatch(PlacedLaunch(EngineLaunch(own(spin(7)), spin(3), own(spin(2)))))
        one, other = alone.sample(), around.sample()
        assert around.facts() == alone.facts() == {"launches": 1, "graph_nodes": {"kernel": 1}}
        slope = lambda sample: (sample["graph_us"][8] - sample["graph_us"][1]) / 7  # noqa: E731
        assert slope(other) == pytest.approx(slope(one), abs=0.01)
        stream = lambda sample: sample["stream_us"][8] - sample["stream_us"][1]  # noqa: E731
        assert stream(other) == pytest.approx(stream(one), abs=0.1)
