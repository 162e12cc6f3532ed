"""A graph of k copies holds k times the nodes of one."""

import pytest

from harness.checks import Mismatch
from harness.cuda_graph import check_nodes


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
