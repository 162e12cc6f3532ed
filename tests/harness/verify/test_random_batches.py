"""Random batches of `verify`: legal, repeatable, shrunk, and ended where time is up."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, seed, settings

from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.records.schema import Code, Reason
from spec_decode_bench.harness.verify.edge_cases import LeftOut
from spec_decode_bench.harness.verify.random_batches import MOST_BYTES, SHIFTS, Drawn, batches, check_random, fixture_of
from tests.harness.verify.mutants import MUTANTS
from tests.runnable import DEVICE, healthy, variant_of
from tests.tier import few

CATALOG = discover()
NATIVE = CATALOG.operators["decode_native"]


def drawn(operator, number, count=40):
    found = []

    @seed(number)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(batches(operator))
    def note(batch):
        if batch is not None:
            found.append(batch)

    note()
    return found


@pytest.mark.parametrize("name", few(CATALOG.operators, 4))
def test_batches_are_legal_small_and_varied(name):
    operator = CATALOG.operators[name]
    found = drawn(operator, 1)
    assert len({operator.label(batch.point) for batch in found}) > 5
    assert len({batch.shift for batch in found}) > 1
    assert all(0 <= batch.shift < SHIFTS for batch in found)
    for batch in found:
        assert operator.broken_rule(batch.point) is None
        assert operator.redundant(batch.point) is None
        assert fixture_of(operator, batch, "cpu").nbytes <= 1.5 * MOST_BYTES  # small inputs are not counted


def test_buffers_start_at_every_element_of_16_bytes():
    assert {Drawn(NATIVE.complete({}), number).shift for number in range(64)} == {0, 1, 2, 3}


def test_sizes_are_drawn_beyond_small_defaults():
    found = [batch.point for batch in drawn(CATALOG.operators["compute_slot_mappings"], 1, 300)]
    assert max(point.num_groups for point in found) >= 5
    assert {point.block_size for point in found} & {16, 32, 128}
    assert max(point.prefills for point in found) > 1


def test_a_seed_draws_the_same_batches_again():
    assert drawn(NATIVE, 1) == drawn(NATIVE, 1) != drawn(NATIVE, 2)


def findings_of(*of, **options):
    kept = []
    failed = check_random(*of, keep=kept.append, **options)
    return kept if failed is None else [*kept, failed]


@pytest.mark.parametrize("name", few(CATALOG.operators, 4))
def test_healthy_variants_pass(name):
    operator = CATALOG.operators[name]
    for variant in healthy(name):
        if variant.folder == "baselines":
            findings = findings_of(operator, variant, DEVICE, 3, 15)
            assert [f for f in findings if f.status not in ("passed", "skipped")] == []
            assert {f.place for f in findings} == {"random_batch"}
            assert any(f.status == "passed" for f in findings)


def mutant(name):
    return next(one.variant for one in MUTANTS if one.name == name)


@pytest.mark.parametrize("name", ["ratio_as_shift", "reciprocal_rounded_down"])
def test_a_failing_batch_is_shrunk_and_named_by_its_axes(name):
    *before, last = findings_of(NATIVE, mutant(name), DEVICE, 7, 200)
    assert {finding.status for finding in before} <= {"passed", "skipped"}
    assert (last.status, last.check, last.place) == ("mismatch", "exact", "random_batch")
    assert "compress_ratio=3" in last.name  # the smallest that is no power of two
    assert last.name.count("=") == 2  # beside the context lengths, every other axis has its default


def idle(calls):
    def setup(point, x, out):
        calls.append(point)
        return lambda: None

    return variant_of(setup)


def test_nothing_is_shrunk_on_a_lost_device():
    calls = []
    findings = findings_of(NATIVE, idle(calls), DEVICE, 7, 25, lost=lambda: True)
    assert [finding.status for finding in findings] == ["mismatch"]
    assert len(calls) == 1


def test_batches_without_time_are_left_out():
    chain = CATALOG.find("decode_native", "chain_clamp")
    reason = Reason(code=Code.INTERPRETER_BUDGET, seconds=8.0)
    findings = findings_of(NATIVE, chain, DEVICE, 7, 10, out_of_time=lambda: reason)
    assert len(findings) == 10
    assert {(finding.status, finding.reason) for finding in findings} == {("skipped", reason)}


def test_a_launch_that_was_ended_is_no_failure():
    class Ended:
        def __enter__(self):
            raise LeftOut("too long")

        def __exit__(self, *error):
            return False

    chain = CATALOG.find("decode_native", "flat_view")
    findings = findings_of(NATIVE, chain, DEVICE, 7, 10, counting=Ended)
    assert {finding.status for finding in findings} == {"skipped"}


def test_a_variant_that_raises_fails():
    def raises(point, x, out):
        raise ValueError("no such size")

    last = findings_of(NATIVE, variant_of(raises), DEVICE, 7, 25)[-1]
    assert (last.status, last.error) == ("failed", "ValueError")


def test_an_error_of_the_operator_itself_is_not_hidden():
    def redundant(point):
        raise KeyError(point.batch_size)

    operator = replace(NATIVE, redundant=redundant)
    with pytest.raises(KeyError):
        findings_of(operator, CATALOG.find("decode_native", "flat_view"), DEVICE, 7, 10)
