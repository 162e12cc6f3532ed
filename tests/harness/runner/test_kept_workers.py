"""Workers that the next run of a command goes on with, with real processes."""

import os
from dataclasses import replace

import pytest

from harness.config.load import Measure, load
from harness.config.sweep import cell_keys, plan
from harness.records.schema import Cell
from harness.runner.kept_workers import KeptWorkers
from harness.runner.protocol import Job
from harness.runner.run import Runner
from tests.harness.cli.test_cli import TINY

JOB = Job("cpu", (), 7, Measure(min_rounds=2, max_rounds=2), timed=True)


@pytest.fixture
def kept():
    workers = KeptWorkers()
    yield workers
    workers.close()


def ended(worker):
    return not os.path.exists(f"/proc/{worker.process_id}")


def test_a_second_run_goes_on_with_the_processes_of_the_first(kept, tmp_path, catalog):
    (tmp_path / "tiny.yaml").write_text(TINY)
    groups = plan(load(tmp_path / "tiny.yaml"), catalog.operators, catalog.variants)
    used = []

    def start(job):
        used.append(kept.start(job))
        return used[-1]

    for budget_s in (0.1, 0.2):
        lines = []
        job = replace(JOB, measure=Measure(min_rounds=2, max_rounds=2, time_budget_s=budget_s))
        runner = Runner(job, lines.append, lambda progress: None, start)
        runner.run(groups)
        runner.close()
        assert [line.key for line in lines if isinstance(line, Cell)] == list(cell_keys(groups))
        assert all(cell.metrics.cpu_us for cell in lines)
    evaluator, comparer = used[:2]
    assert used[2:] == [evaluator, comparer]
    kept.close()
    assert ended(evaluator)
    assert ended(comparer)


def test_another_job_gets_another_process(kept):
    first = kept.start(JOB)
    first.close()
    second = kept.start(replace(JOB, seed=8))
    assert ended(first)
    assert second is not first
    second.close(wait_s=0)  # after an error
    assert ended(second)
    third = kept.start(replace(JOB, seed=8))
    assert third is not second
    third.close()
