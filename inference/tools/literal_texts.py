"""Values as literals of a notation: how they are written, and the expressions of all that may be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from inference.tools.formats import Literals
from inference.tools.lark import in_regex

OTHER_NAME = r"[A-Za-z_][A-Za-z0-9_.$-]{0,63}"  # that no schema lists
JSON_WORDS = ("true", "false", "null")
KINDS = ("string", "number", "boolean", "null", "array", "object")
ENDS = {  # what bounds values of a type
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    **dict.fromkeys(("number", "integer"), ("minimum", "maximum")),
}
# Behind a backslash, in a text of Python; half a pair is no character, and a name has one spelling
ESCAPES = r"['\x22\\bfnrt]"
UNICODE = (
    "u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


def is_bare(name: str) -> bool:
    """Return whether a name shows without quotes where it ends."""
    return re.fullmatch(r"[^\W\d][\w.$-]*", name) is not None


def arguments_of(arguments: Mapping[str, object], literals: Literals) -> str:
    """Return arguments by name."""
    setter = literals.setter
    return literals.between.join(
        f"{name_of(name)}{setter}{literal_of(value, literals)}" for name, value in arguments.items()
    )


def name_of(name: str) -> str:
    """Return a name as it stands before a value; one that doesn't show its end is quoted."""
    return name if is_bare(name) else quoted(name)


def literal_of(value: object, literals: Literals) -> str:
    """Return a value of JSON as a literal."""
    if isinstance(value, str):
        return text_of(value, literals)
    if isinstance(value, bool) or value is None:
        return literals.words[(True, False, None).index(value)]
    if isinstance(value, Mapping):
        pairs = (f"{key_of(name, literals)}{literal_of(each, literals)}" for name, each in value.items())
        return f"{{{literals.between.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{literals.between.join(literal_of(each, literals) for each in value)}]"
    return json.dumps(value)


def text_of(text: str, literals: Literals) -> str:
    """Return a text in its quotes; one that holds the quotes of texts as they are is one of JSON."""
    if literals.quote is None or holds_quote(text, literals.quote.text):
        return quoted(text)
    return f"{literals.quote.text}{text}{literals.quote.text}"


def holds_quote(text: str, quote: str) -> bool:
    """Return whether a text can't stand as it is between these."""
    return quote in text + quote[:-1]


def key_of(name: str, literals: Literals) -> str:
    """Return a name within a value, with the colon behind it."""
    if literals.quote is None:
        return f"{quoted(name)}: "
    return f"{name_of(name)}:"


def quoted(text: str) -> str:
    """Return a text as JSON has it, and Python, too."""
    return json.dumps(text, ensure_ascii=False)


def singly_quoted(text: str) -> str:
    """Return a text as Python has it between single quotes."""
    inner = quoted(text)[1:-1].replace('\\"', '"').replace("'", "\\'")
    return f"'{inner}'"


def spellings(text: str) -> list[str]:
    """Return a text in either quotes of Python."""
    return [quoted(text), singly_quoted(text)]


def any_text(count: str, *, of_names: bool = False) -> str:
    """Return the expression of texts of Python with a number of characters, a quantifier."""
    escape = rf"\\({ESCAPES})" if of_names else rf"\\({ESCAPES}|{UNICODE})"
    return "/" + "|".join(rf"{quote}([^{quote}\\]|{escape}){count}{quote}" for quote in (r"\x22", "'")) + "/"


def one_of(texts: Iterable[str]) -> str:
    """Return the regular expression of some texts."""
    return f"({'|'.join(map(in_regex, texts))})"


def kinds_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the types of the values of a schema, which are all if it says none."""
    kinds = schema.get("type", KINDS)
    kinds = [kinds] if isinstance(kinds, str) else [*kinds]
    return [kind for kind in kinds if kind != "integer" or "number" not in kinds]


def is_impossible(schema: object) -> bool:
    """Return whether no value fits a schema, as far as its own words show."""
    if not isinstance(schema, Mapping):
        return schema is False
    least, most = (schema.get(word) for word in ENDS.get(str(schema.get("type")), ("", "")))
    return schema.get("enum") == [] or (least is not None and most is not None and least > most)


def fitting(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists, by one word; None if some aren't scalars of its types."""
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    kinds = kinds_of(schema)
    return [*values] if all(kind_of(each, kinds) in kinds for each in values) else None


def kind_of(value: Any, kinds: Iterable[str]) -> str | None:
    """Return which of some types a scalar is of."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "number" if "number" in kinds else "integer"
    return "number" if isinstance(value, float) else None
