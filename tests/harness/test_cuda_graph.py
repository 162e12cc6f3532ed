"""A graph of k copies holds k times the nodes of one."""

import gc

import pytest

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.cuda_graph import check_nodes, no_garbage_collection


@pytest.mark.parametrize(
    "of_four",
    [{"kernel": 7, "memcpy": 4}, {"kernel": 9, "memcpy": 4}, {"kernel": 8}, {"kernel": 8, "memcpy": 4, "memset": 1}],
    ids=["fewer", "more", "a kind less", "a kind more"],
)
def test_other_nodes_in_a_larger_graph_are_rejected(of_four):
    check_nodes({1: {"kernel": 2, "memcpy": 1}, 4: {"kernel": 8, "memcpy": 4}})
    with pytest.raises(Mismatch, match="same_work: the graph of 4 copies does not hold 4 times the nodes"):
        check_nodes({1: {"kernel": 2, "memcpy": 1}, 4: of_four})


def test_an_empty_graph_is_rejected():
    with pytest.raises(Mismatch, match="same_work: the captured graph is empty"):
        check_nodes({1: {}})


def test_nothing_is_collected_during_a_capture():
    with no_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), no_garbage_collection():
        1 / 0  # noqa: B018
    assert gc.isenabled()
    gc.disable()
    try:
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
