"""`text.format`: the form of a response's text, as OpenAI's Responses write it."""

from __future__ import annotations

from handlers.wire.belonging import Belongs, refuse_others
from handlers.wire.grammar import schema_grammar
from handlers.wire.limits import Limits
from handlers.wire.response_format import ANY_OBJECT
from handlers.wire.types import ResponseFormatTold, ResponsesFormat, ResponsesText
from inference.errors import GrammarRefused, Member
from inference.types import Grammar, GrammarKind

MEMBER = "text.format"
BELONGS: Belongs = {"json_schema": ("schema",), "regex": ("value",), "json_object": (), "text": ()}


def to_form(text: ResponsesText | None, limits: Limits) -> Grammar | None:
    """Return the grammar of a text's form; None for any text.

    What no grammar can express is left out of a schema that isn't `strict`. Raises InvalidInput, which names
    the member.
    """
    given = format_of(text)
    refuse_others(given, BELONGS, given["type"], MEMBER)
    if given["type"] == "text":
        return None
    if given["type"] == "regex":
        return _expression(given)
    schema = given.get("schema")
    if schema is None:
        return schema_grammar(ANY_OBJECT, MEMBER)
    loosely = None if given.get("strict") else limits.of_schema
    return schema_grammar(schema, f"{MEMBER}.schema", loosely)


def told_format(text: ResponsesText | None) -> ResponseFormatTold:
    """Return the form as an answer echoes it."""
    given = format_of(text)
    if given["type"] == "regex":
        return {"type": "regex", "value": given.get("value") or ""}
    if given["type"] != "json_schema":
        return {"type": given["type"]}
    schema = given.get("schema")
    return {
        "type": "json_schema",
        "name": given.get("name") or "schema",
        "schema": ANY_OBJECT if schema is None else schema,
        "strict": given.get("strict") is True,
    }


def format_of(text: ResponsesText | None) -> ResponsesFormat:
    """Return the form that is asked for: any text, if none is."""
    return (text or {}).get("format") or {"type": "text"}


def _expression(given: ResponsesFormat) -> Grammar:
    value = given.get("value")
    if value is None:
        raise GrammarRefused(
            "grammar is not valid: ", Member(MEMBER), " is of type 'regex' and has no `value`: add it"
        )
    return Grammar(kind=GrammarKind.REGEX, source=value, member=f"{MEMBER}.value")
