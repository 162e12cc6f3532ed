"""Wrong kernels that look right: each must be rejected, by the check meant for it, with the location of the fault."""

import dataclasses
import functools
import itertools

import pytest
import torch

from spec_decode_bench.baselines.decode_flatten.chains import merged_chain
from spec_decode_bench.baselines.decode_flatten.operator import operator as flatten
from spec_decode_bench.baselines.decode_native.operator import operator as native
from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.contract import Expected
from spec_decode_bench.harness.records.sentences import ending
from spec_decode_bench.harness.session.evaluator import Evaluator
from spec_decode_bench.harness.session.messages import Job
from spec_decode_bench.harness.verify.buffers import GUARD_BYTES, MARGIN_BYTES, POISONS, Guarded
from spec_decode_bench.harness.verify.edge_cases import EdgeCaseChecks
from spec_decode_bench.harness.verify.equality import View, check_equal, differences, required, small
from spec_decode_bench.harness.verify.fixture import Fixture, verify_again, verify_cell, verify_sequence
from tests import factory
from tests.in_process import measured
from tests.runnable import variant_of


def right_lens(point, x):
    """decode_native's answer by broadcasting, on whatever device the inputs are."""
    width = point.max_decode_len
    return (
        (x.seq_lens[:, None] - width + 1 + torch.arange(width, device=x.seq_lens.device)).clamp_(min=0).to(torch.int32)
    )


def right(point, x, out):
    def launch():
        lens = right_lens(point, x)
        out.buffer[: lens.numel()].copy_(lens.flatten())

    return launch


def unwritten_output(point, x, out):
    def launch():
        lens = right_lens(point, x).flatten()
        out.buffer[: lens.numel() - 1].copy_(lens[:-1])

    return launch


def computed_during_setup(point, x, out):
    answer = right_lens(point, x).flatten()

    def launch():
        out.buffer[: answer.numel()].copy_(answer)

    return launch


POINT = native.complete({"batch_size": 5, "max_decode_len": 3, "context_len": {"uniform": [10, 900]}})


def after_the_right_launch(do):
    """Set-up of a launch that is right, then does ``do(x, out)`` and returns what that returns."""

    @functools.wraps(do)
    def setup(point, x, out):
        launch_right = right(point, x, out)

        def launch():
            launch_right()
            return do(x, out)

        return launch

    return setup


@after_the_right_launch
def mutates_input(x, out):
    x.seq_lens[-1] += 1


@after_the_right_launch
def writes_one_too_many(x, out):
    out.buffer[POINT.batch_size * POINT.max_decode_len] = 0


@after_the_right_launch
def writes_before_an_input(x, out):
    x.seq_lens.as_strided((1,), (1,), x.seq_lens.storage_offset() - 1).zero_()


@after_the_right_launch
def returns_other_strides(x, out):
    rows, columns = out.views(POINT)["context_lens"].shape
    return {"context_lens": out.buffer.as_strided((rows, columns), (1, rows))}


@after_the_right_launch
def returns_wrong_dtype(x, out):
    return {"context_lens": out.views(POINT)["context_lens"].long()}


