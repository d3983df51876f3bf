"""That a model isn't of a shape that is rebuilt."""

from __future__ import annotations


class OtherShape(Exception):
    """A layer isn't of a shape that is known; the message says what is different."""
