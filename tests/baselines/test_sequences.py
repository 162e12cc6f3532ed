"""Sequences of steps: their contents differ enough that a graph which replays what its capture computed comes out
wrong.
"""

import pytest
import torch

from baselines.mamba_spec_metadata import operator as mamba_spec_metadata
from harness.checks import Mismatch
from harness.contract import Variant
from harness.discover import discover
from harness.verify.equality import required
from harness.verify.graph_replay import replay_sequence
from harness.verify.hard_points import DeviceChecks, check_variant

CATALOG = discover()
#: What the proof of all operators uses, and two more.
SEEDS = (11, 0, 5)
#: Buffer -> the steps, as (sequence, number from 0), in which it holds the same whatever the seed; FLATTENED: all on
#: the flatten path.
FLATTENED = "a flat token has one row"
ALIKE = {
    "decode_flatten": {"decode_lens": FLATTENED},
    "decode_step": {
        "decode_lens": FLATTENED,
        # A dummy run: every length is 1.
        **{name: {("real-dummy-real", 1)} for name in ("lens", "schedule", "tile_scheduler_metadata", "num_splits")},
    },
    # No real request: all rows hold the padding values.
    "mamba_spec_metadata": {
        name: {("big-idle-big", 1)}
        for name in ("input_slots", "output_slots", "num_accepted_tokens", *mamba_spec_metadata.PER_REQUEST)
    },
    # A dummy run: every length is 1 // 4 = 0.
    "paged_mqa_schedule": {"schedule": {("real-dummy-real", 1)}},
    # An idle rank: no request has a length.
    "seq_lens_update": {name: {("big-idle-big", 1)} for name in ("seq_lens", "seq_lens_cpu_upper_bound")},
}


def read(expected):
    """What a consumer reads of an output, as one row; the rest left out as -1 in place."""
    return torch.where(required(expected), expected.value.long(), -1).flatten()


def alike(operator, name, number, seed):
    """Outputs of one step that all three contents of a proof leave the same, those that hold nothing to read aside."""
    point = operator.complete(operator.sequences[name][number])
    said = [operator.reference(point, operator.make_inputs(point, seed + number + case)) for case in range(3)]
    there = [buffer for buffer in said[0] if any(bool(required(one[buffer]).any()) for one in said)]
    return {
        buffer for buffer in there if all(torch.equal(read(one[buffer]), read(said[0][buffer])) for one in said[1:])
    }


def excused(operator, name, number):
    flat = operator.complete(operator.sequences[name][number]).get("decode_path", "flatten") == "flatten"
    steps = ALIKE.get(operator.name, {}).items()
    return {buffer for buffer, where in steps if (flat if where == FLATTENED else (name, number) in where)}


@pytest.mark.parametrize("operator", CATALOG.operators.values(), ids=lambda o: o.name)
def test_no_output_of_a_step_is_the_same_on_all_contents(operator):
    steps = [(name, number) for name, points in operator.sequences.items() for number in range(len(points))]
    for seed in SEEDS:
        found = {step: alike(operator, *step, seed) for step in steps}
        assert found == {step: excused(operator, *step) for step in steps}


def baked(operator, buffer):
    """A healthy variant, and a capture whose graph writes into ``buffer`` what it held after the captured launch."""
    inner = next(v for v in CATALOG.of(operator.name) if v.name == GRAPHED.get(operator.name, operator.baseline))

    def setup(point, x, out):
        launch = inner.setup(point, x, out)

        def with_outputs():
            launch()

        with_outputs.frozen = getattr(out, buffer, None)
        return with_outputs

    def capture(launch):
        kept, seen = launch.frozen, []
        if kept is None:
            return launch
        for poison in (0x7F, 0x71):
            kept.fill_(poison)
            launch()
            seen.append(kept.clone())
        written = seen[0] == seen[1]

        def replay():
            launch()
            kept[written] = seen[0][written]

        return replay

    return Variant(operator.name, "baked", setup, doc="", origin="tests", skip=inner.skip), capture


#: Where the baseline decides on the host, a chain that does not.
GRAPHED = {"mamba_state_copy": "masked_chain", "mla_tile_schedule": "fresh_copy"}


def buffers_of(operator):
    """Outputs on the device that the first sequence makes anew in each of its steps."""
    name, points = next(iter(operator.sequences.items()))
    point = operator.complete(points[0])
    return [
        b
        for b in operator.reference(point, operator.make_inputs(point, 0))
        if b not in excused(operator, name, 0) and "cpu" not in b
    ]


FIRST = [(operator, buffer) for operator in CATALOG.operators.values() for buffer in buffers_of(operator)]


@pytest.mark.parametrize(("operator", "buffer"), FIRST, ids=lambda v: getattr(v, "name", v))
def test_a_graph_that_replays_an_output_of_its_capture_is_rejected_in_the_first_sequence(operator, buffer):
    """In front of a timed run that sequence is the only one whose graphs are replayed."""
    variant, capture = baked(operator, buffer)
    points = [operator.complete(step) for step in next(iter(operator.sequences.values()))]
    with pytest.raises(Mismatch, match=buffer) as caught:
        replay_sequence(operator, variant, points, "cpu", 11, capture, set())
    assert caught.value.check == "graph_safe"


@pytest.mark.parametrize(("name", "buffer"), [("decode_step", "schedule"), ("seq_lens_update", "seq_lens")])
def test_every_sequence_rejects_it_and_the_first_one_before_a_timed_run(name, buffer):
    operator = CATALOG.operators[name]
    variant, capture = baked(operator, buffer)
    checks = DeviceChecks(lambda variant, launch: set(), capture)
    timed = {
        f.name: f.check
        for f in check_variant(operator, variant, "cpu", 11, thorough=False, checks=checks)
        if f.outcome == "rejected"
    }
    assert timed == {next(iter(operator.sequences)): "graph_safe"}
    for points in operator.sequences.values():
        with pytest.raises(Mismatch, match=buffer):
            replay_sequence(operator, variant, [operator.complete(step) for step in points], "cpu", 11, capture, set())
