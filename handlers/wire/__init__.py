"""Translation between JSON bodies and the engine's vocabulary: pure functions, no I/O, no web framework."""
