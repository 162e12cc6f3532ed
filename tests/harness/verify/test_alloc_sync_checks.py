"""The contracts of a launch: what is said of each, replays of a captured graph, and the columns of verify and list.

Where there is no GPU, a graph is stood in for by a closure that runs the launch's work again, or one that does it
wrong.
"""

import io
import itertools
import json
from contextlib import redirect_stderr, redirect_stdout

import pytest
import torch

import bench
from baselines.decode_flatten.chains import merged_chain
from baselines.decode_flatten.operator import operator as flatten
from baselines.decode_native.chains import chain_clamp
from baselines.decode_native.operator import operator as native
from harness.checks import CHECKS, WAIVABLE, Mismatch
from harness.contract import Variant
from harness.discover import discover
from harness.verify.fixture import Fixture
from harness.verify.graph_replay import STEPS, Size, check_replays
from harness.verify.hard_points import DeviceChecks, Finding, check_variant, outcomes
from tests.runnable import defective

POINT = native.complete({"batch_size": 5, "max_decode_len": 3, "context_len": {"uniform": [10, 900]}})
CATALOG = discover()
NAMES = [contract.name for contract in CHECKS]


def as_variant(operator, setup, waives=()):
    skip = lambda p: "end-aligned only" if p.get("row_alignment") == "front" or p.get("host_lens") == "stale" else None  # noqa: E731
    return Variant(
        operator=operator.name, name=setup.__name__, setup=setup, doc="", origin="test", skip=skip, waives=waives
    )


class Replays:
    """A capture that counts: a graph does what its launch does."""

    def __init__(self):
        self.graphs, self.replayed = 0, 0

    def __call__(self, launch):
        self.graphs += 1

        def replay():
            self.replayed += 1
            launch()

        return replay


def idle(launch):
    return lambda: None


def cannot(launch):
    """As the driver answers a launch that waits."""
    raise RuntimeError("operation not permitted when stream is capturing\nand more")


def sized(point=POINT, operator=native, setup=chain_clamp, **more):
    made = Fixture(operator, point, "cpu", 3, **more)
    return Size(made, setup(point, made.inputs.view, made.outputs.view))


# --- replays ----------------------------------------------------------------------------------------------------------


def test_a_graph_that_does_what_its_launch_does_passes_200_replays():
    size, capture = sized(), Replays()
    check_replays([size], capture)
    assert capture.graphs == 1
    assert capture.replayed == STEPS + 1 == 201
    assert "graph_safe" in size.bench.held


@pytest.mark.parametrize(
    ("capture", "words"),
    [
        (idle, r"replay 1 of 200: buffer is not what an eager launch .* got \d+ \(poison: never written\)"),
        (
            cannot,
            r'cannot be captured in a CUDA graph \(RuntimeError: operation not permitted.*declare waives="graph_safe"',
        ),
    ],
)
def test_a_graph_that_does_not_is_rejected(capture, words):
    size = sized()
    size.bench.fill(1)
    with pytest.raises(Mismatch, match=words) as caught:
        check_replays([size], capture)
    assert caught.value.check == "graph_safe"
    assert "graph_safe" not in size.bench.held


def test_a_graph_that_holds_on_to_the_contents_of_its_capture_is_rejected():
    size = sized()

    def capture(launch):
        launch()
        captured = size.bench.outputs.view.buffer.clone()
        return lambda: size.bench.outputs.view.buffer.copy_(captured)

    with pytest.raises(Mismatch, match=r"replay 1 of 200: buffer is not what .* \[0\] expected \d+, got \d+"):
        check_replays([size], capture)


def test_a_graph_that_goes_wrong_after_fifty_steps_is_rejected_then():
    """As in vLLM #35175, where the allocator took that long to give the captured memory to somebody else."""
    size, replayed = sized(), itertools.count()

    def capture(launch):
        def replay():
            launch()
            if next(replayed) >= 50:
                size.bench.outputs.view.buffer[2] += 1

        return replay

    with pytest.raises(Mismatch, match=r"replay 51 of 200: .* first at \[2\]"):
        check_replays([size], capture)


