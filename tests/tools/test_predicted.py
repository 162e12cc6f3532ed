"""What a decode loop predicts of a server."""

import numpy as np
import pytest

from tests.decode_loop import factory_loops
from tests.engine_plugin.fakes import two_speeds
from tests.engine_plugin.test_report import run_of
from tests.factory import gpu_environment
from tools.predicted import figure, predictions


@pytest.fixture
def measured():
    return run_of(two_speeds(np.random.default_rng(5), 40, {"engine": 0.0, "suite": -120.0, "packed": -90.0}))


def loops(batch=32):
    """Two loops, of which the first is nearly as fast as the server."""
    lines = []
    for model_step_us, itl in ((2400.0, 3800.0), (4500.0, 9000.0)):
        for stack, change in (("engine", 0.0), ("packed", -60.0), ("suite", -75.0)):
            blocks = [factory_loops.block(n, [itl + change + n + i for i in range(6)]) for n in range(8)]
            axes = {"concurrency": batch, "model_step_us": model_step_us}
            lines.append(factory_loops.loop(stack, blocks, reference="engine", **axes))
    return factory_loops.run(lines, gpu_environment(), name="decode_loop_captured")


def test_the_loop_with_the_servers_itl_predicts(measured):
    found = predictions(measured, loops())
    assert [(one.arm.name, one.model_step_us) for one in found] == [("suite", 2400.0), ("packed", 2400.0)]
    assert [one.predicted.median for one in found] == pytest.approx([-75.0, -60.0])
    assert found[0].measured.median == pytest.approx(-120, abs=40)
    (ax,) = figure(found, [loops(), measured]).axes
    ticks = [tick.get_text().splitlines()[0] for tick in ax.get_xticklabels()]
    assert ticks == ["32 requests, suite", "32 requests, packed"]


def test_a_loop_with_another_batch_size_predicts_nothing(measured):
    assert predictions(measured, loops(batch=8)) == []
