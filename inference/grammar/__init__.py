"""Grammars: what a generated text must follow, compiled by llguidance for a model's vocabulary."""
