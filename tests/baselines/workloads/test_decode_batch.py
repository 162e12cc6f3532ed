"""Query tokens of the requests of a step."""

import pytest

from spec_decode_bench.baselines.workloads.decode_batch import num_query_tokens, query_lens


@pytest.mark.parametrize("pattern", ["uniform", "ragged", "mixed"])
def test_tokens_are_counted_without_making_their_requests(pattern):
    for top in (1, 2, 4, 7):
        assert [num_query_tokens(pattern, count, top) for count in range(45)] == [
            query_lens(pattern, count, top).sum() for count in range(45)
        ]
