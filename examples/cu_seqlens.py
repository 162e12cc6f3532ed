"""A minimal operator: cu_seqlens, the exclusive prefix sums of the requests' lengths that ragged attention reads.

    cu_seqlens[0] = 0;  cu_seqlens[b + 1] = cu_seqlens[b] + lengths[b]          b = 0 .. B - 1

Try it with ``--variants examples/cu_seqlens.py``; in the suite it would be baselines/cu_seqlens/operator.py.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads.context_lengths import draw_lengths
from spec_decode_bench.baselines.workloads.decode_batch import int32
from spec_decode_bench.harness.contract import Axis, EdgeCase, Expected, Operator, Point, Rule, variant
from spec_decode_bench.harness.tensors import I32, Tensors, field


class Inputs(Tensors):
    lengths: I32["batch_size"]


class Outputs(Tensors):
    cu_seqlens: I32["max_num_seqs + 1"] = field(read="batch_size + 1")  # entries behind keep their contents


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    value = [0] * (point.max_num_seqs + 1)
    for b, length in enumerate(x.lengths.tolist()):
        value[b + 1] = value[b] + length
    return {"cu_seqlens": Expected(int32(value), untouched=torch.arange(len(value)) > point.batch_size)}


operator = Operator(
    name="cu_seqlens",
    summary="exclusive prefix sums of the requests' lengths",
    axes=(axes.BATCH_SIZE, axes.CONTEXT_LEN, Axis("max_num_seqs", axes.whole(1), 256, "capacity, in requests")),
    rules=[Rule("batch_size ({batch_size}) must not exceed max_num_seqs", lambda p: p.batch_size <= p.max_num_seqs)],
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=lambda p, seed: Inputs(int32(draw_lengths(p.context_len, p.batch_size, np.random.default_rng(seed)))),
    reference=reference,
    bytes_moved=lambda p, x: 4 * (2 * p.batch_size + 1),  # every length read once, every prefix written once
    baseline="padded_cumsum",
    edge_cases=[EdgeCase("B = 1", {"batch_size": 1}), EdgeCase("B = capacity", {"batch_size": 256})],
)


@variant("cu_seqlens", waives="no_alloc")
def padded_cumsum(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """A cumulative sum, padded in front and copied into the buffer."""
    target = out.cu_seqlens[: point.batch_size + 1]

    def launch() -> None:  # the only timed code
        target.copy_(torch.nn.functional.pad(x.lengths.cumsum(0), (1, 0)))

    return launch
