"""The operators, one folder each: what it computes, inputs, scalar reference, PyTorch-op variants, historic defects."""
