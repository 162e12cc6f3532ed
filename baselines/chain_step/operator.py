"""chain_step: what one EAGLE step with a chain of drafts (topk = 1) reads of a table with an entry per token.

SGLang keeps req_to_token[r, p], the KV slot of token p of request r, in place of a block table. For row b of the B rows
of a step, with s = seq_lens[b], r = req_pool_indices[b], W = next_n tokens of its chain (the last verified one, then k
= W - 1 drafts), and 0 <= j < W:

    draft_slots[b, j] = req_to_token[r, s + j]     j < k: where the drafter writes
    draft_positions[b] = s                         of its first pass; it counts them up in place
    positions[b, j] = s + j                        of the verified tokens, and of the drafter's extension behind them
    slots[b, j] = req_to_token[r, s + j]
    retrieve[0..2, b, j] = b * W + j,  j + 1 or -1 behind the last,  -1        index, child and sibling in the tree
    tree_mask[b, i, j] = j <= i
    prefix_lens[b] = s,  extend_lens[b] = W,  start_locs[b] = b * W,  post_lens[b] = s + W       of the extension

and for passes i = 1 .. k - 1 of a drafter whose attention takes packed slots (``kv_indices: yes``; FlashInfer, Triton):

    kv_indptr[i - 1, b] = sum of seq_lens[b'] + i over b' < b
    kv_indices[i - 1, kv_indptr[i - 1, b] + p] = req_to_token[r, p]            p < s + i

Nothing depends on a drafted token, so all of it is known before the drafter runs. Rows of padding, up to the size of a
captured graph, have one token in request slot 0, which several may share. Entries of kv_indices behind the last row
keep their contents.

SGLang 0.5.23 takes four launches: assign_draft_cache_locs_contiguous and generate_draft_decode_kv_indices
(kernels/ops/speculative/cache_locs.py) before the drafter, build_chain_tree and prepare_draft_extend_layout (eagle.py
beside it) behind it and behind the verification, called in srt/speculative/eagle_worker_common.py and by the drafter's
attention. The second one also fills the row of a pass k, which no attention reads. The third one's copy of the drafted
tokens is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.chain_step.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.context_lengths import draw_lengths
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, I64, Bool, Tensors, field, view_of

KV_INDICES = Axis(
    "kv_indices", axes.choice("yes", "no"), "yes", "whether the drafter's attention takes packed slots of all tokens"
)
MAX_MODEL_LEN = replace(
    axes.MAX_MODEL_LEN,
    default=32768,
    doc="longest sequence the server admits, and entries per request of the table",
    used={32768: "a short context", 131072: "Llama 3.1", 2**20: "a million tokens"},
)
AXES = slots.bounded(
    axes.BATCH_SIZE,
    replace(axes.NEXT_N, doc="tokens of a chain (W): the last verified one, and the drafts"),
    axes.CONTEXT_LEN,
    MAX_MODEL_LEN,
    axes.PADDING,
    slots.MAX_NUM_SEQS,
    KV_INDICES,
    axes.contents(CONTENTS),
    largest={"batch_size": 4097, "next_n": 65},
)


def passes(point: Point) -> int:
    """Passes of the drafter behind its extension: k - 1."""
    return point.next_n - 2


def drafts(point: Point) -> int:
    return point.next_n - 1


def longest(point: Point) -> int:
    """Entries that a row of any pass has at most."""
    return axes.longest_sequence(point)


def num_rows(point: Point) -> int:
    """Without padding."""
    return point.batch_size - axes.num_padding_requests(point)


def with_kv_indices(point: Point) -> bool:
    return point.kv_indices == "yes"


def _capacity(point: Point) -> int:
    return point.max_num_seqs * longest(point)


class Inputs(Tensors):
    seq_lens: I64["batch_size"]  # tokens before the step, at least 1
    req_pool_indices: I64["batch_size"]  # the request's row of the table
    req_to_token: I32["max_num_seqs", "max_model_len"]


class Outputs(Tensors):
    draft_slots: I64["max_num_seqs", drafts] = field(read="batch_size")
    draft_positions: I64["max_num_seqs"] = field(read="batch_size")
    positions: I64["max_num_seqs", "next_n"] = field(read="batch_size")
    slots: I64["max_num_seqs", "next_n"] = field(read="batch_size")
    tree: I64["3 * max_num_seqs * next_n"]
    retrieve: I64[3, "batch_size", "next_n"] = view_of("tree")
    tree_mask: Bool["max_num_seqs", "next_n", "next_n"] = field(read="batch_size")
    prefix_lens: I32["max_num_seqs"] = field(read="batch_size")
    extend_lens: I32["max_num_seqs"] = field(read="batch_size")
    start_locs: I32["max_num_seqs"] = field(read="batch_size")
    post_lens: I64["max_num_seqs"] = field(read="batch_size")
    kv_indptr: I32[passes, "max_num_seqs + 1"] = field(read=(passes, "batch_size + 1"), where=with_kv_indices)
    kv_indices: I32[passes, _capacity] = field(where=with_kv_indices)


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    """Request slot 0 belongs to padding, if there is any. Slots of tokens are distinct where a request owns them."""
    rng, real = np.random.default_rng(seed), num_rows(point)
    lengths = np.ones(point.batch_size, dtype=np.int64)
    drawn = np.minimum(draw_lengths(point.context_len, real, rng), point.max_model_len)
    lengths[:real] = np.maximum(drawn - point.next_n, 1)
    rows = np.zeros(point.batch_size, dtype=np.int64)
    first = int(real < point.batch_size)
    rows[:real] = rng.permutation(np.arange(first, point.max_num_seqs))[:real]
    table = np.full((point.max_num_seqs, point.max_model_len), slots.UNUSED, dtype=np.int32)
    owned = lengths[: real + first] + point.next_n
    ids = rng.permutation(np.arange(1, int(owned.sum()) + 1, dtype=np.int32))
    for r, mine in zip(rows.tolist(), np.split(ids, owned.cumsum()[:-1]), strict=False):
        table[r, : len(mine)] = mine
    return Inputs(torch.from_numpy(lengths), torch.from_numpy(rows), torch.from_numpy(table))


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """Row by row, token by token; packed slots row by row."""
    rows, width, table = point.batch_size, point.next_n, x.req_to_token.numpy()
    lengths, owners = x.seq_lens.tolist(), x.req_pool_indices.tolist()
    out = Outputs(**{name: torch.zeros_like(buffer) for name, buffer in _present(Outputs.empty(point)).items()})
    tree = out.tree[: 3 * rows * width].view(3, rows, width)
    for b, (s, r) in enumerate(zip(lengths, owners, strict=True)):
        out.draft_positions[b] = s
        out.prefix_lens[b], out.extend_lens[b], out.start_locs[b], out.post_lens[b] = s, width, b * width, s + width
        for j in range(width):
            slot = int(table[r, s + j])
            out.positions[b, j], out.slots[b, j] = s + j, slot
            if j < width - 1:
                out.draft_slots[b, j] = slot
            tree[0, b, j], tree[1, b, j], tree[2, b, j] = b * width + j, j + 1 if j + 1 < width else -1, -1
        out.tree_mask[b] = torch.tensor([[j <= i for j in range(width)] for i in range(width)])
    behind = torch.arange(point.max_num_seqs) >= rows
    expected = {name: Expected(value, untouched=_rows(behind, value)) for name, value in _present(out).items()}
    expected["tree"] = Expected(out.tree, untouched=torch.arange(len(out.tree)) >= 3 * rows * width)
    if with_kv_indices(point):
        for i in range(1, passes(point) + 1):
            start, packed = 0, out.kv_indices[i - 1].numpy()
            for b, (s, r) in enumerate(zip(lengths, owners, strict=True)):
                packed[start : start + s + i] = table[r, : s + i]
                start += s + i
                out.kv_indptr[i - 1, b + 1] = start
        unused = torch.arange(_capacity(point)) >= out.kv_indptr[:, rows : rows + 1]
        no_row = (torch.arange(point.max_num_seqs + 1) > rows).expand(passes(point), -1)
        expected["kv_indptr"] = Expected(out.kv_indptr, untouched=no_row)
        expected["kv_indices"] = Expected(out.kv_indices, untouched=unused)
    return expected


def _present(out: Outputs) -> dict[str, torch.Tensor]:
    return {name: buffer for name, buffer in vars(out).items() if buffer is not None}


def _rows(behind: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The mask of rows for all elements of a buffer."""
    return behind.view(-1, *[1] * (value.dim() - 1)).expand(value.shape) if len(behind) == len(value) else behind


