"""The variants of vLLM's step: over a made-up engine of the same layout, and over vLLM's files where they are there."""

import importlib
from types import SimpleNamespace

import pytest

from spec_decode_bench.harness.contract import GPU
from spec_decode_bench.harness.discover import discover, unavailable
from spec_decode_bench.harness.engine_launch import EngineLaunch
from spec_decode_bench.harness.packages import file_in
from spec_decode_bench.harness.records.schema import Status
from spec_decode_bench.harness.verify.edge_cases import EdgeCaseChecks
from spec_decode_bench.harness.verify.fixture import Fixture
from spec_decode_bench.upstream import (
    _vllm,
    vllm_dcp_lengths,
    vllm_draft_passes,
    vllm_gather_block_tables,
    vllm_mamba_spec_metadata,
    vllm_post_update,
    vllm_staged_writes,
    vllm_token_requests,
    vllm_window_tables,
)
from spec_decode_bench.upstream._kernel_source import definitions
from tests.decode_loop.loops import decode_loop, parts, shape, workload
from tests.runnable import DEVICE
from tests.tier import few
from tests.upstream import engine_files
from tests.upstream.edge_cases import check

IS_THERE = file_in("vllm", _vllm.SPECULATOR) is not None
needs_vllm = pytest.mark.skipif(not IS_THERE, reason="needs vLLM's files on PYTHONPATH (docs/upstream.md)")
STEP = [
    v for v in discover().variants if v.origin.startswith("spec_decode_bench.upstream.vllm") and GPU not in v.requires
]
CODES = (
    _vllm.LOAD_PTR,
    vllm_dcp_lengths.CODE,
    vllm_draft_passes.STEP,
    vllm_gather_block_tables.CODE,
    vllm_mamba_spec_metadata.ALIGNED_TABLE,
    vllm_post_update.CODE,
    vllm_post_update.STATES,
    vllm_staged_writes.CODE,
    vllm_token_requests.CODE,
    vllm_window_tables.WINDOWS,
    vllm_window_tables.COMPRESSED,
    vllm_window_tables.LISTS,
)


@pytest.fixture
def engine(tmp_path, monkeypatch):
    engine_files.write(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "vllm"
    for code in CODES:
        vars(code).pop("_loaded", None)
    importlib.invalidate_caches()


def edge_cases(operator, *words):
    cases = discover().operators[operator].edge_cases
    return [case for case in cases if not words or any(word in case.name for word in words)]


@pytest.mark.parametrize(
    "name",
    [
        *("gather_block_tables/vllm", "gather_block_tables/vllm_call", "post_update/vllm", "post_update/vllm_call"),
        *("mamba_spec_metadata/vllm_v1", "draft_passes/vllm_v1", "token_requests/vllm", "token_requests/vllm_call"),
        *("dcp_lengths/vllm", "dcp_lengths/vllm_call", "staged_writes/vllm"),
        "window_tables/vllm",
    ],
)
def test_kernels_and_functions_are_taken_out_of_an_engines_files(engine, name):
    variant = discover().find(*name.split("/"))
    assert unavailable(variant, "cpu") is None
    operator = discover().operators[variant.operator]
    cases = [case for case in operator.edge_cases if not variant.skip(operator.complete(case.point))]
    check(variant, cases[:: max(len(cases) // 8, 1)])


@pytest.mark.parametrize("name", ["vllm", "vllm_call"])
def test_state_is_put_back_before_each_call_and_not_where_it_is_one_array(engine, name):
    variant = discover().find("post_update", name)
    axes = {"batch_size": 9, "max_num_seqs": 12, "penalties": "on", "vocab_size": 20, "history_len": 40}
    fixture = Fixture(
        discover().operators["post_update"], discover().operators["post_update"].complete(axes), DEVICE, 0
    )
    launch = fixture.setup(variant)
    for _ in range(3):
        fixture.check(launch, 0, None)
    assert isinstance(launch, EngineLaunch)
    assert {f.status for f in EdgeCaseChecks(discover().operators["post_update"], variant, DEVICE, 0).in_place()} == {
        Status.PASSED
    }
    x, out = fixture.inputs.view, fixture.outputs.view
    assert _vllm.state_of_slots(x.idx_mapping, x.total_len, x.total_len) is None
    assert _vllm.state_of_slots(x.idx_mapping, x.total_len, out.total_len) is not None


def test_variants_without_the_engine_say_what_they_need():
    assert len(STEP) >= 20
    assert not discover().broken
    if not IS_THERE:
        assert all(unavailable(v, "cpu") is not None for v in STEP)


def test_definitions_are_compiled_alone(tmp_path):
    path = tmp_path / "engine.py"
    path.write_text(
        "import nothing_that_is_installed\nSIZE = 4\n\n"
        "class Host(nothing_that_is_installed.Base):\n"
        "    @nothing_that_is_installed.traced\n"
        "    def scaled(self, by: Unknown) -> Unknown:\n"
        "        assert by > 0\n"
        "        return helper(self.size * by) + SIZE\n"
    )
    names = ["SIZE", "Host.scaled"]
    found = definitions(path, names, helper=lambda value: value + 1)
    assert found.scaled(SimpleNamespace(size=3), 2) == 11
    with pytest.raises(AssertionError):
        found.scaled(SimpleNamespace(size=3), 0)
    assert definitions(path, names, asserts=False, helper=abs).scaled(SimpleNamespace(size=3), 0) == 4
    with pytest.raises(LookupError, match=r"engine\.py does not define Host\.other"):
        definitions(path, ["Host.other"])


# --- with vLLM --------------------------------------------------------------------------------------------------------


@needs_vllm
@pytest.mark.parametrize("variant", STEP, ids=lambda v: v.id)
def test_vllms_own_kernels_and_functions(variant):
    if reason := unavailable(variant, DEVICE):
        pytest.skip(f"needs {reason.detail}")
    check(variant, few(edge_cases(variant.operator), 6))
    findings = list(EdgeCaseChecks(discover().operators[variant.operator], variant, DEVICE, 0).in_place())
    assert {finding.status for finding in findings} <= {Status.PASSED}, findings


@needs_vllm
@pytest.mark.parametrize("suffix", ["", "_call"])
@pytest.mark.parametrize("states", [0, 2])
def test_stacks_of_vllm_take_a_turn_in_a_loop(states, suffix):
    """With state in place, through an odd number of steps."""
    sizes = {"by_slot": True, "history_len": 400, "decode_path": "native", "num_requests": 2, "batch_size": 3}
    of = shape(**sizes | {"state_groups": states, "mamba_block_size": 16})
    stack = dict.fromkeys(("step_prologue", "step_epilogue", "draft_passes"), "vllm" + suffix)
    loop = decode_loop(workload(1, of=of, delay=1, steps_per_block=5), {"vllm": parts(of, stack)}, device=DEVICE)
    assert all(loop.block("vllm", number).requests for number in range(2))
