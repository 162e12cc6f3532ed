"""decode_flatten and decode_step in the place of vLLM's functions, on a builder without a GPU."""

from types import SimpleNamespace

import pytest
import torch

from spec_decode_bench.baselines.paged_mqa_schedule import operator as paged_mqa_schedule
from spec_decode_bench.engine_plugin.indexer import Indexer
from spec_decode_bench.engine_plugin.session import Step
from spec_decode_bench.engine_plugin.vllm_0_22_1 import UniformDecode
from tests.engine_plugin.fakes import lines_of, make_session

ROWS, WIDTH, COLUMNS, TOKENS, SMS, BLOCK = 5, 4, 16, 64, 132, 64
MODEL = {"model": "tiny", "method": "mtp", "num_drafts": 3}


def make_builder():
    int32 = {"dtype": torch.int32}
    return SimpleNamespace(
        kv_cache_spec=SimpleNamespace(block_size=BLOCK),
        num_sms=SMS,
        compress_ratio=1,
        decode_seq_lens_buffer=torch.zeros(TOKENS, **int32),
        decode_lens_buffer=torch.zeros(TOKENS, **int32),
        expanded_block_table_buffer=torch.zeros(TOKENS, COLUMNS, **int32),
        scheduler_metadata_buffer=torch.zeros(SMS + 1, 2, **int32),
    )


def prepare(builder, seq_lens, block_table, decode_lens, decode_lens_cpu, query_start_loc, num_decodes, **others):
    """As the engine flattens rows of several lengths: it reads decode_lens and writes the buffer that holds them."""
    total = int(decode_lens_cpu.sum())
    offsets = torch.repeat_interleave(seq_lens - decode_lens - query_start_loc, decode_lens, output_size=total)
    builder.decode_seq_lens_buffer[:total] = offsets + torch.arange(total) + 1
    builder.decode_seq_lens_buffer[total:] = 0
    builder.expanded_block_table_buffer[:total] = block_table.repeat_interleave(decode_lens, dim=0, output_size=total)
    builder.decode_lens_buffer[:total] = 1
    buffers = builder.decode_seq_lens_buffer, builder.expanded_block_table_buffer, builder.decode_lens_buffer
    return *(buffer[:total] for buffer in buffers), total, False


def schedule(context_lens, block_size, num_sms):
    point = paged_mqa_schedule.operator.complete({"batch_size": len(context_lens), "next_n": 1, "num_sms": num_sms})
    (found,) = paged_mqa_schedule.reference(point, paged_mqa_schedule.Inputs(context_lens.view(-1, 1))).values()
    return found.value


def run_step(session, builder, lens, query):
    """(what prepare returned, schedule). query: tokens of each request."""
    starts = torch.tensor([0, *query]).cumsum(0).int()
    builder.decode_lens_buffer[: len(query)] = starts.diff()
    indexer = Indexer(session, UniformDecode())
    session.begin(Step(len(query), True, dict), lambda: MODEL)
    result = indexer._tensors(prepare)(
        builder,
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        block_table=torch.arange(1, 1 + len(lens) * COLUMNS, dtype=torch.int32).view(-1, COLUMNS),
        decode_lens=builder.decode_lens_buffer[: len(query)],
        decode_lens_cpu=torch.tensor(query, dtype=torch.int32),
        query_start_loc=starts[:-1],
        num_decodes=len(query),
        num_decode_tokens=sum(query),
        use_native=False,
        next_n=WIDTH,
        max_decode_len=max(query),
    )
    return result, indexer._schedule(schedule)(result[0].unsqueeze(-1), BLOCK, SMS)


LENS = [300, 7, 900, 64, 513]


@pytest.mark.parametrize("operator", ["decode_flatten", "decode_step"])
@pytest.mark.parametrize("query", [[WIDTH] * ROWS, [4, 1, 3, 4, 2]], ids=["uniform", "mixed"])
def test_a_checked_step_leaves_the_engine_with_its_own_results(operator, query, tmp_path):
    """In the mixed step the engine's function reads ``decode_lens``, which lie where a checked launch has written: with
    ones in their place its repeat_interleave gets another total, an assertion on the GPU that ends the engine.
    """
    session = make_session(tmp_path, mode="check", stack={operator: "triton_fused"}, steps=4, settle=1)
    builder, alone = make_builder(), make_builder()
    for _ in range(7):
        result, _ = run_step(session, builder, LENS, query)
    silent = make_session(tmp_path / "..", mode="capture", limit=1, out=str(tmp_path / "silent"))
    expected, _ = run_step(silent, alone, LENS, query)
    assert [torch.equal(one, two) for one, two in zip(result[:3], expected[:3], strict=True)] == [True] * 3
    (line,) = lines_of(tmp_path)
    assert line["checked"][operator] >= 4
    assert "finding" not in line


def test_decode_step_returns_the_buffer_itself_so_that_the_engine_copies_nothing(tmp_path):
    session = make_session(tmp_path, mode="apply", stack={"decode_step": "triton_fused"}, first=1, every=10**6)
    builder = make_builder()
    for _ in range(3):
        (lens, *_), made = run_step(session, builder, LENS, [WIDTH] * ROWS)
    assert made is builder.scheduler_metadata_buffer
    assert torch.equal(made, schedule(lens, BLOCK, SMS))


def test_steps_of_a_drafter_are_the_engines_own(tmp_path):
    session = make_session(tmp_path, mode="apply", stack={"decode_flatten": "triton_fused"}, first=1, every=10**6)
    builder = make_builder()
    run_step(session, builder, LENS, [1] * ROWS)
    run_step(session, builder, LENS, [1] * ROWS)
    assert session._host == {}