def test_between_two_steps_tensors_are_allocated_overwritten_and_freed(monkeypatch):
    dropped, full = [], torch.full
    monkeypatch.setattr(torch, "full", lambda *a, **k: dropped.append(a) or full(*a, **k))
    size = sized()
    before = len(dropped)
    check_replays([size], Replays(), steps=20)
    capacity = size.bench.outputs.view.buffer.numel() * 4
    assert sum(shape == ((capacity,), 0x2B) for shape in dropped[before:]) == 20


def forgets_the_tail(point, x, out):
    """Right where the outputs are poisoned in between: it clears what looks used, and stale lengths of a larger step
    do not.
    """
    inner, before = merged_chain(point, x, out), out.lens.clone()

    def launch():
        before.copy_(out.lens)
        inner()
        unused = slice(x.num_decode_tokens, None)
        out.lens[unused] = torch.where(before[unused] < 1_000_000, before[unused], 0)

    return launch


def test_sizes_take_turns_through_the_same_buffers_on_stale_contents_too():
    """Big, small, big: an eager launch that leaves the tail is found before anything is captured, and so is its
    graph.
    """
    big, small = (flatten.complete(step) for step in flatten.sequences["big-small-big"][:2])

    def sizes(setup):
        first = sized(big, flatten, setup)
        return [first, sized(small, flatten, setup, outputs=first.bench.outputs), first]

    capture = Replays()
    check_replays(sizes(merged_chain), capture, steps=45)
    assert capture.graphs == 2
    with pytest.raises(Mismatch, match="lens"):
        check_replays(sizes(forgets_the_tail), Replays(), steps=45)
    honest = sizes(merged_chain)

    def captured_wrong(launch):
        size = next(size for size in honest if size.launch is launch)
        return forgets_the_tail(size.bench.point, size.bench.inputs.view, size.bench.outputs.view)

    with pytest.raises(Mismatch, match=r"replay \d+ of 45: lens is not what") as caught:
        check_replays(honest, captured_wrong, steps=45)
    assert caught.value.check == "graph_safe"


# --- what is said of a variant ----------------------------------------------------------------------------------------


def told(setup, device="cpu", waives=(), **checks):
    variant = as_variant(native, setup, waives)
    findings = list(check_variant(native, variant, "cpu", seed=5, checks=DeviceChecks(**checks) if checks else None))
    return dict(outcomes(variant, findings, device)), findings


def both(variant, launch):
    return {"no_alloc", "no_sync"} - set(variant.waives)


def test_on_a_cpu_what_needs_a_device_is_never_passed():
    found, _ = told(chain_clamp)
    assert found == {name: "not checked" if name in WAIVABLE else "yes" for name in NAMES}


def test_with_a_device_everything_is_put_to_the_test():
    capture = Replays()
    found, findings = told(chain_clamp, "cuda", promises=both, capture=capture)
    assert set(found.values()) == {"yes"}
    passed = [finding for finding in findings if finding.outcome == "passed"]
    assert capture.replayed >= len(passed) * STEPS
    assert all("graph_safe" in finding.held for finding in passed)


def test_what_is_waived_is_neither_tested_nor_said_to_hold():
    capture = Replays()
    found, _ = told(chain_clamp, "cuda", waives=("no_sync", "graph_safe"), promises=both, capture=capture)
    assert (found["no_sync"], found["graph_safe"], found["no_alloc"]) == ("waived", "waived", "yes")
    assert capture.graphs == 0


def test_a_run_proves_replays_once_and_verify_everywhere():
    few, many = Replays(), Replays()
    variant = as_variant(native, chain_clamp)
    list(check_variant(native, variant, "cpu", 5, thorough=False, checks=DeviceChecks(both, few)))
    list(check_variant(native, variant, "cpu", 5, thorough=True, checks=DeviceChecks(both, many)))
    assert few.graphs == 2  # one sequence of two sizes
    assert many.graphs > 15


@pytest.mark.parametrize("capture", [idle, cannot])
def test_a_graph_that_fails_is_a_broken_contract(capture):
    found, findings = told(chain_clamp, "cuda", promises=both, capture=capture)
    assert found["graph_safe"] == "no"
    assert found["exact"] == "yes"
    assert {finding.check for finding in findings if finding.outcome == "rejected"} == {"graph_safe"}


