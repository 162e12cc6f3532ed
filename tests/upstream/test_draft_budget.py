"""vLLM's variants of draft_budget over a made-up engine."""

import pytest

from spec_decode_bench.harness.discover import discover
from spec_decode_bench.upstream import vllm_draft_budget, vllm_mamba_align_step
from tests.upstream.edge_cases import check

#: The code is this suite's. It stands for what upstream/ takes out of vLLM's files; it is not vLLM's.
MANAGER = """
def _assign_draft_token_budget(confidence_probs, idx_mapping, capacities, draft_budget, num_steps):
    p = confidence_probs[idx_mapping].cumprod(1)
    p[torch.arange(num_steps) >= capacities[:, None]] = -1
    first = p.flatten().sort(descending=True, stable=True).indices[:draft_budget]
    capacities.copy_(torch.bincount(first // num_steps, minlength=len(capacities)))

class AdmittedDraftCounts:
    pass

class AdaptiveVerificationManager:
    def reallocate_drafts(self, req_ids, idx_mapping) -> AdmittedDraftCounts:
        (drafts, others, budget), self._batch_budget = self._batch_budget, None
        counts = self._batch_draft_capacity[: len(req_ids)]
        async_tensor_h2d([drafts[one] for one in req_ids], out=counts)
        if not budget:
            counts.zero_()
        elif budget < sum(drafts.values()):
            steps = self.num_speculative_steps
            _assign_draft_token_budget_compiled(self._confidence_probs, idx_mapping, counts, budget, steps)
        rest = async_tensor_h2d([others[one] for one in req_ids], out=self._num_non_draft_tokens[: len(req_ids)])
        boundaries = (self._cu_num_logits, counts + self.num_bonus_tokens), (self.query_start_loc, counts + rest)
        for starts, lens in boundaries:
            starts[0] = 0
            starts[1 : len(lens) + 1] = lens.cumsum(0)
        self.query_start_loc[len(req_ids) + 1 :] = sum(others.values()) + budget
"""
STAGING = """
def async_tensor_h2d(data, out):
    return out.copy_(torch.tensor(data))
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    for name, text in ((vllm_draft_budget.FILE, MANAGER), (vllm_mamba_align_step.TORCH_UTILS, STAGING)):
        path = tmp_path / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(vllm_draft_budget, "compiled", lambda ranking, *_: ranking)
    loaded = (vllm_draft_budget.RANKING, vllm_draft_budget.METHOD, vllm_mamba_align_step.STAGING)
    for code in loaded:
        vars(code).pop("_loaded", None)
    yield
    for code in loaded:
        vars(code).pop("_loaded", None)


@pytest.mark.parametrize(
    ("name", "changes"), [("vllm", {}), ("vllm", {"memory": "uva"}), ("vllm_call", {"memory": "uva"})]
)
def test_the_ranking_and_the_method_are_taken_out_of_vllms_file(engine, name, changes):
    assert check(discover().find("draft_budget", name), **changes) >= 25
