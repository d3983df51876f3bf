"""The path on a GPU: Triton's kernels, or torch's operations in their place."""
