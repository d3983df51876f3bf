"""How a model is loaded: its files, its sizes, its code, and the best level of all for it."""
