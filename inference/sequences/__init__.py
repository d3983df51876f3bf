"""What is held of each sequence, and what one step is to compute of them."""
