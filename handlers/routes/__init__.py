"""The operations of the contract, and what those that generate have in common."""
