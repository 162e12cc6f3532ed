"""The simulated stream keeps the promises of an engine, whatever the seed."""

import numpy as np
import pytest

from spec_decode_bench.decode_loop.simulation import Simulation
from spec_decode_bench.decode_loop.workload import BLOCKS, STATES, columns_needed
from tests.decode_loop.loops import shape, workload

SEEDS = range(15)


def stream(work):
    simulation = Simulation(work)
    return [step for _ in range(work.blocks) for step in simulation.block()], simulation


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_finished_request_received_its_output(seed, delay):
    work = workload(seed, delay=delay, blocks=6)
    steps, simulation = stream(work)
    received: dict[int, int] = {}
    for step in steps:
        for request, tokens in zip(step.requests, step.delivered, strict=True):
            received[request] = received.get(request, 0) + tokens
    running = {row.request for row in simulation.state.rows if not row.free}
    assert len(received) > 3
    for request, tokens in received.items():
        if request not in running:
            assert tokens == work.outputs[request]
        else:
            assert tokens < work.outputs[request]


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_id_belongs_to_two_rows_and_every_step_has_its_columns(seed, delay):
    work = workload(seed, delay=delay, blocks=4)
    tables: dict[str, list[list[int]]] = {name: [[] for _ in range(3)] for name in (BLOCKS, STATES)}
    steps, _ = stream(work)
    for step in steps:
        for row in step.admitted:
            for rows in tables.values():
                rows[row] = []
        for table, row, column, new in step.entries:
            assert column == len(tables[table][row])
            tables[table][row].append(new)
        for row, computed in enumerate(step.computed):
            for name, needed in columns_needed(work.shape, computed + work.shape.next_n).items():
                assert len(tables[name][row]) >= needed
        for rows in tables.values():
            ids = [one for row in rows for one in row]
            assert len(set(ids)) == len(ids)
            assert 0 not in ids


@pytest.mark.parametrize("seed", SEEDS)
def test_the_host_never_believes_in_less_than_there_is(seed):
    """Under async the host counts all drafts of the step in flight; under sync it knows."""
    for delay in (0, 1):
        for step in stream(workload(seed, delay=delay, blocks=4))[0]:
            over = np.array(step.upper_bounds) - np.array(step.computed)
            assert (over >= 0).all()
            assert (over <= 3 * delay).all()


def test_a_finished_request_holds_its_row_for_one_more_step_under_async():
    work = workload(0, of=shape(num_requests=1, batch_size=1), outputs=np.full(2000, 4), blocks=3, delay=1)
    steps, _ = stream(work)
    in_vain = [step for step in steps if step.delivered == [0]]
    assert in_vain
    assert all(sum(step.delivered) for step in stream(workload(0, of=work.shape, outputs=work.outputs, blocks=3))[0])


def test_the_same_seed_makes_the_same_stream():
    assert stream(workload(5))[0] == stream(workload(5))[0] != stream(workload(6))[0]
