"""Findings at edge cases and in sequences, and the result of every check that follows from them."""

import dataclasses

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from spec_decode_bench.baselines.decode_flatten import chains
from spec_decode_bench.baselines.decode_flatten.chains import compiled_chain, merged_chain
from spec_decode_bench.baselines.decode_flatten.operator import copied_columns
from spec_decode_bench.baselines.decode_flatten.operator import operator as flatten
from spec_decode_bench.baselines.decode_native.chains import chain_clamp
from spec_decode_bench.baselines.decode_native.operator import operator as native
from spec_decode_bench.baselines.workloads import torch_compile
from spec_decode_bench.harness.checks import CHECKS, NAMES, Mismatch
from spec_decode_bench.harness.contract import COMPILER, in_buffers
from spec_decode_bench.harness.records.schema import Finding, Place, Status
from spec_decode_bench.harness.verify.edge_cases import (
    DeviceChecks,
    EdgeCaseChecks,
    check_results,
    is_unverified,
    judged_known_failure,
    known_failure_places,
)
from spec_decode_bench.harness.verify.graph_replay import FEW_STEPS, STEPS
from tests.harness.verify.captures import Replays
from tests.harness.verify.test_fixture import right, right_lens
from tests.runnable import variant_of
from tests.tier import full


def as_variant(setup, waives=()):
    return variant_of(setup, skip=chain_clamp.__variant__.skip, waives=waives)


def results_of(setup, device="cpu", waives=(), **checks):
    """(check -> result, findings); with ``checks`` as if there were a device."""
    variant = as_variant(setup, waives)
    device_checks = DeviceChecks(**checks) if checks else None
    findings = list(EdgeCaseChecks(native, variant, "cpu", seed=5, on_device=device_checks))
    return dict(check_results(variant, findings, device)), findings


def no_alloc_no_sync(variant, launch):
    return {"no_alloc", "no_sync"} - set(variant.waives)


def test_on_a_cpu_what_needs_a_gpu_is_never_passed():
    results, _ = results_of(chain_clamp)
    assert list(results) == list(NAMES)
    assert results.pop("in_place") == "-"  # nothing of decode_native is
    for check in (check for check in CHECKS if check.name in results):
        assert results[check.name] == ("GPU" if check.device == "cuda" else "timed" if check.timed_only else "yes")


def test_with_a_device_everything_is_tested_but_what_is_waived_or_needs_timing():
    capture = Replays()
    results, findings = results_of(chain_clamp, "cuda", alloc_sync=no_alloc_no_sync, capture=capture)
    # The launches ran on a CPU, where nothing is queued behind a sleeping kernel.
    left = {name: result for name, result in results.items() if result != "yes" and name != "in_place"}
    assert left == {"stream_ordered": "-", "same_work": "timed", "every_call": "timed", "one_thread": "CPU"}
    passed = [finding for finding in findings if finding.status == "passed"]
    long = 2  # the first edge case and the first sequence
    assert capture.replayed >= long * STEPS + (len(passed) - long) * FEW_STEPS
    assert all("graph_safe" in finding.passed_checks for finding in passed)

    def grows(variant, launch):
        raise Mismatch("no_alloc", "every launch leaks 4 bytes of device memory")

    waives, capture = ("no_alloc", "no_sync", "graph_safe"), Replays()
    results, _ = results_of(chain_clamp, "cuda", waives, alloc_sync=no_alloc_no_sync, capture=capture)
    assert {results[name] for name in waives} == {"waived"}
    assert capture.graphs == 0
    results, _ = results_of(chain_clamp, "cuda", waives, alloc_sync=grows, capture=capture)
    assert results["no_alloc"] == "no", "memory that grows with every launch cannot be waived"


def test_a_run_checks_replays_once_and_verify_everywhere():
    few, many = Replays(), Replays()
    variant = as_variant(chain_clamp)
    list(EdgeCaseChecks(native, variant, "cpu", 5, thorough=False, on_device=DeviceChecks(no_alloc_no_sync, few)))
    list(EdgeCaseChecks(native, variant, "cpu", 5, thorough=True, on_device=DeviceChecks(no_alloc_no_sync, many)))
    assert few.graphs == 2  # one sequence of two sizes
    assert many.graphs > 15


def returns_a_copy(point, x, out):
    fill = chain_clamp(point, x, out)

    def launch():
        fill()
        return {"context_lens": out.views(point)["context_lens"].clone()}

    return launch


def test_a_rejected_variant_keeps_the_checks_it_passed_before():
    results, _ = results_of(returns_a_copy)
    assert results["stable_address"] == "no"
    assert (results["in_bounds"], results["inputs_unchanged"]) == ("yes", "yes")
    assert (results["exact"], results["contiguous"]) == ("-", "-")  # never reached


def test_what_replaces_a_method_of_torch_is_rejected():
    def replaces(point, x, out):
        torch.Tensor.clamp_ = lambda self, *bounds, **named: self
        return chain_clamp(point, x, out)

    results, findings = results_of(replaces)
    assert "process_state" in {finding.check for finding in findings if finding.status == "mismatch"}
    assert results["process_state"] == "no"
    assert "clamp_" not in vars(torch.Tensor)


