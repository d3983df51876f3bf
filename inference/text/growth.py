"""How large the values of a chat template may become: what would be larger is refused before it is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

from inference.config import TEMPLATE_CHARACTERS

CHARACTERS = TEMPLATE_CHARACTERS  # of a text, or of all texts in a list
ITEMS = 200_000  # of a list, and of all lists in it, each counted wherever it stands
BITS = 4096  # of an integer
WIDTH = 100_000  # that texts are filled up to
SUMMANDS = 5_000  # that `sum` adds; lists are copied for each

Guard = Callable[..., tuple[Any, ...]]  # is given the arguments, and returns them


def bounded(value: Any) -> Any:
    """Return a value that prints as no more than CHARACTERS; raise SecurityError for others."""
    if not isinstance(value, (list, tuple, dict)):
        return value
    items = characters = 0
    left: list[Any] = [value]
    while left:
        item = left.pop()
        items += 1
        if isinstance(item, (list, tuple)):
            left.extend(item[: ITEMS + 1])
        elif isinstance(item, dict):
            left.extend(item)
            left.extend(item.values())
        elif isinstance(item, (str, bytes)):
            characters += len(item)
        if items + len(left) > ITEMS or characters > CHARACTERS:
            raise SecurityError("a list has become too long")
    return value


def grown(*parts: Any) -> None:
    """Raise SecurityError if what is put together is too long, or a sum too large."""
    if isinstance(parts[0], (str, bytes)):
        if sum(len(part) for part in parts if isinstance(part, (str, bytes))) > CHARACTERS:
            raise SecurityError("a text has become too long")
    elif isinstance(parts[0], (list, tuple)):
        bounded(list(parts))
    else:
        _small(*parts)


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
    _small(left, right)


def power(base: Any, exponent: Any) -> None:
    """Raise SecurityError if a power is too large."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > BITS:
        raise SecurityError("an exponent is too large")


def width(form: str) -> None:
    """Raise SecurityError for a form that fills up to a large or an unknown width."""
    if re.search(r"\d{6}|%[^a-zA-Z%]*\*", form):
        raise SecurityError("a field width is too large")


def _small(*numbers: Any) -> None:
    if sum(number.bit_length() for number in numbers if isinstance(number, int)) > BITS:
        raise SecurityError("a number has become too large")


# --- of methods: the object, then its arguments ---------------------------------------------


def _filled(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    if any(isinstance(each, int) and each > WIDTH for each in (*args, *named.values())):
        raise SecurityError(f"a text can be filled up to {WIDTH} characters")
    return args


def _tabs(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    size = next(iter((*args, *named.values())), 8)
    if isinstance(size, int) and owner.count("\t" if isinstance(owner, str) else b"\t") * size > CHARACTERS:
        raise SecurityError("a text has become too long")
    return args


def _replaced(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    old, new = (*args, named.get("old"), named.get("new"))[:2]
    if isinstance(old, (str, bytes)) and isinstance(new, type(owner)) and isinstance(old, type(owner)):
        times = owner.count(old) if old else len(owner) + 1
        if len(owner) + times * len(new) > CHARACTERS:
            raise SecurityError("a text has become too long")
    return args


def _joined(owner: Any, *args: Any) -> tuple[Any, ...]:
    if len(args) != 1:
        return args  # Python's own complaint follows
    return (_joinable(owner, args[0]),)


def _joinable(between: Any, parts: Iterable[Any]) -> list[Any]:
    items = _few(parts)
    size = len(between) * len(items) + sum(len(each) for each in items if isinstance(each, (str, bytes)))
    if size > CHARACTERS:
        raise SecurityError("a text has become too long")
    bounded(items)
    return items


def _formatted(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    width(owner)
    if re.search(r"\{[^{}]*\{", owner):
        raise SecurityError("a field width must be a number")
    bounded([*args, *named.values()])
    return args


def _translated(owner: Any, *args: Any) -> tuple[Any, ...]:
    for table in args:
        values = table.values() if isinstance(table, Mapping) else ()
        if len(owner) * max((len(each) for each in values if isinstance(each, str)), default=1) > CHARACTERS:
            raise SecurityError("a text has become too long")
    return args


METHODS: Mapping[str, Guard] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "to_bytes"), _filled),
    "expandtabs": _tabs,
    "replace": _replaced,
    "join": _joined,
    "format": _formatted,
    "format_map": _formatted,
    "translate": _translated,
}


# --- of filters: the arguments as jinja2 passes them ----------------------------------------


def _few(parts: Iterable[Any]) -> list[Any]:
    items: list[Any] = []
    for item in parts:
        items.append(item)
        if len(items) > ITEMS:
            raise SecurityError("a list has become too long")
    return items


def _join_filter(evaluation: Any, value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    between = next(iter(args), named.get("d", ""))
    return (evaluation, _joinable(str(between), value), *args)


def _replace_filter(evaluation: Any, value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    text = str(bounded(value))
    _replaced(text, *args, **named)
    return (evaluation, value, *args)


def _format_filter(value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    width(str(bounded(value)))
    bounded([*args, *named.values()])
    return (value, *args)


def _width_filter(value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    text = str(bounded(value))
    for each in (*args, *named.values()):
        size = len(each) if isinstance(each, str) else each if isinstance(each, int) else 0
        if size > WIDTH or size * (text.count("\n") + 1) > CHARACTERS:
            raise SecurityError("a text has become too long")
    return (value, *args)


def _parts_filter(value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    if any(isinstance(each, int) and each > ITEMS for each in (*args, *named.values())):
        raise SecurityError("a list has become too long")
    fill = next(iter(args[1:]), named.get("fill_with"))
    if fill is not None:
        bounded([fill] * next((each for each in args if isinstance(each, int)), 1))
    return (value, *args)


def _sum_filter(environment: Any, value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    items = _few(value)
    if len(items) > SUMMANDS:
        raise SecurityError(f"`sum` can add {SUMMANDS} values")
    bounded(items)
    return (environment, items, *args)


def _text_filter(value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    return (bounded(value), *args)


FILTERS: Mapping[str, Guard] = {
    "join": _join_filter,
    "replace": _replace_filter,
    "format": _format_filter,
    "center": _width_filter,
    "indent": _width_filter,
    "batch": _parts_filter,
    "slice": _parts_filter,
    "sum": _sum_filter,
    **dict.fromkeys(
        (
            "string",
            "upper",
            "lower",
            "trim",
            "title",
            "capitalize",
            "escape",
            "e",
            "forceescape",
            "urlencode",
        ),
        _text_filter,
    ),
}
