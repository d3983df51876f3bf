"""What computes attention over the paged cache."""
