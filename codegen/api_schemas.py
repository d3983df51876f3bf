"""Schemas as people read them: a table of members, and below it what is not honoured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from codegen.document import SCHEMAS, Document, Node
from codegen.markdown import first_paragraph, further_paragraphs, link, table

NEVER_HONOURED = {
    "reported": "Accepted without effect, and named in `x-ignored-parameters`",
    "later": "Refused with 422 until a later version",
    "refused": "Refused with 422",
}
WIRE_BOUNDS = (0, -(2**31), 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)  # say what the type is, no limit


class SchemaPages:
    """Writes the schemas of one document."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def request(self, name: str) -> Iterator[str]:
        """Yield the lines that describe what a request may hold."""
        schema = self._document.schemas[name]
        yield from self._head(schema)
        members = {key: (member, self._told(member)) for key, member in schema.get("properties", {}).items()}
        rows = [
            self._request_row(schema, key, member, told)
            for key, (member, told) in members.items()
            if told["x-support"] not in NEVER_HONOURED
        ]
        yield from table(("member", "type", "default", "limits", "meaning"), rows)
        for support, meaning in NEVER_HONOURED.items():
            idle = [_idle(key, told) for key, (_, told) in members.items() if told["x-support"] == support]
            if idle:
                yield from (f"{meaning}:", "", *idle, "")

    def answer(self, name: str) -> Iterator[str]:
        """Yield the lines that describe what an answer holds."""
        schema = self._document.schemas[name]
        yield from self._head(schema)
        required = schema.get("required", ())
        members = schema.get("properties", {})
        rows = [
            (
                f"`{key}`",
                f"{self.type_of(member)}{_words(member)}",
                "always" if key in required else "not always",
                self._meaning(member),
            )
            for key, member in members.items()
        ]
        yield from table(("member", "type", "there", "meaning"), rows)
        for member in members.values():
            yield from _paragraphs(further_paragraphs(member.get("description", "")))

    def type_of(self, schema: Any) -> str:
        """Return a schema's type in a few words, with links to those that have a name."""
        if not isinstance(schema, Mapping):
            return "any"
        if "$ref" in schema:
            return link(schema["$ref"].removeprefix(SCHEMAS))
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return " or ".join(dict.fromkeys(self.type_of(member) for member in schema[union]))
        if schema.get("enum") == [None]:
            return "null"
        null = " or null" if schema.get("nullable") else ""
        return self._typed(schema) + null

    def _typed(self, schema: Node) -> str:
        kind = str(schema.get("type", "any"))
        if kind == "array":
            return f"array of {self.type_of(schema['items'])}"
        if "additionalProperties" in schema:
            return f"object of {self.type_of(schema['additionalProperties'])}"
        return kind

    def _head(self, schema: Node) -> Iterator[str]:
        yield from _paragraphs(schema["description"])
        if "properties" in schema:
            return
        kind = self.type_of(schema)
        limits = _limits(schema)
        yield from (f"Type: {kind}{': ' if limits else ''}{limits}.", "")

    def _request_row(self, schema: Node, key: str, member: Node, told: Node) -> tuple[str, ...]:
        name = f"`{key}`" + (" (required)" if key in schema.get("required", ()) else "")
        default = _code(told["x-default"]) if "x-default" in told else ""
        return name, self.type_of(member), default, _limits(told), self._meaning(member)

    def _meaning(self, member: Node) -> str:
        told = self._told(member)
        meaning = first_paragraph(str(told.get("description", "")))
        if told.get("x-support") == "descriptive":
            meaning += " *A name: it changes nothing.*"
        if "x-without-effect" in member:
            below = ", ".join(f"`{name}`" for name in member["x-without-effect"])
            meaning += f" *Without effect here, and reported: {below}.*"
        return meaning

    def _told(self, member: Node) -> Node:
        return {**self._document.resolve(member), **member}


def _idle(key: str, told: Node) -> str:
    about = [first_paragraph(told["description"])]
    if "x-reason" in told:
        about.append(f"*Why: {told['x-reason']}.*")
    if told.get("x-neutral"):
        neutral = ", ".join(_code(value) for value in told["x-neutral"])
        about.append(f"These values ask for nothing: {neutral}.")
    return f"- `{key}`: {' '.join(about)}"


def _words(member: Node) -> str:
    """Return what an answer's member says, if that is one of a few values."""
    values = [_code(value) for value in member.get("enum", ()) if value is not None]
    return f": {' or '.join(values)}" if values else ""


def _limits(schema: Node) -> str:
    if "x-range" in schema:
        return str(schema["x-range"]).replace("<", "\\<").replace(">", "\\>")
    said = []
    if "enum" in schema:
        said.append(", ".join(_code(value) for value in schema["enum"]))
    for key, words in (("minimum", "at least"), ("maximum", "at most")):
        if key in schema and schema[key] not in WIRE_BOUNDS:
            said.append(f"{words} {schema[key]}")
    for key, words in (("minItems", "at least"), ("maxItems", "at most")):
        if key in schema:
            said.append(f"{words} {schema[key]} element{'s' if schema[key] != 1 else ''}")
    return ", ".join(said)


def _code(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _paragraphs(text: str) -> Iterator[str]:
    if text.strip():
        yield from (text.strip(), "")
