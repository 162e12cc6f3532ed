"""Kernels of engines and libraries as variants, one file per package, and one per operator of vLLM's step. They need
the package; nothing of it is copied.

docs/upstream.md says how to install each, and what it is known not to do.
"""
