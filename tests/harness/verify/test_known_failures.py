"""known_failures=: edge cases that an engine's kernel does not support. Nothing of this suite's own has any."""

import pytest

from spec_decode_bench import bench
from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.work_items import Check, Named
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.session import evaluator
from spec_decode_bench.harness.session.messages import Job
from spec_decode_bench.plots import latency
from tests.cli.test_cli import call
from tests.tier import full

PEER = """
import os

from spec_decode_bench.baselines.decode_native.chains import flat_view
from spec_decode_bench.harness.contract import variant

skip = lambda p: "plain rows only" if p.row_alignment == "front" or p.cp_size > 1 else None


def wrong_at(point, x, out, wrong):
    launch = flat_view(point, x, out)

    def peer():
        launch()
        if wrong(point):
            {what}

    return peer


@variant("decode_native", skip=skip, waives="no_alloc", fails_on={fails_on}, known_failures={known_failures})
def peer(point, x, out):
    return wrong_at(point, x, out, lambda p: {where})
"""
ALL = "lambda p, x: len(x.seq_lens) > 0"


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "220")
    config = "name: one\noperators: [decode_native]\nvariants: [peer, flat_view]\nsweep: [{batch_size: 3}]\n"
    (tmp_path / "one.yaml").write_text(config)

    def one(known_failures, where="p.batch_size == 1", what="out.buffer.fill_(7)", fails_on=ALL):
        (tmp_path / "peer.py").write_text(
            PEER.format(known_failures=known_failures, where=where, what=what, fails_on=fails_on)
        )

    return one


VERIFY = ("verify", "one.yaml", "--variants", "peer.py", "--device", "cpu", "--seed", 1, "--no-array")
B_IS_1 = {"B=1": "the engine never decodes one request"}


@pytest.mark.parametrize(
    ("known_failures", "where", "what", "ends_with", "words"),
    [
        (B_IS_1, "p.batch_size == 1", "os._exit(3)", 0, "no_crash: the worker process"),
        (B_IS_1, "p.batch_size in (1, 2, 3)", "out.buffer.fill_(7)", 1, "1 mismatch, 1 known failure"),
        pytest.param(B_IS_1, "False", "pass", 0, "passes here: remove it from known_failures=", marks=full),
        pytest.param({"*": "out of scope"}, "p.batch_size == 1", "out.buffer.fill_(7)", 1, "unverified:", marks=full),
        ({"B = 11": "no"}, "False", "pass", 2, "names 'B = 11', which is no edge case or sequence of decode_native"),
        ({"B=1": " "}, "False", "pass", 2, "needs a reason in words"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_becomes_of_a_limit(known_failures, where, what, ends_with, words, write):
    write(known_failures, where, what)
    code, out, err = call(*VERIFY)
    assert code == ends_with, out + err
    assert words in " ".join((out + err).split())


def test_it_is_listed_run_alone_and_marked_at_every_time(write, tmp_path):
    write(B_IS_1)
    code, out, _ = call("list", "decode_native", "--variants", "peer.py", "--device", "cpu")
    assert code == 0
    assert "the engine never decodes one request" in " ".join(out.split())
    code, out, _ = call(*VERIFY, "--point", "decode_native/peer/B=1")
    assert code == 0
    assert "peer at B=1: declared unsupported (the engine never decodes" in " ".join(out.split())
    out = tmp_path / "run"
    assert bench.main(["one.yaml", "--variants", "peer.py", "--device", "cpu", "--out", str(out), "--no-plots"]) == 0
    run = read_run(out / "run.jsonl")
    assert {cell.variant: cell.known_failures for cell in run.cells} == {"peer": B_IS_1, "flat_view": {}}
    table = (out / "table.md").read_text(encoding="utf-8")
    assert table.count("†") == 2
    assert "† decode_native/peer does not support 'B=1' (the engine never decodes one request)" in table
    texts = [text.get_text() for text in latency.figure([run]).findobj(lambda artist: hasattr(artist, "get_text"))]
    assert "peer †" in texts
    assert any("never decodes one request" in text for text in texts)


def test_nothing_of_the_project_carries_limits():
    ours = [v for v in discover().variants if v.folder in ("baselines", "kernels", "examples")]
    assert ours
    assert not [v.id for v in ours if v.known_failures]


def test_a_limit_in_far_rows_is_skipped_where_memory_is_short(monkeypatch):
    monkeypatch.setattr(evaluator, "EdgeCaseChecks", lambda *arguments, **options: iter(()))
    owner = evaluator.Evaluator(Job("cpu", (), 0, Measure(), timed=False))
    where = Named(name="B=1", buffers="far", known_failure=True)
    (checked,) = owner.check(Check(operator="decode_native", variants=("flat_view",), where=where))
    assert (checked.finding.status, checked.finding.reason.code) == ("skipped", "memory")