def test_a_broken_promise_is_no_even_where_it_is_waived():
    """Memory that grows with every launch is nothing that can be waived."""

    def grows(variant, launch):
        raise Mismatch("no_alloc", "every launch keeps 4 bytes of device memory more")

    found, _ = told(chain_clamp, "cuda", waives=("no_alloc",), promises=grows, capture=Replays())
    assert found["no_alloc"] == "no"


def copied(point, x, out):
    fill = chain_clamp(point, x, out)

    def launch():
        fill()
        return {"context_lens": native.views(point, out)["context_lens"].clone()}

    return launch


def handed_on(point, x, out):
    fill = chain_clamp(point, x, out)

    def launch():
        fill()
        return native.views(point, out)

    return launch


def test_contracts_are_held_to_what_was_reached_before_the_rejection():
    found, _ = told(copied)
    assert found["stable_address"] == "no"
    assert (found["in_bounds"], found["inputs_unchanged"]) == ("yes", "yes")
    assert (found["exact"], found["contiguous"]) == ("-", "-")  # never reached
    assert told(handed_on)[0] == told(chain_clamp)[0]


def test_nothing_is_said_of_what_never_ran():
    waiving = as_variant(native, chain_clamp, ("no_alloc",))
    assert set(outcomes(waiving, [Finding("B=1", "skipped")], "cpu").values()) == {"-"}
    assert set(outcomes(waiving, [], "cuda").values()) == {"-"}


# --- the command line -------------------------------------------------------------------------------------------------


def call(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = bench.main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "one.yaml"
    path.write_text(
        "name: one\noperators: [decode_native]\nvariants: [chain_clamp, flat_view]\nsweep: [{batch_size: 3}]\n"
    )
    return path


def test_verify_shows_a_column_for_every_contract_and_fits_80_columns(config):
    code, out, err = call("verify", config, "--device", "cpu", "--seed", 1)
    assert code == 0, err
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    start = lines.index("decode_native")
    head = " ".join(" ".join(lines[start + 1 : start + 3]).split())
    for word in {word for name in NAMES for word in name.split("_")}:
        assert word in head
    row = next(line for line in lines[start:] if line.startswith("chain_clamp"))
    assert row.split() == ["chain_clamp", "yes", "yes", "yes", "waived", "not", "yes", "yes", "not"]
    assert lines[lines.index(row) + 1].split() == ["checked", "checked"]
    assert "passed" not in out[out.index("\ndecode_native\n") : out.index("historic defect")]


#: Historic defects of the operator of this configuration.
KNOWN = len(defective(native.name))


def test_the_mutation_table_names_the_check_that_rejected_each_defect(config):
    code, out, err = call("verify", "--defects", config, "--device", "cpu", "--seed", 1)
    assert code == 0, err
    text = " ".join(out.split())
    assert "strided_slice contiguous L = 1" in text
    assert "contiguous_per_step stable_address L = 1" in text
    assert "points of the sweep" not in out
    assert out.splitlines()[-1] == f"{KNOWN} of {KNOWN} rejected"


SLIPS = """
from harness.contract import GPU, variant
from baselines.decode_native.chains import chain_clamp

skip = lambda p: "end-aligned only" if p.row_alignment == "front" else None

@variant("decode_native", defect="none at all", waives="no_alloc", skip=skip)
def no_defect(point, x, out):
    return chain_clamp(point, x, out)

@variant("decode_native", defect="never gets as far as a check")
def raises(point, x, out):
    raise ValueError("no luck today")

@variant("decode_native", defect="seen on a GPU alone", requires=GPU)
def elsewhere(point, x, out):
    return None
"""


def test_a_defect_that_slips_fails_the_command_and_one_that_cannot_run_is_not_counted(config, tmp_path):
    (tmp_path / "slips.py").write_text(SLIPS)
    code, out, _ = call("verify", config, "--defects", "--variants", "slips.py", "--device", "cpu", "--seed", 1)
    assert code == 1
    text = " ".join(out.split())
    assert "decode_native/no_defect: a known defect passed every check" in text
    assert (
        "decode_native/raises: a known defect raised at 'B=1' instead of being rejected: ValueError: no luck today"
        in text
    )
    assert "elsewhere unavailable needs a GPU" in text
    assert out.splitlines()[-1] == f"{KNOWN} of {KNOWN + 2} rejected, 1 unavailable on this machine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verify"], "verify needs a configuration"),
        (["verify", "--defects", "--only", "x"], "name the configuration"),
        (["verify", "--defects", "--set", "batch_size=1"], "name the configuration"),
    ],
)
def test_verify_without_a_configuration(arguments, words, config):
    code, _, err = call(*arguments)
    assert code == 2
    assert words in " ".join(err.split())


