"""The engines' variants of draft_budget: vLLM's over a made-up engine, SGLang's where its files are there."""

import pytest

from spec_decode_bench.baselines.draft_budget.operator import operator
from spec_decode_bench.harness.discover import discover, unavailable
from spec_decode_bench.harness.packages import file_in
from spec_decode_bench.harness.verify.buffers import POISONS
from spec_decode_bench.harness.verify.fixture import Fixture
from spec_decode_bench.upstream import sglang_draft_budget, vllm_draft_budget, vllm_mamba_align_step
from tests.runnable import DEVICE

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


def check(variant, **changes):
    """Every edge case that the variant takes: poisoned, again, on other inputs. Returns how many these are."""
    taken = 0
    for case in operator.edge_cases:
        point = operator.complete(case.point | changes)
        if variant.skip(point):
            continue
        fixture, taken = Fixture(operator, point, DEVICE, 0, edit=case.edit), taken + 1
        launch = fixture.setup(variant)
        for batch, poison in ((0, POISONS[0]), (0, None), (1, POISONS[1])):
            fixture.check(launch, batch, poison)
    return taken


@pytest.mark.parametrize(
    ("name", "changes"), [("vllm", {}), ("vllm", {"memory": "uva"}), ("vllm_call", {"memory": "uva"})]
)
def test_the_ranking_and_the_method_are_taken_out_of_vllms_file(engine, name, changes):
    assert check(discover().find("draft_budget", name), **changes) >= 25


@pytest.mark.skipif(
    file_in("sglang", sglang_draft_budget.SCHEDULE) is None,
    reason="needs SGLang's files on PYTHONPATH (docs/upstream.md)",
)
@pytest.mark.parametrize("name", ["sglang", "sglang_call"])
def test_sglangs_own_kernels_and_functions(name):
    variant = discover().find("draft_budget", name)
    assert unavailable(variant, DEVICE) is None
    assert check(variant) >= 15
