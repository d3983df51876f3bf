"""Images of requests: which may be fetched, from where, and how much of them is held."""