def test_list_says_promised_or_waived_and_never_passed(config):
    code, out, _ = call("list", "--json", "--device", "cpu")
    assert code == 0
    rows = {f"{row['operator']}/{row['variant']}": row["contracts"] for row in json.loads(out)["variants"]}
    assert all(list(contracts) == NAMES for contracts in rows.values())
    assert {state for contracts in rows.values() for state in contracts.values()} == {"promised", "waived"}
    assert [name for name, state in rows["mla_tile_schedule/host_loop"].items() if state == "waived"] == list(WAIVABLE)
    code, out, _ = call("list", "--device", "cpu")
    text = " ".join(out.split())
    assert "promised by every variant that does not waive them" in text
    assert all(name in text for name in NAMES)


def listed_contracts(out):
    """Operator -> variant -> what the columns of all its contract lists say, from left to right; heads under None."""
    found, operator, rows = {}, None, None
    for line in out.splitlines():
        if (name := line.partition(":")[0]) in CATALOG.operators:
            operator, rows = name, None
        elif line.startswith("promised by"):
            rows = found.setdefault(operator, {})
            rows.setdefault(None, []).extend(line.split()[2:])
        elif not line.strip():
            rows = None
        elif rows is not None and {"yes", "waived"} & set(line.split()):
            name, *told = line.split()
            rows.setdefault(name, []).extend(told)
    return found


@pytest.mark.parametrize("columns", [None, 60, 80, 120])
def test_contracts_are_columns_of_a_list_no_word_of_which_breaks(columns, monkeypatch):
    """A name of a variant may be folded at its underscores."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = call("list", "--device", "cpu")
    assert max(map(len, out.splitlines())) <= (columns or 100)
    found = listed_contracts(out)
    assert list(found) == list(CATALOG.operators)
    for operator, rows in found.items():
        assert rows.pop(None) == [name.split("_")[-1] for name in NAMES]
        healthy = [variant for variant in CATALOG.of(operator) if variant.defect is None]
        assert len(rows) == len(healthy)
        for variant, (name, told) in zip(healthy, rows.items(), strict=True):
            assert variant.name.startswith(name)
            assert told == ["waived" if contract in variant.waives else "yes" for contract in NAMES]


def test_only_what_needs_a_device_can_be_waived():
    assert set(WAIVABLE) == {contract.name for contract in CHECKS if contract.needs_device}


def test_poison_is_called_poison_where_no_result_can_be_mistaken_for_it():
    from harness.verify.mismatch import places

    def told(dtype, got, before):
        make = lambda value: torch.full((1,), value, dtype=dtype)  # noqa: E731
        return places(torch.tensor([True]), make(5), make(got), make(before))

    assert told(torch.int32, 0x7F7F7F7F, 0x7F7F7F7F).endswith("got 2139062143 (poison: never written)")
    assert told(torch.uint8, 0x7F, 0x7F).endswith("got 127 (as poisoned: never written, or with this very value)")
    assert told(torch.uint8, 0x7F, 0x71).endswith("got 127")  # the other poison: it was written
    assert told(torch.uint8, 9, 9).endswith("got 9")
    kept = places(
        torch.tensor([True]),
        torch.full((1,), 0x71, dtype=torch.uint8),
        torch.ones(1),
        torch.full((1,), 0x71, dtype=torch.uint8),
    )
    assert "expected 113 (what it held), got 1" in kept
