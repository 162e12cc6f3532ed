"""run --verified-by: what is timed without being verified again, and which proofs are refused. The command line around
a fake worker, but for the last test.
"""

import hashlib
from pathlib import Path

import pytest
from msgspec import structs

from harness.config.sweep import cells
from harness.records.endings import ending
from harness.records.file import read_run, write_run
from harness.records.schema import Cell, Metrics, Status
from harness.session.messages import Job, Ready
from tests import factory
from tests.fake_worker import FakeWorkers
from tests.harness.cli.test_cli import TINY, call

POINTS = [f"batch_size={size},context_len=uniform(1000;100000)" for size in (3, 4)]
KEYS = [f"decode_native/{name}/{point}" for point in POINTS for name in ("chain_clamp", "flat_view")]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """bench(*arguments): bench.py on two points of two variants, of which flat_view fails at the first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)

    def command(*arguments, environment=None):
        def script(item):
            for name in item.variants:
                if name == "flat_view" and item.axes["batch_size"] == 3:
                    yield item.failed(name, status=Status.MISMATCH, check="exact", message="it differs")
                else:
                    metrics = Metrics(bytes_moved=1, cpu_us=[1.0, 1.1, 1.2], rounds=3)
                    yield item.cell(name, Status.PASSED, metrics=metrics)

        workers = FakeWorkers(script, [Ready(environment or factory.cpu_environment(), None, {})])
        monkeypatch.setattr("harness.cli.run.start_worker", workers)
        code, _, err = call("tiny.yaml", "--device", "cpu", "--no-plots", *arguments)
        return code, " ".join(err.split()), workers

    assert command("--seed", "5", "--out", "proof")[0] == 1
    return command


def edit(change):
    """Write proof/run.jsonl anew with another header."""
    proof = read_run("proof/run.jsonl")
    Path("proof/run.jsonl").unlink()
    header = structs.replace(proof.header, **change(proof.header))
    write_run(structs.replace(proof, header=header), Path("proof/run.jsonl"))


def test_what_passed_is_timed_and_the_rest_keeps_its_status(bench):
    code, err, workers = bench("--verified-by", "proof", "--out", "out")
    assert (code, err) == (1, "")
    assert workers.asked["evaluate"] == [("chain_clamp",), ("chain_clamp", "flat_view")]
    (job,) = workers.started["evaluate"]
    assert (job.verified, job.seed) == (True, 5)
    proof, timed = read_run("proof/run.jsonl"), read_run("out/run.jsonl")
    assert [cell.key for cell in timed.in_order] == KEYS == list(timed.header.cells)
    assert timed.in_order[1] == proof.in_order[1]
    assert ending(timed.in_order[1]) == "exact: it differs"
    digest = hashlib.sha256(Path("proof/run.jsonl").read_bytes()).hexdigest()
    assert timed.header.verified_by == digest[:16]
    assert proof.header.verified_by is None


def test_some_of_its_cells_only(bench):
    code, _, workers = bench("--verified-by", "proof", "--out", "out", "--only", "*batch_size=4*")
    assert code == 0
    assert workers.asked["evaluate"] == [("chain_clamp", "flat_view")]


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (lambda h: {"sources": h.sources | {"harness/": "0"}}, (), "harness/ differs here"),
        (lambda h: {"sources": {"harness/": h.sources["harness/"]}}, (), "differs here"),
        (lambda h: {"sources": {}}, (), "it has no source hashes"),
        (lambda h: {"verified_by": "0123"}, (), "did not verify its own cells"),
        (lambda h: {}, ("--seed", "6"), "it has seed 5, not 6"),
        (
            lambda h: {"config": h.config | {"measure": h.config["measure"] | {"audit": False}}},
            (),
            "its cells were not audited",
        ),
        (lambda h: {}, ("--set", "batch_size=[3,5]"), "it has no cell decode_native/chain_clamp/batch_size=5"),
        (lambda h: {}, ("--only", "*flat_view/batch_size=3*"), "it timed none of these cells"),
        (lambda h: {}, ("--resume", "proof"), "exclude each other"),
    ],
    ids=["engine", "operator", "no hashes", "chained", "seed", "audit", "cell", "nothing", "resume"],
)
def test_a_proof_of_something_else_is_refused(change, arguments, message, bench):
    edit(change)
    out = [] if "--resume" in arguments else ["--out", "out"]
    code, err, _ = bench("--verified-by", "proof", *arguments, *out)
    assert code == 2
    assert message in err
    assert not Path("out/run.jsonl").exists()


@pytest.mark.parametrize("changed", [{"torch": "2.0"}, {"commit": "fffffff"}, {"dirty": True}])
def test_a_proof_of_another_machine_is_refused(changed, bench):
    code, err, _ = bench("--verified-by", "proof", "--out", "out", environment=factory.cpu_environment(**changed))
    assert code == 2
    assert next(iter(changed)) in err
    assert not Path("out/run.jsonl").exists()


WRONG = """
from harness.contract import variant

@variant("decode_native")
def writes_sevens(point, x, out):
    def launch():
        out.buffer.fill_(7)
    return launch
"""


def test_no_edge_case_is_run_and_a_wrong_result_is_still_rejected(tmp_path, monkeypatch):
    """In the evaluator itself."""
    from harness.config.load import Measure
    from harness.session import evaluator

    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.setattr(evaluator, "check_variant", lambda *_, **__: pytest.fail("an edge case was run"))
    measure = Measure(max_rounds=3, min_rounds=3)
    owner = evaluator.Evaluator(Job("cpu", (str(tmp_path / "wrong.py"),), 0, measure, timed=True, verified=True))
    operator = owner.catalog.operators["decode_native"]
    variants = [owner.catalog.find("decode_native", name) for name in ("chain_clamp", "writes_sevens")]
    item = structs.replace(cells(operator, operator.complete({"batch_size": 3}), variants), budget_s=0.1)
    found = {event.variant: event for event in owner.cells(item) if isinstance(event, Cell)}
    right, wrong = found["chain_clamp"], found["writes_sevens"]
    assert (right.status, len(right.metrics.cpu_us)) == ("passed", 3)
    assert wrong.status == "mismatch"
    assert wrong.finding.check == "exact"
