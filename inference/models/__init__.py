"""transformers' models taken apart and changed in place, whatever computes them."""
