"""Tokens in, events out: text generation on PyTorch, with no knowledge of HTTP."""
