"""Grids of captured inputs: what was captured is what a fixture holds; what is not legal is left out, with why."""

import dataclasses

import pytest
import torch

from spec_decode_bench.baselines.workloads.decode_batch import UNUSED_BLOCK_ID
from spec_decode_bench.harness.captures import Used
from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.config import captured as grids
from spec_decode_bench.harness.config.captured import entry_of, left_out
from spec_decode_bench.harness.config.load import ConfigError, Measure, load
from spec_decode_bench.harness.config.sweep import expand, plan
from spec_decode_bench.harness.config.work_items import AtPoint, Check, keys_of
from spec_decode_bench.harness.contract import CAPTURE, Point
from spec_decode_bench.harness.errors import CaptureError
from spec_decode_bench.harness.records.schema import Code, Status
from spec_decode_bench.harness.session.evaluator import Evaluator
from spec_decode_bench.harness.session.messages import Job
from spec_decode_bench.harness.session.sources import source_hashes
from spec_decode_bench.harness.verify.fixture import Fixture, verify_cell
from tests import captured
from tests.runnable import variant_of

STEP = {"batch_size": 5, "context_len": {"uniform": [40, 200]}, "max_model_len": 256}
BLOCKS = STEP | {"block_size": 16}
SLOTS = STEP | {"max_num_seqs": 8}
TOKENS = {"max_num_batched_tokens": 64}
HYBRID = {"batch_size": 5, "context_len": 200, "max_model_len": 256, "mamba_block_size": 32, "max_num_seqs": 8}
#: Operator -> axes: everything that an engine's hooks capture.
OPERATORS = {
    "decode_flatten": BLOCKS | TOKENS | {"token_padding": 4, "table_padding": 3},
    "paged_mqa_schedule": {"batch_size": 20, "lens_layout": "1d", "context_len": 300},
    "decode_step": BLOCKS | TOKENS | {"decode_path": "flatten"},
    "step_inputs": SLOTS | TOKENS | {"history_len": 300},
    "gather_block_tables": BLOCKS | {"max_num_seqs": 8, "memory": "uva"},
    "compute_slot_mappings": SLOTS | BLOCKS | TOKENS | {"padding": 0.3},
    "step_prologue": SLOTS | BLOCKS | TOKENS | {"padding": 0.3, "history_len": 300},
    "post_update": SLOTS | {"vocab_size": 500},
    "step_epilogue": SLOTS | TOKENS,
    "draft_inputs": SLOTS | TOKENS,
    "mamba_spec_metadata": HYBRID,
}


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Writes a configuration with a capture of entries, and loads it."""
    monkeypatch.chdir(tmp_path)

    def configured(entries, operators, sweep="[{capture: llama.capture}]", **more):
        if entries is not None:
            captured.write(tmp_path / "llama.capture", entries)
        lines = [f"name: c\noperators: [{', '.join(operators)}]\nsweep: {sweep}\n"]
        (tmp_path / "c.yaml").write_text("".join(lines))
        return load("c.yaml", more)

    return configured


@pytest.fixture
def two_steps(catalog):
    """Entries of two operators in steps 10 and 60, and once more in the latter, as for a drafter's pass."""
    return [
        captured.generated(catalog.operators[name], seed, step, **OPERATORS[name])
        for seed, step in ((1, 10), (2, 60), (3, 60))
        for name in ("decode_flatten", "paged_mqa_schedule")
    ]


def test_each_entry_is_a_point_with_a_key_of_its_own(configured, two_steps, catalog):
    source = configured(two_steps, ["decode_flatten", "paged_mqa_schedule"])
    items = plan(source, catalog.operators, catalog.variants)
    label = "batch_size=5,context_len=uniform(40;200),max_model_len=256,token_padding=4,block_size=16,table_padding=3"
    labels = [f"{label},max_num_batched_tokens=64,capture=llama@{step}" for step in ("10", "60", "60.1")]
    assert [item.point for item in items if item.operator == "decode_flatten"] == labels
    assert len(set(keys_of(items))) == len(keys_of(items))
    operator = catalog.operators["decode_flatten"]
    assert operator.spelt_out(items[0].axes).endswith(",capture=llama@10")
    chosen = plan(source, catalog.operators, catalog.variants, ["*/op_chain/*capture=llama@60"])
    assert [(item.operator, item.point[-10:], item.variants) for item in chosen] == [
        ("decode_flatten", "e=llama@60", ("op_chain",)),
        ("paged_mqa_schedule", "e=llama@60", ("op_chain",)),
    ]


