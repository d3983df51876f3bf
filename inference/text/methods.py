"""Guards of the methods that a chat template can call: each looks at what a call would build, or cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError
from markupsafe import Markup

from inference.text.forms import format_bounded
from inference.text.growth import (
    BITS,
    CHARACTERS,
    ESCAPE,
    ITEMS,
    WIDTH,
    Guard,
    bounded,
    few,
    fits,
    text_bounded,
)

ENCODINGS = {"utf8", "ascii"}  # "punycode" is slow, others quadruple a text
COMPARISONS = 32 * CHARACTERS  # of characters, in one call that can't be stopped
WORDS = 1024 * 1024  # characters of a text that Python takes apart piece by piece
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def joinable(between: Any, parts: Iterable[Any]) -> list[Any]:
    """Return a list of what is to be joined; raise SecurityError if that would be too long."""
    items = few(parts)
    bounded(items)
    size = len(between) * len(items) + sum(len(each) for each in items if isinstance(each, (str, bytes)))
    fits(size * (ESCAPE if isinstance(between, Markup) else 1))
    return items


def replaced(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    """Raise SecurityError if a text with replacements would be too long."""
    old, new = (*args, named.get("old"), named.get("new"))[:2]
    kind = str if isinstance(owner, str) else bytes
    if isinstance(old, kind) and isinstance(new, kind):
        times = owner.count(old) if old else len(owner) + 1
        fits(len(owner) + times * len(new) * (ESCAPE if isinstance(owner, Markup) else 1))
    return args


def escapable(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    """Raise SecurityError if the last argument's escape for HTML would be too long."""
    text = str(text_bounded((owner, *args, *named.values())[-1]))
    fits(len(text) + (ESCAPE - 1) * sum(text.count(each) for each in "&<>'\""))
    return args


def lines(text: str) -> int:
    """Return the most lines that there can be in a text."""
    return 1 + sum(text.count(end) for end in LINE_ENDS)


def comparable(text: Any, sought: Any) -> None:
    """Raise SecurityError where each character of a text could be compared with too many."""
    if isinstance(sought, (str, bytes)) and len(text) * len(sought) > COMPARISONS:
        raise SecurityError("what is sought or stripped is too long")


def _compared(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    for each in (*args, *named.values()):
        comparable(owner, each)
    return args


def _split(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    between = next(iter(args), named.get("sep"))
    most = next(iter(args[1:]), named.get("maxsplit", -1))
    comparable(owner, between)
    if (isinstance(most, int) and 0 <= most <= ITEMS) or len(owner) <= ITEMS:
        return args
    parts = owner.count(between) if between else len(owner.split(None, ITEMS))
    if parts >= ITEMS:
        raise SecurityError("a list has become too long")
    return args


def _split_lines(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    if (lines(owner) if isinstance(owner, str) else len(owner)) > ITEMS:
        raise SecurityError("a list has become too long")
    return args


def _filled(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    if any(isinstance(each, int) and each > WIDTH for each in (*args, *named.values())):
        raise SecurityError(f"a text can be filled up to {WIDTH} characters")
    return args


def _tabs(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    size = next(iter((*args, *named.values())), 8)
    if isinstance(size, int):
        fits(len(owner) + owner.count("\t" if isinstance(owner, str) else b"\t") * size)
    return args


def _joined(owner: Any, *args: Any) -> tuple[Any, ...]:
    if len(args) != 1:
        return args  # Python's own complaint follows
    return (joinable(owner, args[0]),)


def _formatted(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    format_bounded(owner, (*args, *named.values()))
    return args


def _formatted_map(owner: Any, *args: Any) -> tuple[Any, ...]:
    values = args[0].values() if len(args) == 1 and isinstance(args[0], Mapping) else args
    format_bounded(owner, tuple(values))
    return args


def _translated(owner: Any, *args: Any) -> tuple[Any, ...]:
    for table in args:
        if isinstance(table, (list, tuple, str)):  # whose items aren't looked at
            raise SecurityError("a table to translate with must be a dict")
        values = table.values() if isinstance(table, Mapping) else ()
        fits(len(owner) * max((len(each) for each in values if isinstance(each, str)), default=1))
    return args


def _table(owner: Any, *args: Any) -> tuple[Any, ...]:
    if any(len(each) > ITEMS for each in args if isinstance(each, (str, bytes, Mapping))):
        raise SecurityError("a table has become too long")
    return args


def _coded(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    name = next(iter(args), named.get("encoding", "utf-8"))
    if not isinstance(name, str) or name.lower().replace("-", "").replace("_", "") not in ENCODINGS:
        raise SecurityError("the encodings of a chat template are utf-8 and ascii")
    errors = next(iter(args[1:]), named.get("errors", "strict"))
    if errors not in ("strict", "ignore", "replace"):  # others put a text for each character
        raise SecurityError("what a chat template can't encode is an error, ignored or replaced")
    return args


def _hex(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    if isinstance(owner, bytes):
        fits(len(owner) * (3 if args or named else 2))  # with a separator after each byte
    return args


def _number(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    if any(
        isinstance(each, (bytes, list, tuple)) and len(each) * 8 > BITS for each in (*args, *named.values())
    ):
        raise SecurityError("a number has become too large")
    return args


def cased(owner: Any, *args: Any) -> tuple[Any, ...]:
    """Raise SecurityError if a text could be too long in other letters: the capitals of some are three."""
    fits(len(owner) if owner.isascii() else 3 * len(owner))
    return args


def _same_for_keys(owner: Any, *args: Any) -> tuple[Any, ...]:
    if not args:
        return args
    keys = few(args[0])
    bounded(keys)
    if len(args) > 1:
        bounded([args[1]] * len(keys))
    return (keys, *args[1:])


def _unescaped(owner: Any) -> tuple[Any, ...]:
    if len(owner) > WORDS:
        raise SecurityError(f"a text of at most {WORDS} characters can be unescaped")
    return ()


def _refused(owner: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    raise SecurityError("this method is too slow on long texts")


METHODS: Mapping[str, Guard] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "to_bytes"), _filled),
    **dict.fromkeys(("upper", "lower", "title", "capitalize", "casefold", "swapcase"), cased),
    # those from the right compare each character with all that is sought; those that strip do, too
    **dict.fromkeys(("rfind", "rindex", "rpartition", "strip", "lstrip", "rstrip"), _compared),
    "split": _split,
    "rsplit": _split,
    "splitlines": _split_lines,
    "expandtabs": _tabs,
    "replace": replaced,
    "join": _joined,
    "format": _formatted,
    "format_map": _formatted_map,
    "translate": _translated,
    "maketrans": _table,
    "encode": _coded,
    "decode": _coded,
    "hex": _hex,
    "from_bytes": _number,
    "fromkeys": _same_for_keys,
    "escape": escapable,
    "unescape": _unescaped,
    "striptags": _refused,
}
