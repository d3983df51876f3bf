"""The ladder of levels: the fastest way to compute a model that gives its own numbers, and its proof."""
