"""The engine on a GPU, in this process: `python -m benchmarks.gpu`."""
