"""Refusals that all routes share, with members called as the route at hand calls them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from inference.errors import GrammarRefused, InvalidInput, TemplateFailed

Names = Mapping[str, str]  # what a refusal says, and what it is to say; the longer ones first


@contextmanager
def renamed(names: Names) -> Iterator[None]:
    """Have refusals name members by these names."""
    try:
        yield
    except GrammarRefused:  # it quotes what was sent
        raise
    except (InvalidInput, TemplateFailed) as error:
        message = str(error)
        for name, own in names.items():
            message = message.replace(name, own)
        error.args = (message,)
        raise