def found(status, **more):
    return Finding(status=Status(status), place=Place.EDGE_CASE, name="B=1", **more)


def test_a_variant_that_never_ran_has_no_results():
    waiving = as_variant(chain_clamp, ("no_alloc",))
    assert set(check_results(waiving, [found("skipped")], "cpu").values()) == {"-"}
    assert set(check_results(waiving, [], "cuda").values()) == {"-"}
    assert check_results(waiving, [found("mismatch", check="no_crash")], "cuda")["no_crash"] == "no"
    assert is_unverified([found("skipped"), found("failed", error="ValueError")])
    assert not is_unverified([found("skipped"), found("passed")])


def test_a_skip_that_raises_at_a_edge_case_fails_there_and_the_others_are_checked(catalog):
    chain = catalog.find("decode_native", "chain_clamp")
    picky = dataclasses.replace(chain, skip=lambda point: 1 // 0 if point.batch_size > 1 else None)
    findings = list(EdgeCaseChecks(catalog.operators["decode_native"], picky, "cpu", 0))
    assert {finding.status for finding in findings} == {"passed", "failed"}
    failed = next(finding for finding in findings if finding.status == "failed")
    message = "its skip= raised ZeroDivisionError: integer division or modulo by zero (test_edge_cases.py, line "
    assert failed.message.startswith(message)


@pytest.mark.parametrize("wide_from", [1, 200])
def test_the_first_and_the_largest_edge_case_run_with_unaligned_buffers_too(device, wide_from):
    """A variant may use wide accesses from some size on only."""

    def takes_alignment_for_granted(point, x, out):
        inner = right(point, x, out)
        fault = int(point.batch_size >= wide_from and out.buffer.data_ptr() % 16 > 0)

        def launch():
            inner()
            out.buffer[0] += fault

        return launch

    def skip(point):
        plain = point.row_alignment != "front" and point.compress_ratio == point.cp_size == 1
        return None if plain else "rows aligned at their end, uncompressed"

    variant = variant_of(takes_alignment_for_granted, skip=skip, waives=("no_alloc",))
    findings = EdgeCaseChecks(native, variant, device, seed=1)
    rejected = [(one.name, one.buffers, one.check) for one in findings if one.status == "mismatch"]
    both = [("B=1", "unaligned", "exact"), ("B = 257", "unaligned", "exact")]
    assert rejected == both[wide_from > 1 :]


def reads_at_32_bits(point, x, out):
    """Reads the table through offsets of 32 bits."""
    source, columns = x.block_table, copied_columns(x, out)
    flat = source.as_strided(((len(source) - 1) * source.stride(0) + columns,), (1,))
    right = merged_chain(point, x, out)

    def launch():
        right()
        offsets = torch.arange(len(source), dtype=torch.int32) * source.stride(0)
        for b, offset in enumerate(offsets.tolist()):
            first, end = x.query_start_loc[b : b + 2].tolist()
            out.block_table[first:end, :columns] = flat[offset : offset + columns]

    return launch


def writes_at_32_bits(point, x, out):
    """Rows of the expanded table whose offset wraps are written elsewhere."""
    table, right = out.block_table, merged_chain(point, x, out)
    lost = torch.arange(len(table), dtype=torch.int32) * table.stride(0) < 0

    def launch():
        before = table[lost]
        right()
        table[lost] = before

    return launch


@pytest.mark.parametrize(
    ("setup", "wrong_at"),
    [
        (merged_chain, []),
        (reads_at_32_bits, ["source stride > W"]),
        (writes_at_32_bits, ["B = 1, L = 40, T > A", "long rows, L = 33"]),
    ],
)
def test_rows_beyond_32_bits_are_read_and_written(setup, wrong_at):
    findings = list(
        EdgeCaseChecks(flatten, dataclasses.replace(merged_chain.__variant__, setup=setup), "cpu", 3).far_rows()
    )
    if len(findings) < 3:
        pytest.skip("no room for 24 GiB of addresses")
    places = ["B = 1, L = 40, T > A", "long rows, L = 33", "source stride > W"]
    assert [finding.name for finding in findings] == places
    assert [finding.name for finding in findings if finding.status == "mismatch"] == wrong_at
    assert all(finding.buffers == "far" for finding in findings)


def test_far_rows_for_which_a_launch_has_no_memory_are_left_out():
    def setup(point, x, out):
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert not list(
        EdgeCaseChecks(flatten, dataclasses.replace(merged_chain.__variant__, setup=setup), "cpu", 3).far_rows()
    )


def test_a_limit_in_far_rows_is_run_at_one_edge_case_only():
    known_failures = {"*, rows beyond 2^31": "offsets of 32 bits"}
    wrapping = dataclasses.replace(merged_chain.__variant__, setup=reads_at_32_bits, known_failures=known_failures)
    assert not list(EdgeCaseChecks(flatten, wrapping, "cpu", 3).far_rows())
    (place,) = known_failure_places(flatten, wrapping)
    found = list(EdgeCaseChecks(flatten, wrapping, "cpu", 3, only=place).far_rows())
    if not found:
        pytest.skip("no room for 8 GiB of addresses")
    assert {judged_known_failure(finding).status for finding in found} == {"known failure"}


def test_the_variants_of_an_operator_share_batches_and_answers():
    """And find the same as alone: contents and edits of an edge case are its own."""
    asked = []

    def reference(point, x):
        asked.append(point)
        return native.reference(point, x)

    operator, known = dataclasses.replace(native, reference=reference), {}
    variant = as_variant(chain_clamp)
    alone = list(EdgeCaseChecks(native, variant, "cpu", 5, thorough=False))
    assert list(EdgeCaseChecks(operator, variant, "cpu", 5, thorough=False, known=known)) == alone
    once = len(asked)
    assert list(EdgeCaseChecks(operator, variant, "cpu", 5, thorough=False, known=known)) == alone
    assert len(asked) == once > 0


class CountingCompiler:
    """torch for baselines/workloads/torch_compile.py, whose torch.compile counts graphs and runs eager operators."""

    def __init__(self):
        self.graphs = 0

    def __getattr__(self, name):
        return getattr(torch, name)

    def compile(self, function, dynamic):
        def counts(module, examples):
            self.graphs += 1
            return module.forward

        return torch.compile(function, dynamic=dynamic, backend=aot_autograd(fw_compiler=counts))


@pytest.fixture
def compiler(monkeypatch):
    compiler = CountingCompiler()
    monkeypatch.setattr(torch_compile, "torch", compiler)
    monkeypatch.setattr(torch_compile, "_functions", {})
    torch._dynamo.reset()
    yield compiler
    torch._dynamo.reset()


PADDING = "all requests are padding"


@full
def test_a_run_leaves_out_edge_cases_that_torch_compile_has_no_code_for(compiler):
    """But not ``verify``; and what is checked once is checked at the first edge case that ran."""
    edge_cases = [case for case in flatten.edge_cases if case.name in (PADDING, "B=1", "ragged")]
    edge_cases.sort(key=lambda case: case.name != PADDING)
    operator = dataclasses.replace(
        flatten, edge_cases=edge_cases, sequences={"one": flatten.sequences["big-small-big"]}
    )
    variant, replays = compiled_chain.__variant__, Replays()
    checks = DeviceChecks(no_alloc_no_sync, replays)

    found = EdgeCaseChecks(operator, variant, "cpu", 5, thorough=False, on_device=checks)
    run = {in_buffers(one.name, one.buffers): one for one in found}
    from_examples = compiler.graphs
    left_out = run.pop(PADDING)
    assert (left_out.status, left_out.reason.code) == ("skipped", "recompiles")
    assert {finding.status for finding in run.values()} == {"passed"}
    assert {"B=1", "ragged", "one", "B=1, unaligned buffers"} < run.keys()
    assert [name for name, finding in run.items() if "no_sync" in finding.passed_checks] == ["B=1"]
    assert "graph_safe" in run["B=1"].passed_checks
    assert from_examples == len(chains._EXAMPLES)

    (finding,) = EdgeCaseChecks(operator, variant, "cpu", 5, thorough=True, only=(PADDING, None))
    assert finding.status == "passed"
    assert compiler.graphs > from_examples


@pytest.mark.parametrize("off", [0, 1])
def test_a_variant_that_compiles_in_its_launch_runs_at_every_edge_case(compiler, off):
    """Its code does not exist before the first of them."""
    fill = compiler.compile(lambda target, lens: target.copy_(lens + off), dynamic=True)

    def compiles_late(point, x, out):
        def launch():
            lens = right_lens(point, x).flatten()
            fill(out.buffer[: lens.numel()], lens)

        return launch

    operator = dataclasses.replace(native, edge_cases=native.edge_cases[:4], sequences={})
    variant = dataclasses.replace(as_variant(compiles_late), requires=(COMPILER,))
    findings = list(EdgeCaseChecks(operator, variant, "cpu", 5, thorough=False))
    assert {finding.status for finding in findings} == {"mismatch" if off else "passed"}
    assert {case.name for case in operator.edge_cases} == {finding.name for finding in findings}


@full
def test_wrong_code_of_torch_compile_is_rejected_where_a_run_has_it(compiler, monkeypatch):
    def too_long(x, out, indices, actual):
        merged(x, out, indices, actual)
        out.lens[1:actual] += 1  # which the first edge case, with one token, does not show

    merged = chains._merged
    monkeypatch.setattr(chains, "_merged", too_long)
    findings = list(EdgeCaseChecks(flatten, chains.compiled_chain.__variant__, "cpu", 5, thorough=False))
    outcomes = {finding.name: finding.status for finding in findings}
    assert outcomes["ragged"] == "mismatch"
    assert outcomes[PADDING] == "skipped"
