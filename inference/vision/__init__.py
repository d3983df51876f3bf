"""Images in prompts: read, made into rows that stand for embeddings, and kept while prompts need them."""
