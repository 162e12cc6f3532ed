"""A whole step is as many launches as its variant says."""

import pytest
import torch

from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.verify.buffers import POISONS
from spec_decode_bench.harness.verify.fixture import Fixture, verify_cell
from tests.baselines.random_batches import legal_point

PROLOGUE = {"batch_size": 2, "num_groups": 2, "state_groups": 1, "indexer": "native", "context_len": 100}
PROLOGUE |= {"max_model_len": 300, "history_len": 320, "max_num_seqs": 9, "max_num_batched_tokens": 100, "num_sms": 5}
FLATTEN = {"batch_size": 3, "next_n": 5, "context_len": 300, "max_model_len": 2500, "max_num_seqs": 9}
NATIVE = FLATTEN | {"decode_path": "native"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="counts launches of Triton's interpreter")
@pytest.mark.parametrize(
    ("name", "axes", "launches"),
    [
        ("step_prologue/triton_fused", PROLOGUE, 1),
        ("decode_step/triton_fused", FLATTEN, 1),
        ("decode_step/triton_fused", NATIVE, 1),
        ("decode_step/triton_sequence", FLATTEN, 3),
        ("decode_step/triton_sequence", NATIVE, 3),
    ],
)
def test_launches_of_a_step(monkeypatch, name, axes, launches):
    from triton.runtime.interpreter import GridExecutor

    counted, run = [], GridExecutor.__call__
    monkeypatch.setattr(
        GridExecutor, "__call__", lambda self, *args, **keywords: (counted.append(1), run(self, *args, **keywords))[1]
    )
    catalog, (operator, variant) = discover(), name.split("/")
    bench = Fixture(catalog.operators[operator], legal_point(catalog.operators[operator], axes), "cpu", 1)
    launch = verify_cell(bench, catalog.find(operator, variant), once=True)
    counted.clear()
    bench.check(launch, batch=1, poison=POISONS[0])
    assert len(counted) == launches
