"""verify --consumers: a kernel that reads the tables gets the same results from every variant's."""

import pytest

from tests.cli.test_cli import call

CONSUMER = """
from spec_decode_bench.baselines.decode_native.chains import flat_view
from spec_decode_bench.harness.contract import consumer, variant


@consumer("decode_native", planner="chain_clamp")
def reader(point, x, out):
    {read}


@variant("decode_native")
def one_more(point, x, out):
    launch = flat_view(point, x, out)

    def wrong():
        launch()
        out.buffer[0] += 1

    return wrong
"""
CONFIG = """
name: one
operators: [decode_native]
variants: [chain_clamp, flat_view, {more}]
sweep: [{{batch_size: [3, 5]}}]
"""


@pytest.fixture
def verify(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def with_(more="flat_view", read='return {"sums": out.buffer[: x.seq_lens.numel()] * 2}'):
        (tmp_path / "reader.py").write_text(CONSUMER.format(read=read))
        (tmp_path / "one.yaml").write_text(CONFIG.format(more=more))
        more = ("--variants", "reader.py", "--device", "cpu", "--seed", 1)
        code, out, err = call("verify", "one.yaml", "--consumers", *more)
        return code, " ".join(out.split()), err

    return with_


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({}, 0, "decode_native/flat_view reader chain_clamp 2 8 0"),
        ({"more": "one_more"}, 1, "decode_native/one_more reader chain_clamp 2 8 2"),
        (
            {"read": 'raise RuntimeError("no such page")'},
            1,
            "reader: 2 times failed: chain_clamp: RuntimeError: no such page",
        ),
    ],
    ids=["same results", "other results are counted", "it fails"],
)
def test_what_a_consumer_reads_decides(changes, code, said, verify):
    found, out, err = verify(**changes)
    assert found == code, out + err
    assert said in out
