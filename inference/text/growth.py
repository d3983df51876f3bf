"""How large the values of a chat template may become: what would be larger is refused before it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set, ValuesView
from itertools import chain, islice
from typing import Any

from jinja2.exceptions import SecurityError
from markupsafe import Markup

from inference.config import TEMPLATE_CHARACTERS

CHARACTERS = TEMPLATE_CHARACTERS  # of a text, or of all texts in a list
ITEMS = 200_000  # of a list, and of all lists in it, each counted wherever it stands
BITS = 4096  # of an integer
WIDTH = 100_000  # that texts are filled up to
ESCAPE = 5  # characters of "&amp;", which Markup makes of one

Guard = Callable[..., tuple[Any, ...]]  # is given the arguments, and returns them


def bounded(value: Any) -> Any:
    """Return a value that prints as no more than CHARACTERS; raise SecurityError for others."""
    if not isinstance(value, (str, bytes, int)):
        extent(value)
    return value


def text_bounded(value: Any) -> Any:
    """Return a value as `bounded` does, but for long texts, too."""
    extent(value)
    return value


def extent(value: Any) -> tuple[int, int]:
    """Return how many values there are in one, and their characters; raise SecurityError for too many."""
    items = characters = 0
    left: list[Any] = [value]
    while left:
        item = left.pop()
        items += 1
        if isinstance(item, (str, bytes)):
            characters += len(item)
        elif isinstance(item, int):
            characters += item.bit_length() // 3
        else:
            left.extend(islice(_parts(item), ITEMS + 1))
        if items + len(left) > ITEMS or characters > CHARACTERS:
            raise SecurityError("a list or a text has become too long")
    return items, characters


def _parts(value: Any) -> Iterable[Any]:
    """Return what a value prints of others."""
    if isinstance(value, (list, tuple, Set, ValuesView)):
        return value
    if isinstance(value, Mapping):  # with the proxies that views of dicts lead to
        return chain(value, value.values())
    return ()


def grown(*parts: Any) -> None:
    """Raise SecurityError if what is put together is too long, or a sum too large."""
    if isinstance(parts[0], (str, bytes)):
        escapes = len({isinstance(part, Markup) for part in parts}) > 1
        size = sum(len(part) for part in parts if isinstance(part, (str, bytes)))
        fits(size * (ESCAPE if escapes else 1))
    elif isinstance(parts[0], (list, tuple)):
        bounded(list(parts))
    else:
        small(*parts)


def product(left: Any, right: Any) -> None:
    """Raise SecurityError if a repetition is too long, or a product too large."""
    for repeated, times in ((left, right), (right, left)):
        if isinstance(repeated, (str, bytes)) and isinstance(times, int):
            if len(repeated) * times > CHARACTERS:
                raise SecurityError("a repetition is too long")
        elif isinstance(repeated, (list, tuple)) and isinstance(times, int):
            if len(repeated) * times > ITEMS:
                raise SecurityError("a repetition is too long")
            bounded([repeated] * times)
    small(left, right)


def power(base: Any, exponent: Any) -> None:
    """Raise SecurityError if a power is too large."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > BITS:
        raise SecurityError("an exponent is too large")


def small(*numbers: Any) -> None:
    """Raise SecurityError if numbers are too large."""
    if sum(number.bit_length() for number in numbers if isinstance(number, int)) > BITS:
        raise SecurityError("a number has become too large")


def few(parts: Iterable[Any]) -> list[Any]:
    """Return a list of parts; raise SecurityError for too many."""
    items = list(islice(parts, ITEMS + 1))
    if len(items) > ITEMS:
        raise SecurityError("a list has become too long")
    return items


def fits(size: int) -> None:
    """Raise SecurityError for a text of too many characters."""
    if size > CHARACTERS:
        raise SecurityError("a text has become too long")
