"""Models with an encoder and a decoder."""
