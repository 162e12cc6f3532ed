"""The fused Triton and CUDA variants, one folder per operator, with the CUDA C++ sources beside their launches."""
