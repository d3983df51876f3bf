"""Servers beside each other, over HTTP, one at a time, on the same random weights and the same prompts."""