@pytest.mark.parametrize("name", OPERATORS)
def test_what_was_captured_is_what_the_fixture_holds(name, configured, catalog):
    """Same bytes, same inputs, same answer; and every variant that runs here is right on them."""
    operator, axes = catalog.operators[name], OPERATORS[name]
    source = configured([captured.generated(operator, 123, 4, **axes)], [name])
    assert left_out(source, catalog.operators) == []
    ((_, point),) = expand(source, catalog.operators)
    assert Point({axis: value for axis, value in point.items() if axis != CAPTURE}) == operator.complete(axes)
    made = Fixture(operator, operator.complete(axes), "cpu", 123, batches=1)
    fixture = Fixture(operator, point, "cpu", 5)
    for field in dataclasses.fields(made.inputs.view):
        one, other = (getattr(f.batches[0].inputs, field.name) for f in (fixture, made))
        if isinstance(other, torch.Tensor):
            assert (one.dtype, one.stride()) == (other.dtype, other.stride())
            assert torch.equal(one, other), field.name
        else:
            assert one == other, field.name
    assert fixture.bytes_moved == made.bytes_moved
    for output, expected in made.batches[0].expected.items():
        assert torch.equal(fixture.batches[0].expected[output].value, expected.value), output
    variants = ("op_chain", "triton_fused") if axes.get("memory") != "uva" else ("triton_fused",)
    for variant in variants:
        verify_cell(fixture, catalog.find(name, variant), once=True)


def test_a_table_that_was_cut_reads_as_generated_ones_do(configured, catalog):
    """Used blocks from the file, and behind them the number at which a stray read stops."""
    operator = catalog.operators["decode_flatten"]
    entry = captured.generated(operator, 1, 3, **OPERATORS["decode_flatten"])
    table, lens = entry[3]["block_table"], entry[3]["seq_lens"]
    used = torch.arange(table.shape[1]) < -(-lens[:, None] // 16)
    stale = torch.where(used, table, 5)  # as an engine leaves them
    entry[3]["block_table"] = Used(stale, used, UNUSED_BLOCK_ID)
    ((_, point),) = expand(configured([entry], ["decode_flatten"]), catalog.operators)
    fixture = Fixture(operator, point, "cpu", 5)
    assert torch.equal(fixture.batches[0].inputs.block_table, table)
    verify_cell(fixture, catalog.find("decode_flatten", "op_chain"))


def test_other_batches_are_generated_at_the_same_point(configured, two_steps, catalog):
    """So that a launch that remembers its inputs is found out, and new inputs after timing are new."""
    ((operator, point), *_) = expand(configured(two_steps, ["decode_flatten"]), catalog.operators)
    fixture = Fixture(operator, point, "cpu", 5)
    contents = [fixture.batches[i].inputs.seq_lens.tolist() for i in (0, 1, 2, fixture.add_batch(9))]
    assert contents[3] == operator.make_inputs(point, 9).seq_lens.tolist()
    assert len({tuple(lens) for lens in contents}) == 4


def test_a_variant_that_is_wrong_on_captured_inputs_alone_is_found(configured, catalog):
    """Lengths such as no generated batch of these axes has."""
    operator = catalog.operators["decode_native"]
    entry = captured.generated(operator, 1, 3, batch_size=4, context_len=100)
    entry[3]["seq_lens"][2] = 7777
    ((_, point),) = expand(configured([entry], ["decode_native"]), catalog.operators)

    def ignores_an_outlier(point, x, out):
        work = catalog.find("decode_native", "chain").setup(point, x, out)

        def launch():
            work()
            out.buffer[out.buffer == 7777] = 100

        return launch

    with pytest.raises(Mismatch):
        verify_cell(Fixture(operator, point, "cpu", 1), variant_of(ignores_an_outlier))
    verify_cell(Fixture(operator, operator.complete(point), "cpu", 1), variant_of(ignores_an_outlier))


# --- what is not legal ------------------------------------------------------------------------------------------------


def test_an_entry_that_breaks_a_rule_or_is_cut_off_is_left_out_with_its_reason(configured, two_steps, catalog):
    _, name, axes, fields = two_steps[0]
    broken = [
        (70, name, {**axes, "max_decode_len": 9}, fields),
        (80, name, {**axes, "max_decode_len": 9}, fields),
        (90, name, {**axes, "batch_size": 0}, fields),
        (95, name, {**axes, "batchsize": 3}, fields),
        (96, "of_tomorrow", axes, fields),
        (97, "post_update", {"batch_size": -1}, {}),
    ]
    source = configured([*two_steps, *broken], ["decode_flatten"])
    with open("llama.capture", "ab") as file:
        file.write(b"\x09")
    assert len(expand(source, catalog.operators)) == 3
    cut, left = left_out(source, catalog.operators)
    assert cut.startswith("llama.capture: entry 12, the last one, is incomplete")
    assert left == (
        "llama.capture: 4 of 12 entries left out: "
        "decode_flatten at steps 70, 80: max_decode_len (9) must not exceed next_n (4); "
        "decode_flatten at step 90: batch_size must be an integer from 1 to 2147483647, got 0; "
        "decode_flatten at step 95: no axis 'batchsize'; did you mean batch_size?"
    )


@pytest.fixture(scope="module")
def evaluator():
    return Evaluator(Job("cpu", (), 7, Measure(), timed=False))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x.pop("seq_lens"), "the captured seq_lens is absent, at this point it is int32 (5,)"),
        (lambda x: x.update(seq_lens=x["seq_lens"].long()), "seq_lens is int64 (5,), at this point it is int32 (5,)"),
        (lambda x: x.update(num_decode_tokens=23), "the captured num_decode_tokens is 23, at this point it is 24"),
        (
            lambda x: x["query_start_loc"].__setitem__(2, 9),
            "have 5 query tokens in row 1, at this point there are 0 to 4",
        ),
    ],
)
def test_inputs_that_no_step_of_the_point_has_are_skipped_with_their_reason(
    change, reason, configured, catalog, evaluator
):
    entry = captured.generated(catalog.operators["decode_flatten"], 1, 3, **OPERATORS["decode_flatten"])
    change(entry[3])
    ((operator, point),) = expand(configured([entry], ["decode_flatten"]), catalog.operators)
    where = AtPoint(label=operator.label(point), axes=dict(point))
    *_, checked = evaluator.check(Check(operator=operator.name, variants=("merged_chain",), where=where))
    assert (checked.finding.status, checked.finding.reason.code) == (Status.SKIPPED, Code.CAPTURED)
    assert reason in checked.finding.reason.detail


