"""Outputs of timed launches, compared in a process that imports no variant."""

import dataclasses

import pytest
import torch

from baselines.decode_native.chains import chain_clamp
from baselines.decode_native.operator import Outputs as NativeOutputs
from baselines.decode_native.operator import operator as native
from harness.config.load import Measure
from harness.contract import Expected
from harness.runner.output_check import OutputCheck
from harness.runner.output_comparer import OutputComparer
from harness.runner.protocol import Compared, Done, Job, Outputs, Task
from harness.runner.supervised_worker import SupervisedWorker
from harness.runner.worker import WorkerDied
from harness.verify.buffers import POISONS
from harness.verify.fixture import Fixture
from tests.fake_worker import KILLED
from tests.processes import run_python

JOB = Job("cpu", (), 0, Measure(), timed=True, role="compare")
POINT = native.complete({"batch_size": 5, "next_n": 3, "context_len": {"uniform": (5, 900)}})
TASK = Task(native.name, dict(POINT), ("chain_clamp",), 0.0, check_seed=77)


def outputs_of(setup, seed=TASK.check_seed, poison=POISONS[0]):
    fixture = Fixture(native, POINT, "cpu", seed=1, batches=1)
    launch = setup(POINT, fixture.inputs.view, fixture.outputs.view)
    fixture.run(launch, fixture.add_batch(seed), poison)
    return Outputs("it", "a call", poison, fixture.contents())


def compared(outputs):
    comparer = OutputComparer(JOB)
    assert list(comparer.group(TASK)) == []
    (answer,) = comparer.compare(outputs)
    return answer


@pytest.mark.parametrize("poison", POISONS)
def test_right_outputs(poison):
    assert compared(outputs_of(chain_clamp, poison=poison)) == Compared(None)


def test_the_answer_to_other_inputs():
    assert compared(outputs_of(chain_clamp, seed=78)).mismatch.startswith("exact: context_lens")


def test_outputs_that_were_not_written():
    assert "poison: never written" in compared(outputs_of(lambda point, x, out: lambda: None)).mismatch


def test_one_wrong_element():
    def off_by_one(point, x, out):
        work = chain_clamp(point, x, out)

        def launch():
            work()
            out.buffer[2] += 1

        return launch

    assert compared(outputs_of(off_by_one)).mismatch is not None


def test_an_output_without_elements(monkeypatch):
    empty = torch.empty(0, dtype=torch.int32)
    nothing = dataclasses.replace(
        native,
        make_outputs=lambda point: NativeOutputs(empty),
        views=lambda point, out: {},
        reference=lambda point, x: {"buffer": Expected(empty)},
    )
    comparer = OutputComparer(JOB)
    monkeypatch.setitem(comparer._operators, native.name, nothing)
    assert list(comparer.group(TASK)) == []
    assert list(comparer.compare(Outputs("it", "a call", POISONS[0], {"buffer": b""}))) == [Compared(None)]


def test_it_imports_no_variant():
    program = (
        "import sys\nfrom harness.config.load import Measure\n"
        "from harness.runner.output_comparer import OutputComparer\n"
        "from harness.runner.protocol import Job\nOutputComparer(Job('cpu', (), 0, Measure(), timed=True))\n"
        "names = ('chains', 'defects', 'triton', 'cuda')\n"
        "print([name for name in sys.modules if name.startswith(('baselines.', 'kernels')) and name.endswith(names)])"
    )
    done = run_python(program)
    assert done.stdout.strip() == "[]", done.stderr


class Dying:
    """Workers of which the first ``deaths`` die when they are asked to compare."""

    up = Done()

    def __init__(self, deaths):
        self.deaths, self.prepared = deaths, 0

    def __call__(self, job):
        return self

    def ask(self, message):
        if isinstance(message, Task):
            self.prepared += 1
            return iter(())
        if self.deaths:
            self.deaths -= 1
            raise WorkerDied(KILLED)
        return iter([Compared("exact: wrong")])

    def close(self, wait_s=0.0):
        pass


@pytest.mark.parametrize(
    ("deaths", "status", "reason"),
    [
        (0, "mismatch", "after timing, a call: exact: wrong"),
        (1, "mismatch", "after timing, a call: exact: wrong"),
        (2, "failed", f"after timing, a call could not be checked: {KILLED}"),
    ],
)
def test_a_process_that_dies_is_asked_once_more(deaths, status, reason):
    workers = Dying(deaths)
    check = OutputCheck(SupervisedWorker(JOB, workers))
    check.prepare(TASK)
    rejection = check.rejection(Outputs("it", "a call", POISONS[0], {}))
    assert (rejection.status, rejection.reason) == (status, reason)
    assert workers.prepared == 1 + min(deaths, 1)
