"""One file per operator: its specification, inputs, scalar reference, PyTorch-op variants and historic defects."""