def bytes_moved(point: Point, x: Inputs) -> int:
    """Lengths, rows and the entries of the table once; all that is written."""
    rows, width, count = point.batch_size, point.next_n, passes(point)
    total = int(x.seq_lens.sum())
    written = 8 * (width - 1) + 8 + 8 * width + 8 * width + 24 * width + width * width + 20
    if not with_kv_indices(point):
        return rows * (16 + 4 * width + written)
    packed = count * total + rows * count * (count + 1) // 2
    return rows * (16 + 4 * width + written) + 4 * total + 4 * packed + 4 * count * (rows + 1)


def varied(point: Point) -> Mapping[str, Any]:
    """Lengths within the bound that sizes the packed slots."""
    return {"context_len": {"uniform": [1, longest(point)]}}


operator = Operator(
    name="chain_step",
    summary="slots, positions, tree and packed slots of an EAGLE step with a chain of drafts",
    axes=AXES,
    rules=(
        axes.CONTEXT_FITS,
        axes.LENGTHS_FIT,
        axes.SEQS_FIT,
        Rule("next_n ({next_n}) must be at least 3: one draft takes no further pass", lambda p: p.next_n >= 3),
        Rule(
            "next_n ({next_n}) must be less than max_model_len ({max_model_len}), as a request has a token before",
            lambda p: p.next_n < p.max_model_len,
        ),
        Rule(
            "max_num_seqs ({max_num_seqs}) sequences of context_len ({context_len}), at most {max_model_len}, must "
            "have fewer than 2^31 tokens, as kv_indptr is int32",
            lambda p: _capacity(p) < 2**31,
        ),
        Rule(
            "next_n ({next_n}) must not exceed context_len ({context_len})",
            lambda p: not with_kv_indices(p) or p.next_n < longest(p),
        ),
    ),
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    redundant=slots.redundant,
)
