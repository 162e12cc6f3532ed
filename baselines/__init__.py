"""The operators, one folder each: specification, inputs, scalar reference, PyTorch variants, historic defects."""
