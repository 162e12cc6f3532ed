"""Runs cells for a profiler, and reads what it found: Nsight Systems, Nsight Compute, torch.profiler."""
