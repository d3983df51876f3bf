"""How long what `%`, `format` and `tojson` make of their values may become, known before they make it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from jinja2.exceptions import SecurityError
from markupsafe import Markup

from inference.text.growth import CHARACTERS, ESCAPE, bounded, extent, fits, text_bounded

FLOAT_CHARACTERS = 512  # of a float in any form, before its precision
LOOKED_UP = 32 * 1024  # characters of a number within a value, in binary
INDENT = 256  # characters of JSON's indent for a level
SEPARATOR = 64  # characters between the members of JSON
ESCAPED = 12  # characters that one can become in JSON: two escapes of six

# what shows all that a form can look up in it
Plain = (str, bytes, int, float, list, tuple, dict, type(None))


def percent_bounded(form: str | bytes, values: Any) -> None:
    """Raise SecurityError for what `%` would make too long."""
    text = form if isinstance(form, str) else form.decode("latin-1")
    width(text)
    bounded(values)
    # `%r` and `%a` escape; looser than Python's grammar, so that it needs one pass and misses none
    escapes = re.search(r"[%)\d #+.\-hlL][ra]", text) is not None
    fields, each = text.count("%"), values if isinstance(values, tuple) else (values,)
    shown = sum(_printed(value, escapes) for value in each)
    if isinstance(values, Mapping):  # whose values can be named in every field
        shown += fields * max((_printed(value, escapes) for value in values.values()), default=0)
    fits(len(text) + fields * _widest(text) + shown * _escape(form))


def format_bounded(form: str, values: tuple[Any, ...]) -> None:
    """Raise SecurityError for what `format` would make too long."""
    width(form)
    if re.search(r"\{[^{}]*\{", form):
        raise SecurityError("a field width must be a number")
    looks_up = re.search(r"\{[^{}:!]*[.\[]", form) is not None
    if looks_up:
        _transparent(values)
    bounded(list(values))
    fields, escapes = form.count("{"), re.search(r"![ra]", form) is not None
    shown = [_printed(value, escapes) for value in values]
    if looks_up:
        shown.append(LOOKED_UP)
    named = re.search(r"\{[^{}:!]", form)  # a name or a number can stand in every field
    most = fields * max(shown, default=0) if named else sum(shown)
    fits(len(form) + fields * _widest(form) + most * _escape(form))


def width(form: str) -> None:
    """Raise SecurityError for a form that fills up to a large or an unknown width."""
    if re.search(r"\d{6}|%[^a-zA-Z%]*\*", form):
        raise SecurityError("a field width is too large")


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the HTML escapes of jinja2's own filter."""
    text_bounded(value)
    _short_layout(indent, separators)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    items, characters = extent(value)
    if indent is None and (items + characters) * ESCAPED + 2 * items * SEPARATOR <= CHARACTERS:
        return encoder.encode(value)  # in C, which iterencode never is
    pieces, size = [], 0
    for piece in encoder.iterencode(value):
        pieces.append(piece)
        size += len(piece)
        fits(size)
    return "".join(pieces)


def _short_layout(indent: object, separators: object) -> None:
    size = len(indent) if isinstance(indent, str) else indent
    if isinstance(size, int) and size > INDENT:
        raise SecurityError(f"an indent must be at most {INDENT}")
    if separators is None:
        return
    if not isinstance(separators, (tuple, list)) or not all(
        isinstance(each, str) and len(each) <= SEPARATOR for each in separators
    ):
        raise SecurityError(f"the separators of JSON must have at most {SEPARATOR} characters")


def _printed(value: Any, escapes: bool) -> int:
    """Return how many characters a value takes in a form, before it is filled up."""
    if isinstance(value, int):
        return max(FLOAT_CHARACTERS, 2 * value.bit_length())  # in binary, grouped
    if isinstance(value, float):
        return FLOAT_CHARACTERS
    if escapes:
        return len(ascii(text_bounded(value)))
    return len(value) if isinstance(value, str) else len(str(text_bounded(value)))


def _escape(form: object) -> int:
    return ESCAPE if isinstance(form, Markup) else 1


def _widest(form: str) -> int:
    return max((int(digits) for digits in re.findall(r"\d{1,5}", form)), default=0)


def _transparent(values: tuple[Any, ...]) -> None:
    """Raise SecurityError where a form could look up what isn't seen in its values, as in a namespace."""
    left: list[Any] = [bounded(list(values))]
    while left:
        item = left.pop()
        if not isinstance(item, Plain):
            raise SecurityError("a form can't look into this value: pass what it shows")
        if isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, (list, tuple)):
            left.extend(item)
