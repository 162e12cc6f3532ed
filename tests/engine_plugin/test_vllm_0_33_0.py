"""What the adapter of 0.33.0 does otherwise: its batch, steps that it leaves to the engine, rows that are dirty."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from spec_decode_bench.engine_plugin.prologue import Buffers
from spec_decode_bench.engine_plugin.vllm_0_33_0 import PreparedStep, UniformDecode, hooks
from tests.engine_plugin.fakes import Runner, make_session, put_input_batch


def runner_and_arguments():
    runner, none = Runner(), None
    tables = runner.block_tables
    del tables.kernel_block_sizes
    tables.block_sizes, tables._num_dirty_rows, tables.has_sliding_window_groups = [16], 0, False
    runner.adaptive_verification = runner.fast_prefill = runner.pcp_manager = none
    runner.model_state = SimpleNamespace(num_new_sampled_tokens_per_step=1)
    runner.model_config = SimpleNamespace(rswa_window=None)
    runner.input_buffers.is_padding = torch.zeros(Runner.tokens, dtype=torch.bool)
    ids = [f"r{i}" for i in range(Runner.rows)]
    state = SimpleNamespace(
        req_ids=ids,
        num_scheduled_tokens=np.full(Runner.rows, Runner.k + 1, dtype=np.int32),
        num_tokens=Runner.rows * (Runner.k + 1),
        num_draft_tokens_np=np.full(Runner.rows, Runner.k, dtype=np.int32),
        idx_mapping_np=np.array([runner.req_states.req_id_to_index[one] for one in ids], dtype=np.int32),
        prefill_len_np=np.full(Runner.rows, 30),
        num_computed_prefill_tokens_np=np.full(Runner.rows, 30),
        is_prefilling_np=np.zeros(Runner.rows, dtype=bool),
        max_seq_len_np=None,
        has_prefill=False,
        prefill_runs_as_decode_np=None,
        decode_graph_eligible=True,
    )
    described = SimpleNamespace(num_reqs=Runner.padded, num_tokens=Runner.padded * (Runner.k + 1))
    return runner, (runner.output(), state, described, 0)


@pytest.fixture
def step(tmp_path):
    put_input_batch("0.33.0")
    return PreparedStep(make_session(tmp_path, mode="apply"))


def test_a_batch_has_all_fields_of_the_wheels_and_padding_where_experts_skip_it(step, monkeypatch):
    package = ModuleType("vllm")
    package.envs = SimpleNamespace(VLLM_MOE_SKIP_PADDING=True)
    monkeypatch.setitem(sys.modules, "vllm", package)
    runner, given = runner_and_arguments()
    rows = step.rows(runner, given)
    batch = step.batch(runner, given, rows, Buffers(runner, step.index_dtype))
    assert (batch.num_reqs, batch.num_reqs_after_padding, batch.num_tokens_after_padding) == (5, 6, 24)
    assert batch.idx_mapping.dtype == batch.expanded_idx_mapping.dtype == torch.int64
    assert batch.is_padding.tolist() == [False] * 20 + [True] * 4
    assert batch.query_start_loc_np.tolist() == [0, 4, 8, 12, 16, 20, 20]
    assert batch.pcp is None


def test_rows_are_dirty_as_the_engine_would_leave_them(step):
    runner, given = runner_and_arguments()
    step.done(runner, step.rows(runner, given))
    assert runner.block_tables._num_dirty_rows == 5


OTHERS = {
    "a prefill": lambda runner, state: setattr(state, "has_prefill", True),
    "a missing draft": lambda runner, state: state.num_draft_tokens_np.__setitem__(1, 2),
    "no drafts": lambda runner, state: setattr(state, "num_draft_tokens_np", None),
    "more dirty rows than are cleared": lambda runner, state: setattr(runner.block_tables, "_num_dirty_rows", 7),
    "windows": lambda runner, state: setattr(runner.block_tables, "has_sliding_window_groups", True),
    "context parallelism": lambda runner, state: setattr(runner, "pcp_manager", object()),
    "adaptive verification": lambda runner, state: setattr(runner, "adaptive_verification", object()),
    "fast prefill": lambda runner, state: setattr(runner, "fast_prefill", object()),
    "prompts kept in a window": lambda runner, state: setattr(runner.model_config, "rswa_window", 128),
}


@pytest.mark.parametrize("what", OTHERS)
def test_it_leaves_to_the_engine_a_step_with(what, step):
    runner, given = runner_and_arguments()
    assert step.rows(runner, given) is not None
    OTHERS[what](runner, given[1])
    assert step.rows(runner, given) is None


def test_single_tokens_are_flattened_too():
    builder = SimpleNamespace(compress_ratio=1, dcp_world_size=1)
    assert UniformDecode().covers(builder, {"use_native": False, "max_decode_len": 1})
    builder.dcp_world_size = 2
    assert not UniformDecode().covers(builder, {"use_native": False, "max_decode_len": 4})


def test_its_hooks_are_where_the_sampled_counts_are_made(tmp_path):
    places = hooks(make_session(tmp_path, mode="capture"))
    assert "vllm.v1.worker.gpu.spec_decode.rejection_sampler:get_num_sampled_and_rejected" in places
    assert "vllm.v1.worker.gpu.sample.sampler:get_num_sampled_and_rejected" in places
