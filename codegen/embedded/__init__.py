"""Build the model that ships inside Parley: its text, its tokenizer, its weights and its score."""
