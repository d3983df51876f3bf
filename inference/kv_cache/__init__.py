"""The KV cache's pages: who holds them, which are known by what they hold, and which are free."""
