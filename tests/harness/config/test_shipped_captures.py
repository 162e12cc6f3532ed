"""configs/captured.yaml and the captures it names: small, whole, legal, and every variant that runs here is exact."""

import numpy as np
import pytest

from spec_decode_bench.baselines.workloads.request_slots import UNUSED
from spec_decode_bench.harness.captures import read_capture
from spec_decode_bench.harness.config.captured import SHIPPED, points_of
from spec_decode_bench.harness.config.load import CONFIGS, load
from spec_decode_bench.harness.config.sweep import plan
from spec_decode_bench.harness.config.work_items import keys_of
from spec_decode_bench.harness.contract import CAPTURE
from spec_decode_bench.harness.verify.fixture import Fixture, verify_cell
from tests.harness.config.test_configs import MAX_CELLS
from tests.runnable import healthy
from tests.tier import full

FILES = sorted(SHIPPED.glob("*.capture"))
SOURCE = load(CONFIGS / "captured.yaml")
#: Bytes of a file.
MOST_BYTES = 300_000


@pytest.mark.skipif(not FILES, reason="no capture is shipped yet")
def test_the_configuration_names_them_all_and_what_they_hold(catalog):
    named = {file for grid in SOURCE.config.sweep for file in grid[CAPTURE]}
    assert named == {f"configs/captures/{path.name}" for path in FILES}
    held = {entry.operator for path in FILES for entry in read_capture(path).entries}
    assert held == set(SOURCE.config.operators)
    assert len(keys_of(plan(SOURCE, catalog.operators, catalog.variants))) <= MAX_CELLS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_small_and_whole(path, catalog):
    capture = read_capture(path)
    assert path.stat().st_size < MOST_BYTES
    assert capture.problems == []
    assert [one.reason for one in points_of(f"configs/captures/{path.name}", catalog.operators) if one.reason] == []
    assert capture.header.speculative.num_drafts == 3
    assert capture.header.gpu
    assert capture.header.engine_version


#: Fields with token ids.
TOKENS = ("last_sampled_tokens", "draft_tokens", "sampled_tokens", "target_input_ids", "next_prefill_tokens")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_numbers_stand_in_place_of_token_ids(path):
    for entry in read_capture(path).entries:
        for name in entry.fields & set(TOKENS):
            array = entry.array(name)
            rows = array.reshape(len(array), -1)
            numbers = np.arange(rows.size).reshape(rows.shape) % 1000
            assert np.isin(rows, [*np.unique(numbers), UNUSED]).all(), (entry.operator, name)
            if name in TOKENS[:2]:
                assert (rows == numbers).all(), (entry.operator, name)
        histories = [entry.array(name) for name in entry.fields if name.startswith("all_token_ids")]
        assert all((history == history.flat[0]).all() for history in histories)


@full
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_variant_is_exact(path, catalog):
    for one in points_of(f"configs/captures/{path.name}", catalog.operators):
        operator = catalog.operators[one.entry.operator]
        fixture = Fixture(operator, one.point, "cpu", seed=1, batches=2)
        for variant in healthy(operator.name):
            if variant.skip(one.point) is None:
                verify_cell(fixture, variant, once=True)
