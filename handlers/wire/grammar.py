"""Grammars as TGI writes them: `{"type": ..., "value": ...}`."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from handlers.wire.limits import Limits
from handlers.wire.types import GrammarType, ResponseFormat
from inference.errors import GrammarRefused, Member
from inference.grammar.fault import GrammarFault, check_source
from inference.grammar.keywords import has_keywords
from inference.grammar.loosening import loosened
from inference.grammar.meaning import as_meant
from inference.grammar.schema import check_given
from inference.grammar_limits import GrammarLimits
from inference.types import Grammar, GrammarKind


def to_grammar(given: GrammarType | ResponseFormat, member: str) -> Grammar:
    """Return the grammar of `{"type", "value"}`; `member` is where it stands, for messages.

    Types are `json` or its other name `json_object` (a JSON Schema, or a text that holds one), `json_schema`
    (an object with the schema in `schema`) and `regex` (a regular expression for the whole text). Raises
    GrammarRefused, in TGI's words where it has some.
    """
    kind, value, place = given.get("type"), given.get("value"), f"{member}.value"
    if kind == "regex":
        return Grammar(kind=GrammarKind.REGEX, source=_expression(value, place), member=place)
    if kind == "json_schema":
        return schema_grammar(_wrapped(value, place), f"{place}.schema")
    if kind in ("json", "json_object"):
        return schema_grammar(value, place)
    known = "json, json_object, json_schema and regex"
    raise GrammarRefused(
        "grammar is not supported: ", Member(f"{member}.type"), f" is one of {known}. Given: {_show(kind)}"
    )


def schema_grammar(schema: object, member: str, loosely: GrammarLimits | None = None) -> Grammar:
    """Return the grammar of a JSON Schema, given as an object or as a text that holds one; `member` has it.

    `loosely`: what no grammar can express is left out, and named, of one within these limits. Raises
    GrammarRefused if it's neither, or has no word of JSON Schema. The order of its members stays: properties
    come in it. It is taken as `inference/grammar/meaning.py` says, which is as TGI takes it.
    """
    parsed = _parsed(schema, member) if isinstance(schema, str) else schema
    if not isinstance(parsed, Mapping):
        raise GrammarRefused(
            "grammar is not supported: ",
            Member(member),
            f" must be a JSON Schema, as an object or as a text that holds one. Given: {_show(parsed)}",
        )
    if not has_keywords(parsed):  # any JSON would follow it
        raise GrammarRefused(
            "grammar is not valid: Grammar must have a 'properties' field: ",
            Member(member),
            " has no keyword of JSON Schema. Give the schema itself, with what it describes in `properties`",
        )
    try:
        check_given(parsed)
    except GrammarFault as fault:
        raise fault.refusal(Member(member)) from None
    # Before it is read as it is meant: beside a word that is left out nothing would be narrowed
    parsed, lost = (parsed, ()) if loosely is None else loosened(parsed, loosely)
    source = orjson.dumps(as_meant(parsed)).decode()
    left_out = tuple(f"{member}.{keyword}" for keyword in lost)
    return Grammar(kind=GrammarKind.JSON_SCHEMA, source=source, member=member, left_out=left_out)


def allowed(grammar: Grammar | None, limits: Limits) -> Grammar | None:
    """Return the grammar as it is; raise GrammarRefused for a large one, or if the server supports none.

    That goes for the grammars of `response_format` and of tools, too, as in TGI; how large a tool's may be is
    seen to where it is written.
    """
    if grammar is not None and not limits.grammar_support:
        raise GrammarRefused(
            "grammar is not supported: leave out ",
            Member(_asking(grammar.member)),
            ", or start the server without --disable-grammar-support",
        )
    if grammar is not None and grammar.kind is not GrammarKind.LARK:
        try:
            check_source(grammar.source, limits.max_grammar_size)
        except GrammarFault as fault:
            raise fault.refusal(Member(grammar.member)) from None
    return grammar


def _asking(member: str) -> str:
    """Return the path of the member that asks for a grammar, whose text is `member`."""
    first, *rest = member.split(".")
    return ".".join((first, *rest[:1])) if first in ("parameters", "text") else first


def _parsed(text: str, member: str) -> object:
    try:
        parsed: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise GrammarRefused("grammar is not valid: ", Member(member), f" holds no JSON: {error}") from None
    return parsed


def _wrapped(value: object, member: str) -> object:
    if not isinstance(value, Mapping):
        raise GrammarRefused(
            "grammar is not supported: ",
            Member(member),
            f" must be an object with the member `schema`. Given: {_show(value)}",
        )
    if value.get("schema") is None:
        raise GrammarRefused("grammar is not valid: ", Member(member), " lacks the member `schema`")
    return value["schema"]


def _expression(value: object, member: str) -> str:
    if not isinstance(value, str):
        raise GrammarRefused(
            "grammar is not supported: ",
            Member(member),
            f" must be a regular expression, as a text. Given: {_show(value)}",
        )
    return value


def _show(value: object) -> str:
    """Return a short text for a value of any size."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return f"an array of {len(value)}"
    text = orjson.dumps(value).decode()
    return text if len(text) <= 40 else text[:40] + "…"
