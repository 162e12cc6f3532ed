"""Every operator: variants on all edge cases and sequences, rejected defects.

decode_flatten and decode_native, which have no test file of their own: worked examples.
"""

import functools

import pytest
import torch

from spec_decode_bench.baselines.decode_flatten.operator import Inputs as FlattenInputs
from spec_decode_bench.baselines.decode_flatten.operator import operator as flatten
from spec_decode_bench.baselines.decode_native.operator import operator as native
from spec_decode_bench.baselines.workloads import torch_compile
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.verify.edge_cases import EdgeCaseChecks
from tests.runnable import defective, healthy
from tests.tier import FULL, full

CATALOG = discover()
#: The check that rejects a defect whose numbers are right. All others are rejected by comparing numbers (exact).
REJECTED_BY = {
    "decode_flatten/chain_clamps_shared_table": "inputs_unchanged",
    "decode_native/ratio_in_place": "inputs_unchanged",
    "decode_native/strided_slice": "contiguous",
    "decode_native/contiguous_per_step": "stable_address",
    "decode_step/fresh_tensors": "stable_address",
    "gather_block_tables/source_masked_in_place": "inputs_unchanged",
    "mamba_state_gather/same_tensor": "stable_address",
    "mla_tile_schedule/fresh_tensors": "stable_address",
}


def test_nothing_is_broken():
    assert CATALOG.broken == {}
    assert set(CATALOG.operators) >= {"decode_flatten", "decode_native"}


#: Operators whose chains a CPU compiles in seconds. The end-to-end test has decode_flatten.
BY_INDUCTOR = ("draft_inputs", "gather_block_tables", "seq_lens_update")
COMPILED = [variant for variant in healthy(compiled=True) if variant.name.startswith("compiled")]
SOON_COMPILED = [variant for variant in COMPILED if variant.operator in BY_INDUCTOR]


class TracingOnly:
    """torch, with a torch.compile that runs eager operators. torch itself must stay as it is, says process_state."""

    compile = functools.partial(torch.compile, backend="eager")

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def newly_compiled(monkeypatch):
    """Forgets what torch.compile made before, and afterwards what it made here."""
    monkeypatch.setattr(torch_compile, "_functions", {})
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@functools.lru_cache(maxsize=1)
def known(operator):
    """Batches that the variants of an operator share, as in a run."""
    return {}


def passes(variant, device, only=None):
    operator, batches = CATALOG.operators[variant.operator], known(variant.operator)
    findings = list(EdgeCaseChecks(operator, variant, device, seed=11, only=only, known=batches))
    assert [f for f in findings if f.status not in ("passed", "skipped")] == []
    assert any(f.status == "passed" for f in findings)


#: Its kernels are those of other variants, so that the full tier alone has it.
SOON = [variant for variant in healthy() if FULL or variant.name != "triton_sequence"]


@pytest.mark.parametrize("variant", SOON, ids=lambda v: v.id)
def test_variant_passes_every_edge_case_and_sequence(variant, device):
    passes(variant, device)


@full
@pytest.mark.parametrize("variant", COMPILED, ids=lambda v: v.id)
def test_compiled_variant_passes_every_edge_case_and_sequence(variant, device, newly_compiled, monkeypatch):
    """On a CPU without Inductor, whose C++ takes seconds for each of many sizes; traces and guards are the same."""
    if device == "cpu":
        monkeypatch.setattr(torch_compile, "torch", TracingOnly())
    passes(variant, device)


@full
@pytest.mark.parametrize("variant", SOON_COMPILED, ids=lambda v: v.id)
def test_what_inductor_makes_for_a_cpu_passes_the_first_edge_case(variant, device, newly_compiled):
    if device == "cuda":
        pytest.skip("there it passes all of them")
    operator = CATALOG.operators[variant.operator]
    points = ((case.name, operator.complete(case.point)) for case in operator.edge_cases)
    passes(variant, device, only=(next(name for name, point in points if not variant.skip(point)), None))


@pytest.mark.parametrize("variant", defective(), ids=lambda v: v.id)
def test_historic_defect_is_rejected(variant, device):
    """Up to the first point that does so by the expected check."""
    check, findings = REJECTED_BY.get(variant.id, "exact"), []
    for finding in EdgeCaseChecks(CATALOG.operators[variant.operator], variant, device, seed=11):
        findings.append(finding)
        if (finding.status, finding.check) == ("mismatch", check):
            break
    assert {f.status for f in findings} <= {"passed", "mismatch", "skipped"}
    assert check in {f.check for f in findings if f.status == "mismatch"}


@pytest.mark.parametrize("operator", CATALOG.operators.values(), ids=lambda o: o.name)
def test_edge_cases_are_legal(operator):
    names = [case.name for case in operator.edge_cases]
    assert len(set(names)) == len(names)
    for case in operator.edge_cases:
        assert set(case.point) <= {axis.name for axis in operator.axes}
        assert operator.broken_rule(operator.complete(case.point)) is None


def test_flatten_worked_example():
    """seq_lens [10, 7, 12, 0], decode lengths [3, 1, 4, 0]."""
    x = FlattenInputs(
        seq_lens=torch.tensor([10, 7, 12, 0], dtype=torch.int32),
        query_start_loc=torch.tensor([0, 3, 4, 8, 8], dtype=torch.int32),
        block_table=torch.arange(1, 9, dtype=torch.int32).view(4, 2),
        query_start_loc_cpu=torch.tensor([0, 3, 4, 8, 8], dtype=torch.int32),
        num_decode_tokens=10,
    )
    point = flatten.complete(
        {
            "batch_size": 4,
            "block_size": 8,
            "max_model_len": 16,
            "max_num_batched_tokens": 12,
            "context_len": 12,
            "token_padding": 2,
        }
    )
    expected = flatten.reference(point, x)
    assert expected["lens"].value.tolist() == [8, 9, 10, 7, 9, 10, 11, 12, 0, 0, 0, 0]
    table = expected["block_table"]
    assert table.value[:10].tolist() == [[1, 2]] * 3 + [[3, 4]] + [[5, 6]] * 4 + [[0, 0]] * 2
    # Columns behind the blocks of a row's own length.
    assert table.may_keep[:10].nonzero().tolist() == [[0, 1], [3, 1], [8, 1], [9, 1]]
    assert bool(table.untouched[10:].all())
    assert expected["decode_lens"].untouched.tolist() == [False] * 10 + [True] * 2


def test_native_worked_example():
    """A padding request with L = 4 gives zeros, not -3 .. 0; both row alignments; compression after expansion."""
    x = native.make_inputs(native.complete({"batch_size": 3, "context_len": 100}), 0)
    x.seq_lens.copy_(torch.tensor([100, 3, 0]))
    x.decode_lens.copy_(torch.tensor([4, 2, 0]))

    def rows(**axes):
        point = native.complete({"batch_size": 3, "context_len": 100, **axes})
        return native.reference(point, x)["buffer"].value[:12].view(3, 4).tolist()

    assert rows() == [[97, 98, 99, 100], [0, 1, 2, 3], [0, 0, 0, 0]]
    assert rows(row_alignment="front") == [[97, 98, 99, 100], [2, 3, 0, 0], [0, 0, 0, 0]]
    assert rows(compress_ratio=4) == [[24, 24, 24, 25], [0, 0, 0, 0], [0, 0, 0, 0]]
