"""The parent's side of the audit with auditors that die on cue: no cell is lost, and nobody pays for another."""

import pytest

from harness.config.load import Measure
from harness.runner.audit_client import MAX_UNATTRIBUTED_DEATHS, AuditClient
from harness.runner.protocol import Audited, AuditReady, Fatal, Heartbeat, Job, Ready, Task
from harness.runner.supervised_worker import MAX_DEATHS, MAX_STARTS, SupervisedWorker
from harness.runner.worker import WorkerDied
from tests import factory
from tests.fake_worker import AUDIT_READY, KILLED, READY, SILENT, FakeWorkers, auditor, cell
from tests.harness.runner.test_run import groups


def client_of(workers: FakeWorkers) -> AuditClient:
    return AuditClient(SupervisedWorker(Job("cuda", (), 0, Measure(), timed=True, role="audit"), workers))


def point(n=1, names="abc"):
    (group,) = groups(1, names)
    task = Task("o", {"n": n}, tuple(names), 0.0)
    return group, [cell(task, name) for name in names]


def audited(client, *arguments, **named):
    return {one.variant: one for one in client.audited(*point(*arguments, **named))}


def test_what_the_auditor_found_is_joined_and_a_failed_check_is_a_mismatch():
    client = client_of(FakeWorkers(auditor(rejects="b"), [AUDIT_READY]))
    assert client.joined(READY).environment.notes == ()
    found = audited(client)
    assert (found["a"].status, found["a"].metrics.eager_launches, found["a"].metrics.no_audit) == ("passed", 1, None)
    assert (found["b"].status, found["b"].reason, found["b"].metrics) == ("mismatch", "no_sync: it waits", None)


def test_cupti_times_the_calibration_kernels_too():
    import numpy as np

    calibration = factory.calibration(np.random.default_rng(0))
    client = client_of(FakeWorkers(auditor(), [AUDIT_READY]))
    joined = client.joined(Ready(factory.gpu_environment(), calibration, {})).calibration
    assert (joined.own["null"].cupti_us, joined.spins[1000].cupti_us) == ([0.7], [1.7])
    assert joined.own["null"].graph_us == calibration.own["null"].graph_us
    assert joined.own["wide_copy"] == calibration.own["wide_copy"]


def test_another_number_of_launches_under_cupti_is_a_mismatch():
    import msgspec

    def script(task):
        yield Audited("a", {"cupti_launches": 2})

    group, (one,) = point(names="a")
    one = msgspec.structs.replace(one, metrics=msgspec.structs.replace(one.metrics, launches=1))
    (found,) = client_of(FakeWorkers(script, [AUDIT_READY])).audited(group, [one])
    assert (found.status, found.reason) == ("mismatch", "same_work: its graph holds 1 operations, CUPTI saw 2")


@pytest.mark.parametrize(
    ("answer", "starts", "note"),
    [
        (Fatal("RuntimeError: no memory"), 1, "RuntimeError: no memory"),
        (AuditReady({}, {}, "CUPTI delivers nothing"), 1, "CUPTI delivers nothing"),
        (SILENT, 1, "the second process died although no variant had control: no sign of life for 600 s"),
        (WorkerDied(KILLED), MAX_STARTS, f"the second process died although no variant had control: {KILLED}"),
    ],
    ids=["refuses", "blocked", "silent", "dies"],
)
def test_a_run_without_an_auditor_says_so_in_its_notes_and_in_every_cell(answer, starts, note):
    workers = FakeWorkers(auditor(), [answer])
    client = client_of(workers)
    assert client.joined(READY).environment.notes == (f"not audited: {note}",)
    assert client.joined(READY).environment.notes == (f"not audited: {note}",)  # a replaced worker gets the same note
    assert {one.metrics.no_audit for one in audited(client).values()} == {note}
    assert len(workers.started) == workers.closed == starts
    assert workers.asked == []


def test_who_kills_the_auditor_stays_unaudited_and_the_others_are_not():
    workers = FakeWorkers(auditor(dies="b"), [AUDIT_READY])
    client = client_of(workers)
    for n in range(1, MAX_DEATHS + 3):
        found = audited(client, n)
        assert all(one.status == "passed" for one in found.values())
        assert (found["a"].metrics.no_audit, found["c"].metrics.no_audit) == (None, None)
        expected = KILLED if n <= MAX_DEATHS else f"not audited again, it ended the second process {MAX_DEATHS} times"
        assert found["b"].metrics.no_audit == expected
    assert len(workers.started) == 1 + MAX_DEATHS
    assert sum("b" in asked for asked in workers.asked) == MAX_DEATHS


def test_an_auditor_that_dies_between_two_points_costs_nothing_until_it_happens_too_often():
    deaths = [2, 3, 4]

    def script(task):
        if task.axes["n"] in deaths and deaths.pop(0):
            yield WorkerDied(KILLED)
        yield from auditor()(task)

    workers = FakeWorkers(script, [AUDIT_READY])
    client = client_of(workers)
    found = [
        {one.metrics.no_audit for one in client.audited(group, point(n)[1])} for n, group in enumerate(groups(5), 1)
    ]
    assert found[:3] == [{None}] * 3
    assert found[3:] == [{f"the second process died although no variant had control: {KILLED}"}] * 2
    assert len(workers.started) == MAX_UNATTRIBUTED_DEATHS


def test_an_auditor_that_cannot_be_started_again_leaves_the_rest_unaudited():
    client = client_of(FakeWorkers(auditor(dies="a"), [AUDIT_READY, Fatal("gone")]))
    assert {name: one.metrics.no_audit for name, one in audited(client).items()} == {
        "a": KILLED,
        "b": "gone",
        "c": "gone",
    }


def test_an_auditor_in_place_of_one_that_died_calibrates_too():
    """It learns how often its traces wait, and so does not take its own waits for those of a variant."""
    client = client_of(FakeWorkers(auditor(dies="a"), [AUDIT_READY, AuditReady({}, {}, "CUPTI delivers nothing")]))
    assert audited(client)["b"].metrics.no_audit == "CUPTI delivers nothing"


def test_an_answer_that_never_comes_is_no_endless_loop():
    found = audited(client_of(FakeWorkers(lambda task: iter([Heartbeat("a", "audit")]), [AUDIT_READY])))
    assert {one.metrics.no_audit for one in found.values()} == {"the second process did not answer"}
