"""`response_format`: the form of an answer, as OpenAI and as TGI write it."""

from __future__ import annotations

from collections.abc import Mapping

from handlers.wire.grammar import schema_grammar, to_grammar
from handlers.wire.limits import Limits
from handlers.wire.types import JsonSchemaConfig, ResponseFormat
from inference.errors import InvalidInput, Member
from inference.types import Grammar

MEMBER = "response_format"
ANY_OBJECT: Mapping[str, object] = {"type": "object"}
PLACES = {  # of what each type needs; for all others it's `value` alone
    "text": (),
    "json_object": ("schema", "value"),
    "json_schema": ("json_schema", "value"),
}


def to_response_format(given: ResponseFormat | None, limits: Limits) -> Grammar | None:
    """Return the grammar of an answer's form; None for any text.

    `{"type": "json_object"}` alone, and a `json_schema` without its `schema`, are any JSON object. A
    `json_object` may have a `schema`, as other servers take it. What no grammar can express is left out of
    OpenAI's schemas unless they are `strict`. Raises InvalidInput, which names the member.
    """
    if given is None:
        return None
    _refuse_superfluous(given)
    kind = given["type"]
    if kind == "text":
        return None
    if kind == "json_object" and given.get("schema") is not None:
        return schema_grammar(given["schema"], f"{MEMBER}.schema")
    if kind == "json_object" and given.get("value") is None:
        return schema_grammar(ANY_OBJECT, MEMBER)
    if kind == "json_schema" and given.get("value") is None:
        return _openais(given.get("json_schema"), limits)
    return to_grammar(given, MEMBER)


def _openais(config: JsonSchemaConfig | None, limits: Limits) -> Grammar:
    if config is None:
        raise InvalidInput(
            Member(f"{MEMBER}.json_schema"),
            " is missing: give it with the JSON Schema in its member `schema`",
        )
    schema = config.get("schema")
    return schema_grammar(
        ANY_OBJECT if schema is None else schema,
        f"{MEMBER}.json_schema.schema",
        loosely=None if config.get("strict") else limits.of_schema,
    )


def _refuse_superfluous(given: ResponseFormat) -> None:
    kind = given["type"]
    there = [name for name in ("value", "json_schema", "schema") if given.get(name) is not None]
    places = PLACES.get(kind, ("value",))
    wrong = next((name for name in there if name not in places), None)
    if wrong is not None:
        raise InvalidInput(Member(f"{MEMBER}.{wrong}"), f" does not go with the type {kind!r}: leave it out")
    if len(there) == 2:
        raise InvalidInput(
            Member(MEMBER), f" has `{there[0]}` and `{there[1]}`: they mean the same, give one"
        )
