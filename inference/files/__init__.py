"""A model's files: found, fetched, and looked through without trust."""
