"""Launches whose state outputs are the arrays that they read, as in an engine."""

import pytest
import torch

from harness.discover import discover
from harness.verify.equality import compare
from harness.verify.fixture import synchronize
from tests.baselines.random_batches import drawn
from tests.runnable import DEVICE, healthy, on_device

COUNTS = {name: name for name in ("num_computed_tokens", "total_len", "output_bin_counts")}
OF_EPILOGUE = {"penalties": "on", "vocab_size": 20, "history_len": 40}
ALIGNED = {"batch_size": 9, "max_num_seqs": 12, "mamba_block_size": 8, "max_model_len": 100}
ALIGNED |= {"context_len": {"uniform": [8, 100]}}
#: (operator, axes, output -> the input in whose array it lies).
CASES = [
    ("post_update", OF_EPILOGUE | {"batch_size": 9, "max_num_seqs": 12, "acceptance": 0.6}, COUNTS),
    (
        "step_epilogue",
        OF_EPILOGUE
        | {"batch_size": 7, "max_num_seqs": 9, "max_num_batched_tokens": 100, "padding": 0.2}
        | {"states": "yes", "mamba_block_size": 8, "max_model_len": 300, "context_len": {"uniform": [8, 300]}},
        COUNTS,
    ),
    (
        "mamba_align_step",
        ALIGNED | {"phase": "before_forward"},
        {"num_accepted_tokens": "num_accepted_tokens_before", "state_columns": "state_columns_before"},
    ),
    ("mamba_align_step", ALIGNED | {"phase": "after_sampling"}, {"num_accepted_tokens": "num_accepted_tokens_before"}),
    (
        "mamba_spec_metadata",
        {"batch_size": 9, "mamba_block_size": 4, "acceptance": 0.3, "max_model_len": 64}
        | {"context_len": {"uniform": [4, 64]}},
        {"next_anchors": "anchors"},
    ),
]


@pytest.mark.parametrize(
    ("variant", "axes", "state"),
    [
        pytest.param(variant, axes, state, id=f"{variant.id} {axes.get('phase', '')}".strip())
        for name, axes, state in CASES
        for variant in healthy(name, compiled=DEVICE == "cuda")
    ],
)
def test_one_array_as_input_and_output(variant, axes, state):
    operator = discover().operators[variant.operator]
    point, inputs = drawn(operator, axes, 3)
    x = on_device(inputs)
    out = on_device(operator.make_outputs(point), **{name: getattr(x, of) for name, of in state.items()})
    tensors = {name: tensor for name, tensor in vars(out).items() if isinstance(tensor, torch.Tensor)}
    before = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
    variant.setup(point, x, out)()
    synchronize(DEVICE)
    for name, expected in operator.reference(point, inputs).items():
        compare(name, tensors[name].cpu(), before[name], expected)
