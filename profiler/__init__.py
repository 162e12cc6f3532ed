"""Runs cells under a profiler and reads its report: Nsight Systems, Nsight Compute, torch.profiler."""
