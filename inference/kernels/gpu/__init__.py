"""Triton's kernels: the only modules that import triton, and only imported where they are used."""
