"""Guards of the filters that a chat template can use; each is given the arguments as jinja2 passes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter, make_multi_attrgetter

from inference.text.forms import percent_bounded
from inference.text.growth import ITEMS, WIDTH, Guard, bounded, few, fits, text_bounded
from inference.text.methods import WORDS, cased, comparable, escapable, joinable, lines, replaced

SUMMANDS = 5_000  # that `sum` adds; lists are copied for each
COPIES = 50 * ITEMS  # of items, that a sum of lists makes
PRECISION = 300  # digits that `round` keeps or drops: a float has no more
DIGITS = 4_300  # of a text that becomes a number, as of Python's own limit
INDENTED = 4  # characters, where it isn't told
URL_ESCAPE = 12  # characters of one that takes four bytes, as "%F0%9F%98%80"


def _join(evaluation: Any, value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    between, attribute = _given(args, named, d="", attribute=None)
    items = few(value)
    joinable(str(text_bounded(between)), _mapped(evaluation.environment, items, attribute))
    return (evaluation, items, *args)


def _sum(environment: Environment, value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    attribute, start = _given(args, named, attribute=None, start=0)
    items = few(value)
    if len(items) > SUMMANDS:
        raise SecurityError(f"`sum` can add {SUMMANDS} values")
    summands = [start, *_mapped(environment, items, attribute)]
    bounded(summands)
    if len(items) * sum(len(each) for each in summands if isinstance(each, (list, tuple))) > COPIES:
        raise SecurityError("the lists of a `sum` are too long")
    return (environment, items, *args)


def _sort(environment: Environment, value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    _, _, attribute = _given(args, named, reverse=False, case_sensitive=False, attribute=None)
    items = few(value)
    if attribute is None:
        bounded(items)
    else:
        bounded([each for item in items for each in make_multi_attrgetter(environment, attribute)(item)])
    return (environment, items, *args)


def _chosen(environment: Environment, value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    _, attribute = _given(args, named, case_sensitive=False, attribute=None)
    items = few(value)
    bounded(list(_mapped(environment, items, attribute)))
    return (environment, items, *args)


def _grouped(environment: Environment, value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    attribute, default = _given(args, named, attribute=None, default=None)
    items = few(value)
    getter = make_attrgetter(environment, attribute, default=default)
    bounded([getter(item) for item in items])
    return (environment, items, *args)


def _mapped(environment: Environment, items: list[Any], attribute: Any) -> Iterable[Any]:
    """Return what a filter takes of its items: of namespaces that is more than their bounds tell."""
    return items if attribute is None else map(make_attrgetter(environment, attribute), items)


def _given(args: tuple[Any, ...], named: Mapping[str, Any], /, **defaults: Any) -> list[Any]:
    """Return arguments in their order, from those given in order and those given by name."""
    given = {**defaults, **named, **dict(zip(defaults, args, strict=False))}
    return [given[name] for name in defaults]


def _list(evaluation: Any, value: Any) -> tuple[Any, ...]:
    items: list[Any] = []
    size = 0
    for item in value:  # not made at once: each may be a long text that `map` makes now
        size += len(item) if isinstance(item, (str, bytes)) else 0
        fits(size)
        items.append(item)
        if len(items) > ITEMS:
            raise SecurityError("a list has become too long")
    return (evaluation, items)


def _replace(evaluation: Any, value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    old, new = _given(args, named, old="", new="")
    replaced(str(text_bounded(value)), str(text_bounded(old)), str(text_bounded(new)))
    return (evaluation, value, *args)


def _format(value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    form = text_bounded(value)
    percent_bounded(form if isinstance(form, str) else str(form), named or args)
    return (value, *args)


def _filled(value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    text = str(text_bounded(value))
    for each in (INDENTED, *args, *named.values()):
        size = len(each) if isinstance(each, str) else each if isinstance(each, int) else 0
        if size > WIDTH:
            raise SecurityError(f"a text can be filled up to {WIDTH} characters")
        fits(len(text) + size * lines(text))
    return (value, *args)


def _batch(value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    _filled_up(*_given(args, named, linecount=1, fill_with=None))
    return (value, *args)


def _slice(evaluation: Any, value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    _filled_up(*_given(args, named, slices=1, fill_with=None))
    return (evaluation, value, *args)


def _filled_up(parts: Any, fill: Any) -> None:
    if isinstance(parts, int) and parts > ITEMS:
        raise SecurityError("a list has become too long")
    if isinstance(parts, int) and fill is not None:
        bounded([fill] * parts)


def _round(value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    precision = _given(args, named, precision=0)[0]
    if isinstance(precision, (int, float)) and abs(precision) > PRECISION:
        raise SecurityError(f"a number can be rounded to {PRECISION} digits")
    return (value, *args)


def _number(value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) and len(value) > DIGITS:
        raise SecurityError(f"a number can have {DIGITS} digits")
    return (value, *args)


def _text(value: Any) -> tuple[Any, ...]:
    return (bounded(value),)


def _cased(value: Any) -> tuple[Any, ...]:
    cased(str(text_bounded(value)))
    return (value,)


def _worded(value: Any) -> tuple[Any, ...]:
    text = str(text_bounded(value))
    if len(text) > WORDS:
        raise SecurityError(f"the words of a text can be told up to {WORDS} characters")
    return _cased(value)


def _trimmed(value: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    text = str(text_bounded(value))
    for each in (*args, *named.values()):
        comparable(text, each)
    return (value, *args)


def _escaped(value: Any) -> tuple[Any, ...]:
    return (value, *escapable(value))


def _url(value: Any) -> tuple[Any, ...]:
    fits(len(str(text_bounded(value))) * URL_ESCAPE)
    return (value,)


FILTERS: Mapping[str, Guard] = {
    "join": _join,
    "sum": _sum,
    "sort": _sort,
    "groupby": _grouped,
    **dict.fromkeys(("unique", "min", "max"), _chosen),
    "list": _list,
    "replace": _replace,
    "format": _format,
    **dict.fromkeys(("center", "indent"), _filled),
    "batch": _batch,
    "slice": _slice,
    "round": _round,
    **dict.fromkeys(("int", "float", "filesizeformat"), _number),
    "trim": _trimmed,
    **dict.fromkeys(("escape", "e", "forceescape"), _escaped),
    "urlencode": _url,
    "string": _text,
    **dict.fromkeys(("upper", "lower", "capitalize"), _cased),
    **dict.fromkeys(("title", "wordcount"), _worded),
}
