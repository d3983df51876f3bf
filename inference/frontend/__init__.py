"""The engine as its callers see it: requests are checked and tokenised, and their tokens become events."""
