"""What is timed beside a variant that was rejected."""

from msgspec import structs

from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.sweep import task_of
from spec_decode_bench.harness.records.schema import Place, Status, Where
from spec_decode_bench.harness.session import evaluator
from spec_decode_bench.harness.session.messages import Job
from tests.in_process import measured

MINE = """
from spec_decode_bench import variant
from spec_decode_bench.baselines.decode_native.chains import chain_clamp

@variant("decode_native")
def mine(point, x, out):
    right, calls = chain_clamp(point, x, out), []

    def launch():
        calls.append(1)
        right()
        if len(calls) == {wrong}:
            out.buffer.zero_()

    return launch
"""


def test_the_others_are_timed_on_the_first_batch_whichever_one_it_was_rejected_on(tmp_path, monkeypatch):
    passed = Where(Place.EDGE_CASE, "B = 1").finding(Status.PASSED)
    monkeypatch.setattr(evaluator, "EdgeCaseChecks", lambda *_, **__: [passed])
    for wrong in (1, 4, 6):
        (path := tmp_path / f"mine{wrong}.py").write_text(MINE.format(wrong=wrong))
        owner = evaluator.Evaluator(Job("cpu", (str(path),), 0, Measure(max_rounds=3, min_rounds=3), timed=True))
        operator = owner.catalog.operators["decode_native"]
        variants = [owner.catalog.find("decode_native", name) for name in ("chain_clamp", "mine")]
        item = task_of(operator, operator.complete({"batch_size": 3, "context_len": {"uniform": [5, 99]}}), variants)
        owner.bring_up()
        found = measured(owner, structs.replace(item, budget_s=0.1))
        assert {name: cell.status for name, cell in found.items()} == {"chain_clamp": "passed", "mine": "mismatch"}
