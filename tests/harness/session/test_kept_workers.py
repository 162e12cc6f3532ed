"""Workers that the next run of a command goes on with, with real processes."""

import os
from dataclasses import replace

import pytest

from spec_decode_bench.harness.config.load import Measure, load
from spec_decode_bench.harness.config.sweep import plan
from spec_decode_bench.harness.config.work_items import keys_of
from spec_decode_bench.harness.records.schema import Cell
from spec_decode_bench.harness.session.kept_workers import KeptWorkers
from spec_decode_bench.harness.session.messages import Job
from spec_decode_bench.harness.session.session import Session
from tests.cli.test_cli import TINY

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
    items = plan(load(tmp_path / "tiny.yaml"), catalog.operators, catalog.variants)
    used = []

    def start(job):
        used.append(kept.start(job))
        return used[-1]

    for budget_s in (0.1, 0.2):
        job = replace(JOB, measure=Measure(min_rounds=2, max_rounds=2, time_budget_s=budget_s))
        with Session(job, start) as session:
            cells = [one for one in session.run(items) if isinstance(one, Cell)]
        assert [cell.key for cell in cells] == keys_of(items)
        assert all(cell.metrics.cpu_us for cell in cells)
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
