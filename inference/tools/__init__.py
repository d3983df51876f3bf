"""Tools: shown to a model, its calls constrained by their schemas, and read from what it generates."""
