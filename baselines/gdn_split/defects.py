"""Historic bugs of gdn_split, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.gdn_split.chains import scatter_chain
from spec_decode_bench.baselines.gdn_split.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.broken import keeping
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.harness.contract import Point, variant


def _split_by(drafts: torch.Tensor, point: Point, x: Inputs, out: Outputs) -> None:
    """The split where other requests are speculative than the host counted."""
    spec = drafts >= 0
    counts = int(spec.sum()), int(torch.diff(x.query_start_loc)[spec].sum())
    changed = replace(x, num_draft_tokens=drafts, num_spec_requests=counts[0], num_spec_tokens=counts[1])
    scatter_chain(point, changed, out)()


@variant(
    "gdn_split",
    defect="a request that drafted nothing is plain: its accepted count is lost (vLLM #56531, #40738)",
    waives=("no_sync", "graph_safe"),
)
def zero_drafts_plain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return lambda: _split_by(torch.where(x.num_draft_tokens == 0, -1, x.num_draft_tokens), point, x, out)


@variant(
    "gdn_split",
    defect="a chunk as long as a speculative request is taken for one (vLLM #49918, #47123)",
    waives=("no_sync", "graph_safe"),
)
def chunks_by_length(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def launch() -> None:
        longest = torch.diff(x.query_start_loc) == point.next_n
        _split_by(torch.where(longest, point.next_n - 1, x.num_draft_tokens), point, x, out)

    return launch


@variant("gdn_split", defect="rows of padding keep state slots of an earlier batch (vllm-ascend #12040, vLLM #33777)")
def padding_keeps_slots(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(scatter_chain(point, x, out), out.spec_state_slots[x.num_spec_requests :])


@variant("gdn_split", defect="the step's first tokens are taken for the speculative ones (vLLM #51812)")
def speculative_tokens_first(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    spec, numbers = x.num_spec_tokens, torch.arange(x.num_tokens, dtype=torch.int32, device=out.spec_tokens.device)
    return in_sequence(
        scatter_chain(point, x, out),
        lambda: out.spec_tokens[:spec].copy_(numbers[:spec]),
        lambda: out.plain_tokens[: len(numbers) - spec].copy_(numbers[spec:]),
    )


@variant("gdn_split", defect="counts of the batch's first requests are taken for the speculative ones' (vLLM #55504)")
def counts_of_the_first_requests(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    spec = x.num_spec_requests
    return in_sequence(
        scatter_chain(point, x, out), lambda: out.spec_accepted[:spec].copy_(x.num_accepted_tokens[:spec])
    )
