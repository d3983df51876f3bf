"""Layers that keep a state of what they have read in place of keys and values."""
