"""Tables of decode loops."""

import numpy as np
import pytest
from msgspec.structs import replace

from spec_decode_bench.decode_loop.tables import loop_tables
from spec_decode_bench.harness.records.schema import Status
from tests import factory
from tests.decode_loop import factory_loops
from tests.factory import cpu_environment, gpu_environment


@pytest.fixture
def run():
    return factory_loops.run(factory_loops.many_loops(np.random.default_rng(0), (1, 8)), gpu_environment())


def test_reference_in_ms_and_change_in_us(run):
    itl = loop_tables(run)[0]
    assert itl.heads == ("concurrency", "model step us", "scheduling", "chains", "fused")
    *axes, reference, other = itl.rows[0]
    assert [axis.text for axis in axes] == ["1", "5000", "sync"]
    assert reference.text.startswith("9.0")
    assert other.text.startswith("−9") or other.text.startswith("−8")
    assert other.below.startswith("[−")
    assert other.below.endswith("%")
    assert any("next_n=4" in note for note in itl.notes)


def test_a_missing_engine_is_named_as_what_changes_would_refer_to(run):
    missing = [
        replace(loop, reference="fused", status=Status.UNAVAILABLE if loop.stack == "chains" else loop.status)
        for loop in run.others
    ]
    note = "where its engine is installed (docs/upstream.md), the changes refer to chains"
    assert note in loop_tables(replace(run, others=missing))[0].notes
    assert note not in loop_tables(run)[0].notes


def test_measured_beside_modelled(run):
    table = loop_tables(run)[-1]
    assert "modelled" in table.title
    assert table.rows[0][-1].below.split()[0] == "−910"


def test_a_stack_without_samples_has_its_reason_below(run):
    failed = replace(
        run.others[1], status=Status.MISMATCH, blocks=[], **factory.why_not("mismatch", "step 3: table lens differs")
    )
    tables = loop_tables(replace(run, others=[run.others[0], failed, *run.others[2:]]))
    assert tables[0].rows[0][-1].text == "mismatch a"
    assert "a: step 3: table lens differs" in tables[0].notes
    assert tables[0].rows[1][-1].text.startswith("−")


def test_a_failed_reference_leaves_the_others_their_figures(run):
    failed = replace(run.others[0], status=Status.FAILED, blocks=[], **factory.why_not("failed", "killed"))
    tables = loop_tables(replace(run, others=[failed, *run.others[1:]]))
    assert tables[0].rows[0][-1].text.startswith("8.")


def test_a_cpu_time_is_never_shown_as_a_gpu_time():
    cpu = factory_loops.run(factory_loops.many_loops(np.random.default_rng(0), (1,)), cpu_environment())
    assert all(table.title.startswith("CPU miniature, no GPU time: ") for table in loop_tables(cpu))


def test_every_time_of_a_stack_with_limits_is_marked(run):
    known_failures = {"decode_step/peer at 'B=1'": "never called"}
    loops = [replace(loop, known_failures=known_failures) if loop.stack == "fused" else loop for loop in run.others]
    table = loop_tables(replace(run, others=loops))[0]
    *_, reference, other = table.rows[0]
    assert other.text.endswith("†")
    assert "†" not in reference.text
    assert "† fused has variants with known failures: decode_step/peer at 'B=1' (never called)" in table.notes