def test_contents_that_the_reference_cannot_take_are_told(configured, catalog):
    entry = captured.generated(catalog.operators["gather_block_tables"], 1, 3, **OPERATORS["gather_block_tables"])
    entry[3]["idx_mapping"][0] = 8
    ((operator, point),) = expand(configured([entry], ["gather_block_tables"]), catalog.operators)
    with pytest.raises(CaptureError, match="the reference cannot take the captured inputs: IndexError"):
        Fixture(operator, point, "cpu", 1)


def test_a_file_that_changed_after_planning_is_noticed(configured, two_steps, catalog, tmp_path):
    ((operator, point), *_) = expand(configured(two_steps, ["decode_flatten"]), catalog.operators)
    assert entry_of(operator.name, point[CAPTURE]).step == 10
    (tmp_path / "llama.capture").unlink()
    captured.write(tmp_path / "llama.capture", [captured.generated(operator, 77, 10, **OPERATORS["decode_flatten"])])
    with pytest.raises(CaptureError, match=r"llama.capture: has changed since llama@10 of decode_flatten was planned"):
        entry_of(operator.name, point[CAPTURE])


def test_the_file_is_among_the_sources_of_a_run(configured, two_steps, catalog):
    items = plan(configured(two_steps, ["decode_flatten"]), catalog.operators, catalog.variants, ["*/op_chain"])
    before = source_hashes(items, catalog, ())["llama.capture"]
    with open("llama.capture", "ab") as file:
        file.write(b"\x09")
    assert source_hashes(items, catalog, ())["llama.capture"] != before


def test_a_shipped_capture_is_found_from_any_folder(configured, two_steps, catalog, tmp_path, monkeypatch):
    monkeypatch.setattr(grids, "SHIPPED", tmp_path / "shipped")
    captured.write(tmp_path / "shipped" / "llama.capture", two_steps)
    source = configured(None, ["decode_flatten"], sweep="[{capture: configs/captures/llama.capture}]")
    assert len(expand(source, catalog.operators)) == 3


# --- mistakes in the configuration ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sweep", "more", "message"),
    [
        ("[{capture: lama.capture}]", {}, r"c.yaml:3: sweep\[0\].capture: lama.capture: cannot be read: No such file"),
        (
            "[{capture: llama.capture, batch_size: 3}]",
            {},
            r"c.yaml:3: sweep\[0\].batch_size: the axes of captured points are in their file; use another grid",
        ),
        (
            "[{capture: llama.capture}, {capture: other/llama.capture}]",
            {},
            r"sweep\[1\].capture: llama.capture and other/llama.capture have the same name in keys; rename one",
        ),
        (
            "[{capture: llama.capture}]",
            {"batch_size": [1]},
            "--set batch_size: the axes of captured points are in their file",
        ),
        (
            "[{capture: llama.capture}]",
            None,
            "llama.capture has inputs of decode_flatten, paged_mqa_schedule, not of these operators",
        ),
    ],
)
def test_a_mistake_is_told_with_file_line_and_key(sweep, more, message, configured, two_steps, catalog):
    operators = ["decode_native" if more is None else "decode_flatten"]
    with pytest.raises(ConfigError, match=message):
        expand(configured(two_steps, operators, sweep, **(more or {})), catalog.operators)
