"""The forward pass on a CPU: on the C extension, or by the model's own code."""
