"""Outputs of timed launches, compared in a process that imports no variant."""

import dataclasses

import pytest
import torch
from msgspec.structs import replace

from spec_decode_bench.baselines.decode_native.chains import chain_clamp
from spec_decode_bench.baselines.decode_native.operator import Outputs as NativeOutputs
from spec_decode_bench.baselines.decode_native.operator import operator as native
from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.sweep import task_of
from spec_decode_bench.harness.contract import Expected
from spec_decode_bench.harness.session.comparer import OutputComparer
from spec_decode_bench.harness.session.messages import Compared, Job, Outputs
from spec_decode_bench.harness.verify.buffers import POISONS
from spec_decode_bench.harness.verify.fixture import Fixture
from tests.processes import run_python
from tests.tier import full

JOB = Job("cpu", (), 0, Measure(), timed=True, role="compare")
POINT = native.complete({"batch_size": 5, "next_n": 3, "context_len": {"uniform": (5, 900)}})
ITEM = replace(task_of(native, POINT, []), check_seed=77)
AT = {"operator": native.name, "axes": dict(POINT), "point": ITEM.point, "check_seed": 77, "what": "a call"}


def outputs_of(setup, seed=ITEM.check_seed, poison=POISONS[0]):
    fixture = Fixture(native, POINT, "cpu", seed=1, batches=1)
    launch = setup(POINT, fixture.inputs.view, fixture.outputs.view)
    fixture.run(launch, fixture.add_batch(seed), poison)
    return Outputs(**AT, variant="it", poison=poison, contents=fixture.contents())


def compared(outputs):
    comparer = OutputComparer(JOB)
    assert list(comparer.cells(ITEM)) == []
    (answer,) = comparer.compare(outputs)
    return answer.finding


@pytest.mark.parametrize("poison", POISONS)
def test_right_outputs(poison):
    assert compared(outputs_of(chain_clamp, poison=poison)) is None


def test_the_answer_to_other_inputs():
    found = compared(outputs_of(chain_clamp, seed=78))
    assert (found.check, found.tensor, found.when) == ("exact", "buffer", "after_timing")
    assert found.message.startswith("a call: context_lens")


def test_outputs_that_were_not_written():
    assert "poison: never written" in compared(outputs_of(lambda point, x, out: lambda: None)).elements[0]


def test_one_wrong_element():
    def off_by_one(point, x, out):
        work = chain_clamp(point, x, out)

        def launch():
            work()
            out.buffer[2] += 1

        return launch

    found = compared(outputs_of(off_by_one))
    assert (found.index, found.wrong, found.got - found.expected) == ((2,), 1, 1)


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
    written = Outputs(**AT, variant="it", poison=POISONS[0], contents={"buffer": b""})
    assert list(comparer.compare(written)) == [Compared("it", None)]


@full
def test_it_imports_no_variant():
    program = (
        "import sys\nfrom spec_decode_bench.harness.config.load import Measure\n"
        "from spec_decode_bench.harness.session.comparer import OutputComparer\n"
        "from spec_decode_bench.harness.session.messages import Job\n"
        "OutputComparer(Job('cpu', (), 0, Measure(), timed=True))\n"
        "names = ('chains', 'defects', 'triton', 'cuda')\n"
        "print([name for name in sys.modules if ('baselines.' in name or 'kernels.' in name) and name.endswith(names)])"
    )
    done = run_python(program)
    assert done.stdout.strip() == "[]", done.stderr