@pytest.mark.parametrize(
    ("wrong", "check", "words"),
    [
        (unwritten_output, "exact", r"\[b=\d, j=\d\] expected .* got .*poison: never written"),
        (computed_during_setup, "exact", r"\[b=0, j=0\] expected \d+, got \d+"),
        (mutates_input, "inputs_unchanged", r"seq_lens was written to; \[4\]"),
        (writes_one_too_many, "exact", r"\[15\] expected .*, got 0"),
        (writes_before_an_input, "in_bounds", "outside the input seq_lens .* at byte -4"),
        (returns_other_strides, "contiguous", r"strides \(1, 5\), expected \(3, 1\)"),
        (returns_wrong_dtype, "return_value", "int64"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_wrong_kernels_are_rejected_and_right_ones_are_not(wrong, check, words, device):
    verify_cell(Fixture(native, POINT, device, seed=3), variant_of(right))
    with pytest.raises(Mismatch, match=words) as caught:
        verify_cell(Fixture(native, POINT, device, seed=3), variant_of(wrong))
    assert caught.value.check == check


def right_on_poison_only(point, x, out):
    """Adds its answer instead of storing it, to what it takes for an empty buffer."""
    launch_right = right(point, x, out)

    def launch():
        used = bool(out.buffer[0] < 1_000_000)
        launch_right()
        out.buffer[: point.batch_size * point.max_decode_len] += int(used)

    return launch


def idle_where_its_ends_are_right(point, x, out):
    """Works again only when first or last element of its output changed, or its inputs did."""
    launch_right, last = right(point, x, out), []

    def launch():
        seen = [x.seq_lens.clone(), out.buffer[[0, point.batch_size * point.max_decode_len - 1]].clone()]
        if not last or not all(map(torch.equal, last, seen)):
            launch_right()
            last[:] = [seen[0], out.buffer[[0, point.batch_size * point.max_decode_len - 1]].clone()]

    return launch


@pytest.mark.parametrize("wrong", [right_on_poison_only, idle_where_its_ends_are_right])
def test_a_launch_runs_on_its_own_result_and_again_on_the_same_inputs(wrong, device):
    with pytest.raises(Mismatch) as caught:
        verify_cell(Fixture(native, POINT, device, seed=3), variant_of(wrong))
    assert caught.value.check == "exact"


_NEWEST = []


def of_the_newest_set_up(point, x, out):
    _NEWEST[:] = [out]
    return lambda: right(point, x, _NEWEST[0])()


def test_an_earlier_set_up_is_right_after_a_later_one(device):
    fixture = Fixture(native, POINT, device, seed=3)
    verify_cell(fixture, variant_of(right), again=True)
    verify_cell(fixture, variant_of(of_the_newest_set_up))
    with pytest.raises(Mismatch, match="differs"):
        verify_cell(fixture, variant_of(of_the_newest_set_up), again=True)


def idle_after_900_launches(point, x, out):
    launch_right, calls = right(point, x, out), itertools.count()
    return lambda: launch_right() if next(calls) < 900 else None


def test_a_launch_is_right_after_many(device):
    fixture = Fixture(native, POINT, device, seed=3)
    verify_again(fixture, verify_cell(fixture, variant_of(right)), 1000)
    with pytest.raises(Mismatch, match="after 1,000 launches"):
        verify_again(fixture, verify_cell(fixture, variant_of(idle_after_900_launches)), 1000)


@pytest.mark.parametrize("lens", [{"uniform": [10, 900]}, 100], ids=["of each batch", "of all batches"])
def test_set_up_never_sees_the_batch_of_the_first_launch(lens, device):
    """The first launch is the only one of an interpreted variant in a sweep."""
    point = native.complete(dict(POINT) | {"context_len": lens})
    with pytest.raises(Mismatch, match="differs"):
        verify_cell(Fixture(native, point, device, seed=3, batches=2), variant_of(computed_during_setup), once=True)


def test_a_write_far_behind_a_buffer_is_found(device):
    """It lies in another buffer, or its canaries."""
    fixture = Fixture(flatten, flatten.complete({"batch_size": 3, "max_model_len": 4000}), device, seed=1)
    start, far = fixture.outputs.buffers["lens"].tensor, fixture.outputs.buffers["decode_lens"]
    distance = far.tensor.data_ptr() - start.data_ptr()
    assert 0 < distance - start.nbytes < 3 * GUARD_BYTES
    for name, margin in zip(("lens", "block_table"), fixture.outputs._margins, strict=True):
        assert len(margin) == MARGIN_BYTES
        margin[MARGIN_BYTES // 2] = 0
        assert abs(fixture.outputs.stray_writes()[name]) > GUARD_BYTES


def leaves_zeros_to_the_buffer(point, x, out):
    def launch():
        lens = right_lens(point, x).flatten()
        rows = out.buffer[: lens.numel()]
        rows.copy_(torch.where(lens > 0, lens, rows))

    return launch


def test_a_sequence_starts_on_poison(device):
    point = native.complete(dict(POINT) | {"batch_size": 4, "padding": 0.5})
    words = "step 1 of 1 through the same buffers: .*poison: never written"
    with pytest.raises(Mismatch, match=words):
        verify_sequence(native, variant_of(leaves_zeros_to_the_buffer), [point], device, seed=1)


def test_every_step_of_a_sequence_has_other_contents(device):
    first = []

    def answers_as_in_the_first_step(point, x, out):
        def launch():
            first.append(right_lens(point, x).flatten())
            out.buffer[: first[0].numel()].copy_(first[0])

        return launch

    with pytest.raises(Mismatch, match="step 2 of 2"):
        verify_sequence(native, variant_of(answers_as_in_the_first_step), [POINT, POINT], device, seed=1)


def test_no_element_is_right_because_of_its_poison(device):
    """A value of one byte may equal a poison; it is compared under another one, too."""
    assert len(set(POISONS)) == 2
    value = torch.tensor([POISONS[0], POISONS[1]], dtype=torch.uint8)
    for index, pattern in enumerate(POISONS):
        guarded = Guarded(value, device)
        guarded.poison(pattern)
        never_written = guarded.tensor.clone()
        with pytest.raises(Mismatch, match=rf"\[{1 - index}\] expected"):
            check_equal("state", guarded.tensor, never_written, Expected(value.to(guarded.tensor.device)))


def test_a_row_written_one_row_too_far_meets_a_canary(device):
    """As wide as a block table of the longest model with blocks of 64 tokens."""
    guarded = Guarded(torch.zeros(2, 163840 // 64, dtype=torch.int32), device)
    for row in (-1, 2):
        beside = guarded.tensor.as_strided((2560,), (1,), guarded.tensor.storage_offset() + row * 2560)
        kept = beside.clone()
        beside.fill_(3)
        assert guarded.stray_write() == row * 2560 * 4
        beside.copy_(kept)


def test_tensors_keep_their_strides_between_canaries(device):
    source = torch.arange(40, dtype=torch.int32).view(4, 10)[:, :3]
    guarded = Guarded(source, device)
    assert (guarded.tensor.shape, guarded.tensor.stride()) == ((4, 3), (10, 1))
    assert torch.equal(guarded.tensor.cpu(), source)


def test_what_is_right_for_uniform_batches_only_is_rejected_at_a_edge_case(device):
    def uniform_only(point, x, out):
        def launch():
            b = torch.arange(x.num_decode_tokens, device=x.seq_lens.device) // point.max_decode_len
            j = torch.arange(x.num_decode_tokens, device=x.seq_lens.device) % point.max_decode_len
            b = b.clamp_(max=len(x.seq_lens) - 1)
            out.lens.zero_()
            out.lens[: len(b)] = (x.seq_lens[b] - point.max_decode_len + 1 + j).clamp_(min=0).to(torch.int32)
            out.decode_lens[: len(b)] = 1
            columns = min(x.block_table.shape[1], out.block_table.shape[1])
            out.block_table[: len(b), :columns] = x.block_table[b, :columns]

        return launch

    verify_cell(
        Fixture(flatten, flatten.complete({"batch_size": 4, "context_len": 900}), device, seed=1),
        variant_of(uniform_only, flatten.name),
    )
    findings = list(
        EdgeCaseChecks(flatten, variant_of(uniform_only, flatten.name, waives=("no_alloc",)), device, seed=1)
    )
    rejected = {finding.name for finding in findings if finding.status == "mismatch"}
    assert {"ragged", "padding row in the middle", "ragged with token padding"} <= rejected
    assert "L = 1" not in rejected


def forgets_the_tail(point, x, out):
    """Zeroes its own padding, not what a larger step left behind it: poison counts as "never used", so that single
    steps look right.
    """
    inner, before = merged_chain(point, x, out), out.lens.clone()

    def launch():
        before.copy_(out.lens)
        inner()
        stale = slice(x.num_decode_tokens, None)
        out.lens[stale] = torch.where(before[stale] < 1_000_000, before[stale], 0)

    return launch


def test_a_stale_tail_is_found_by_a_sequence_not_by_one_launch(device):
    points = [flatten.complete(step) for step in flatten.sequences["big-small-big"]]
    variant = variant_of(forgets_the_tail, flatten.name)
    verify_cell(Fixture(flatten, points[1], device, seed=1), variant, once=True)
    with pytest.raises(Mismatch, match="step 2 of 3"):
        verify_sequence(flatten, variant, points, device, seed=1)


def test_a_read_past_the_source_row_shows_in_the_slack(device):
    """Columns no consumer reads may hold the source's or old content, but nothing from another row."""
    value = torch.tensor([[5, 6, 0, 0]], dtype=torch.int32)
    slack = torch.tensor([[False, False, True, True]])
    before = torch.full((1, 4), 99, dtype=torch.int32)
    for legal in ([5, 6, 99, 0], [5, 6, 0, 99]):
        check_equal("table", torch.tensor([legal], dtype=torch.int32), before, Expected(value, may_keep=slack))
    kept_by_the_source = Expected(torch.tensor([[5, 6, 7, 8]], dtype=torch.int32), may_keep=slack)
    check_equal("table", torch.tensor([[5, 6, 0, 8]], dtype=torch.int32), before, kept_by_the_source)
    for illegal in ([5, 6, 42, 0], [5, 99, 0, 0]):
        with pytest.raises(Mismatch):
            check_equal("table", torch.tensor([illegal], dtype=torch.int32), before, Expected(value, may_keep=slack))


def test_unread_elements_may_hold_anything_and_nothing_else_may(device):
    value = torch.tensor([[5, 6, 0, 0]], dtype=torch.int32)
    before = torch.full((2, 4), 99, dtype=torch.int32)  # the second row belongs to a larger step
    expected = Expected(
        value,
        may_keep=torch.tensor([[False, False, True, False]]),
        dont_care=torch.tensor([[False, False, False, True]]),
    )
    assert required(expected).tolist() == [[True, True, False, False]]
    check_equal("table", torch.tensor([[5, 6, 0, -7], [99] * 4], dtype=torch.int32), before, expected)
    for wrong in ([[5, 6, -7, 0], [99] * 4], [[5, 7, 0, 0], [99] * 4], [[5, 6, 0, 0], [99, 99, 99, 0]]):
        with pytest.raises(Mismatch):
            check_equal("table", torch.tensor(wrong, dtype=torch.int32), before, expected)


@pytest.mark.parametrize("shape_stride", [((4, 3), (3, 1)), ((4, 3), (13, 1)), ((7,), (1,)), ((2, 0), (1, 1))])
def test_a_write_to_any_byte_around_a_buffer_is_found(shape_stride, device):
    shape, stride = shape_stride
    size = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1 if 0 not in shape else 1
    guarded = Guarded(torch.arange(max(size, 1), dtype=torch.int32).as_strided(shape, stride), device)
    inside = set(offsets(shape, stride))
    guarded.tensor.fill_(-1)
    assert guarded.stray_write() is None
    flat = guarded._bytes.view(torch.int32)
    first = GUARD_BYTES // 4
    for element in (-first, -1, *(o for o in range(size) if o not in inside), size + 1, len(flat) - first - 1):
        kept = flat[first + element].clone()
        flat[first + element] = 0
        assert guarded.stray_write() == 4 * element
        flat[first + element] = kept
    assert guarded.stray_write() is None


def offsets(shape, stride):
    return (sum(i * s for i, s in zip(index, stride, strict=True)) for index in itertools.product(*map(range, shape)))


@pytest.fixture
def cells_of(catalog, monkeypatch):
    """(operator, variants, fields that replace the operator's) -> its cells, by a CPU with one edge case."""

    def cells(operator, *variants, **replaced):
        evaluator = Evaluator(Job("cpu", (), 0, Measure(min_rounds=3, max_rounds=3), timed=True))
        brief = dataclasses.replace(operator, edge_cases=operator.edge_cases[:1], sequences={}, **replaced)
        monkeypatch.setitem(evaluator.catalog.operators, operator.name, brief)
        item = factory.item(operator, {"batch_size": 2}, variants)
        return list(measured(evaluator, item).values())

    return cells


@pytest.mark.parametrize("returned", [4.0, None, "8"])
def test_an_invalid_bytes_moved_costs_only_the_cells_of_its_operator(returned, cells_of):
    cells = cells_of(native, "chain_clamp", "flat_view", bytes_moved=lambda point, x: returned)
    assert [cell.status for cell in cells] == ["failed", "failed"]
    message = f"TypeError: bytes_moved returned {returned!r}; it must return a whole number of bytes"
    assert ending(cells[0]).endswith(message)
    assert [cell.status for cell in cells_of(flatten, "op_chain")] == ["passed"]


@pytest.mark.parametrize(
    ("returned", "status", "words"),
    [
        (True, "failed", "redundant= returned True; it must"),
        (None, "passed", ""),
        ("the same at B = 1", "skipped", "the same at B = 1"),
    ],
)
def test_a_point_is_redundant_for_a_reason_in_words(returned, status, words, cells_of):
    cells = cells_of(native, "chain_clamp", "flat_view", redundant=lambda point: returned)
    assert [cell.status for cell in cells] == [status] * 2
    assert all(words in (ending(cell) or "") for cell in cells)


@pytest.mark.parametrize(
    ("dtype", "got", "before", "said"),
    [
        (torch.int32, 0x7F7F7F7F, 0x7F7F7F7F, "got 2139062143 (poison: never written)"),
        (torch.uint8, 0x7F, 0x7F, "got 127 (still poison: never written, or written with this value)"),
        (torch.uint8, 0x7F, 0x71, "got 127"),  # the other poison: it was written
        (torch.uint8, 9, 9, "got 9"),
    ],
)
def test_poison_is_called_poison_where_no_result_can_be_mistaken_for_it(dtype, got, before, said):
    make = lambda value: torch.full((9,), value, dtype=dtype)  # noqa: E731
    found = differences("out", torch.ones(9, dtype=torch.bool), make(5), make(got), make(before))
    assert len(found.elements) == 5
    assert all(element.endswith(said) for element in found.elements)


def test_a_wrong_field_is_named_and_the_small_inputs_of_the_launch_are_shown():
    view = View("rows", torch.arange(8).view(4, 2), ("p", ("begin", "end")))
    assert view.place("buffer", view.tensor, (3, 1)) == "[p=3, end]"
    inputs = dataclasses.make_dataclass("Inputs", ["lens", "table", "pages"])(torch.tensor([7]), torch.zeros(99), 5)
    assert small(inputs) == ("lens = [7]", "pages = 5")
