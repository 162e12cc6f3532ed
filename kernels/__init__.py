"""One file per operator: fused Triton and CUDA variants. CUDA C++ sources stand in ``cuda/``."""
