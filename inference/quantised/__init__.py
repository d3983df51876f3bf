"""Checkpoints whose weights were quantised before: what they hold, and how each weight is expanded."""
