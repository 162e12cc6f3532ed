"""What the random batches of all Mamba operators have in common."""

import torch
from hypothesis import strategies as st

from tests.random_batches import compiled_values


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


batches = st.builds(
    lambda axes, k, row: axes | {"num_speculative_blocks": k, "max_decode_len": min(row, k + 1)},
    st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 10),
            "decode_len": st.sampled_from(["uniform", "ragged", "mixed"]),
            "padding": st.sampled_from([0.0, 0.2, 0.7]),
            "context_len": st.one_of(st.integers(1, 90), st.just({"uniform": [1, 90]})),
            "mamba_block_size": compiled_values(1, 2, 3, 4, 16, 33, 1024),
            "acceptance": st.sampled_from([0.0, 0.3, 0.8]),
        }
    ),
    compiled_values(1, 2, 3, 5),
    st.integers(1, 6),
)
