"""The section decode_loop: of a configuration: what is planned, and one sentence for every mistake."""

import re
from dataclasses import replace
from typing import get_args

import pytest

from spec_decode_bench.decode_loop.planning import miniature, plan_loops
from spec_decode_bench.engine_plugin.configuration import Arm
from spec_decode_bench.harness.config.load import CONFIGS, ConfigError, load
from spec_decode_bench.harness.config.work_items import keys_of
from spec_decode_bench.harness.records.schema import Status
from tests.decode_loop.loops import CHAINS, ONE

STACKS = {"chains": CHAINS, "one": ONE}
LOOP = {
    "concurrency": [3, 8],
    "prompt_len": 1000,
    "output_len": {"uniform": [10, 100]},
    "model_step_us": [5000, 9000],
    "scheduling": ["sync", "async"],
    "stacks": STACKS,
}


@pytest.fixture
def planned(tmp_path, catalog):
    def plan(only=(), device="cuda", **changes):
        source = written(tmp_path, {**LOOP, **changes})
        return plan_loops(source, catalog, only)

    return plan


def written(folder, section, **top):
    import yaml

    path = folder / "loop.yaml"
    given = {key: value for key, value in section.items() if value is not ...}
    path.write_text(yaml.safe_dump({"name": "loop", **top, "decode_loop": given}, sort_keys=False))
    return load(path)


def test_every_combination_is_a_loop_of_all_stacks(planned):
    groups = planned()
    assert len(groups) == 2 * 2 * 2
    assert keys_of(groups)[0] == "loop/chains/concurrency=3,next_n=4,model_step_us=5000,scheduling=sync,graph=none"
    assert len(set(keys_of(groups))) == 16
    assert {group.reference for group in groups} == {"chains"}


def test_a_batch_is_padded_up_to_a_captured_size(planned):
    shapes = {group.at.concurrency: group.shape for group in planned()}
    assert (shapes[3].batch_size, shapes[3].num_requests) == (4, 3)
    assert (shapes[8].batch_size, shapes[8].num_requests) == (8, 8)


def test_the_first_variant_that_applies_is_chosen(planned):
    """The uniform kernel takes no padded batch."""
    stack = STACKS["chains"] | {"decode_flatten": ["triton_uniform", "merged_chain"]}
    groups = planned(stacks={"uniform_kernel": stack})
    chosen = {group.at.concurrency: dict(group.stacks[0].parts)["decode_flatten"] for group in groups}
    assert chosen == {3: "merged_chain", 8: "triton_uniform"}


def test_only_keeps_the_reference_beside_what_it_keeps(planned):
    groups = planned(only=["loop/one/concurrency=8*scheduling=sync*"])
    assert [tuple(stack.name for stack in group.stacks) for group in groups] == [("chains", "one")] * 2
    assert all(len(group.stacks) == 1 for group in planned(only=["!one"]))


WHOLE = dict.fromkeys(("step_prologue", "step_epilogue", "draft_passes"), "op_chain")


def test_one_draft_takes_no_further_passes(planned):
    groups = planned(stacks={"whole": WHOLE}, next_n=[2, 4])
    names = {group.at.next_n: [name for name, _ in group.stacks[0].parts] for group in groups}
    assert names == {2: ["step_prologue", "step_epilogue"], 4: list(WHOLE)}
    assert all(group.shape.by_slot for group in groups)
    assert not planned()[0].shape.by_slot


def test_a_miniature_is_small_and_keeps_the_stacks(tmp_path):
    config = miniature(written(tmp_path, LOOP | {"concurrency": [1, 32, 128]})).settings
    assert config.concurrency == [1, 4]
    assert config.model_step_us == [500]
    assert list(config.stacks) == list(STACKS)


SHIPPED = [path for path in sorted(CONFIGS.glob("*.yaml")) if load(path).section]
#: Its stacks are the arms of a server's measurement.
OF_A_SERVER = CONFIGS / "decode_loop_captured.yaml"
#: Seconds that the loops of a configuration may take on an H200, without start, verification and simulation.
MOST_S = 200


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_loop_fits_five_minutes_and_has_every_kind_of_stack(path, catalog):
    source = load(path)
    assert source.config.name == path.stem
    assert path.read_text(encoding="utf-8").startswith("# ")
    groups = plan_loops(source, catalog)
    config = source.settings
    steps = (config.blocks + 1) * config.steps
    taken_s = sum(len(one.stacks) * steps * (one.at.model_step_us + 1000) for one in groups) * 1e-6
    assert len(SHIPPED) == 6
    assert taken_s < MOST_S
    if path == OF_A_SERVER:
        assert tuple(config.stacks) == get_args(Arm)
        return
    assert {"chains", "fused"} <= set(config.stacks)
    assert {one.at.scheduling for one in groups} == {"sync", "async"}
    assert {one.at.concurrency for one in groups} == {1, 8, 32, 128}


TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
#: (changes of LOOP, what the error says)
MISTAKES = [
    ({"concurency": 3}, "unknown key; did you mean concurrency?"),
    ({"reference": "chain"}, "decode_loop.reference: unknown stack 'chain'; did you mean chains?"),
    ({"stacks": {"a": {"seq_lens_updat": "op_chain"}}}, "unknown operator 'seq_lens_updat'; did you mean seq_lens_upd"),
    ({"stacks": {"a": {"k_quant_gather": "op_chain"}}}, "takes no part in a decode loop"),
    ({"stacks": {"a": {"seq_lens_update": "opchain"}}}, "unknown variant 'opchain'; did you mean op"),
    (
        {"stacks": {"a": {"decode_step": "op_chain"}}},
        "needs seq_lens, which no operator before it builds; add seq_lens",
    ),
    (
        {"stacks": STACKS | {"less": {"seq_lens_update": "op_chain", "decode_flatten": "op_chain"}}},
        "decode_loop.stacks.less: does not build schedule, which the model reads with the other stacks; add",
    ),
    (
        {"stacks": {"a": {"step_inputs": "op_chain"}}},
        "stacks.a: does not build num_rejected, which the next step needs; add step_epilogue or post_update",
    ),
    (
        {"stacks": STACKS | {"whole": dict.fromkeys(("step_prologue", "step_epilogue", "draft_passes"), "op_chain")}},
        "seq_lens_update: keeps state by row, draft_passes, step_epilogue, step_prologue by request slot",
    ),
    (
        {"stacks": {"a": {"step_inputs": "op_chain"}}, "geometry": {"preset": "nemotron_h", "state_groups": 2}},
        "groups of states take step_prologue and step_epilogue, not their parts one by one",
    ),
    (
        {"stacks": {"a": STACKS["chains"] | {"decode_flatten": "triton_uniform"}}},
        "triton_uniform does not apply to this loop: uniform batches only",
    ),
    (
        {"stacks": {"a": STACKS["one"] | {"seq_lens_update": "blocking_copy"}}, "graph": "full"},
        "blocking_copy waives graph_safe and cannot be captured",
    ),
    ({"concurrency": 1000}, "1000 requests exceed the largest captured batch size (512)"),
    ({"output_len": ...}, "needs output_len, or a trace of recorded requests"),
    ({"prompt_len": 163840}, "prompt, output and three steps of drafts must fit max_model_len (163840)"),
    ({"trace": "nowhere.csv"}, "a trace has both lengths"),
    ({"trace": "nowhere.csv", "prompt_len": ..., "output_len": ...}, "cannot be read (No such file or directory)"),
    ({"trace": "EMPTY", "prompt_len": ..., "output_len": ...}, "holds no request"),
    ({"geometry": "deepseek_v3"}, "unknown geometry 'deepseek_v3'; did you mean deepseek_v3_2?"),
    ({"acceptance": [0.9]}, "names 1 positions, next_n 4 has 3 drafts"),
    ({"acceptance": {"accept_lengths": [5]}}, "an accept length of 5 exceeds next_n (4)"),
    ({"scheduling": "asynchronous"}, "decode_loop.scheduling"),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES, ids=[text[:40] for _, text in MISTAKES])
def test_a_mistake_is_one_sentence(planned, tmp_path, changes, message):
    if changes.get("trace") == "EMPTY":
        (tmp_path / "empty.csv").write_text(TRACE)
        changes = changes | {"trace": str(tmp_path / "empty.csv")}
    with pytest.raises(ConfigError, match=re.escape(message)) as found:
        planned(**changes)
    text = str(found.value)
    assert "\n" not in text
    assert re.match(r".*loop\.yaml:\d+: decode_loop", text), text


def test_a_sweep_and_a_loop_do_not_mix(tmp_path):
    with pytest.raises(ConfigError, match="a decode_loop names its operators in its stacks; drop operators"):
        written(tmp_path, LOOP, operators=["decode_native"])
    with pytest.raises(ConfigError, match=r"give decode_loop\.reference instead"):
        written(tmp_path, LOOP, baseline="op_chain")


def test_a_stack_has_the_limits_of_its_variants(tmp_path, catalog):
    known_failures = {"B=1": "never called"}
    variants = [
        replace(v, known_failures=known_failures) if v.id == "decode_step/op_chain" else v for v in catalog.variants
    ]
    group = plan_loops(written(tmp_path, LOOP), replace(catalog, variants=variants))[0]
    lines = {name: group.line(name, Status.SKIPPED).known_failures for name in group.variants}
    assert lines == {"chains": {}, "one": {"decode_step/op_chain at 'B=1'": "never called"}}


@pytest.mark.parametrize(("needs", "reference"), [("vllm:nowhere.py", "one"), ("torch", "chains")])
def test_changes_refer_to_the_first_stack_whose_engine_is_installed(tmp_path, catalog, needs, reference):
    variants = [replace(v, requires=(needs,)) if v.id == "decode_flatten/op_chain" else v for v in catalog.variants]
    limited = replace(catalog, variants=variants)
    assert {group.reference for group in plan_loops(written(tmp_path, LOOP), limited)} == {reference}
    given = written(tmp_path, LOOP | {"reference": "chains"})
    assert {group.reference for group in plan_loops(given, limited)} == {"chains"}
