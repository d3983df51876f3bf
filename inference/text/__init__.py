"""Text in and out of token ids: tokenising, detokenising, stop sequences, chat templates."""
