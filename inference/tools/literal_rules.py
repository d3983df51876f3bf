"""The rules of arguments that are literals, made of a schema that was checked and reduced."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from inference.errors import ToolRefused
from inference.grammar.keywords import BOUNDS, says
from inference.tools.formats import Literals
from inference.tools.lark import literal, symbols
from inference.tools.literal_texts import (
    JSON_WORDS,
    OTHER_NAME,
    any_text,
    fitting,
    holds_quote,
    is_impossible,
    kinds_of,
    name_of,
    one_of,
    quoted,
    spellings,
)
from inference.tools.shapes import Schema, Shape, shapes, standing_alone, target, with_required
from inference.tools.texts import Values
from inference.tools.types import Tool
from inference.tools.value_rules import ValueRules

DEPTH = 32  # values within each other; below it they are JSON
ITEMS = 1_000  # the most that rules of our own count
OF_KIND = {  # what a schema may say of a value of a type, for rules of our own
    "string": frozenset({"pattern", "minLength", "maxLength", "format"}),
    "number": BOUNDS,
    "integer": BOUNDS,
    "boolean": frozenset[str](),
    "null": frozenset[str](),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
Steps = Generator[str, None, str]  # yields rules; returns symbols of what they are of
Key = Callable[[str | None, Sequence[str]], Steps]  # of a name, or None for any but some


class LiteralRules:
    """Writes the rules of the arguments of all tools of one grammar; equal ones once.

    What rules of our own can't say of a value is left to those of JSON, whose values are literals, too.
    """

    def __init__(self, literals: Literals) -> None:
        self._quote = literals.quote
        self._setter = literals.setter
        self._texts = Values({}, "" if literals.quote is None else literals.quote.text)
        self._values = ValueRules()
        self._comma = "/, ?/" if literals.between == ", " else literal(literals.between)
        self._colon = "/: ?/" if literals.quote is None else literal(":")
        # Templates of one family write `True`, and others `true`
        true, false, null = ({word, other} for word, other in zip(literals.words, JSON_WORDS, strict=True))
        self._spelt = {True: sorted(true), False: sorted(false), None: sorted(null)}
        self._rules: dict[str, str] = {}  # names of rules by what they are
        self._targets: dict[int, str] = {}  # and of what the tool that is looked at refers to
        self._root: Mapping[str, Any] = {}
        self._count = 0

    def of(self, at: int, tool: Tool, root: Mapping[str, Any]) -> Iterator[str]:
        """Yield the rule `args_<at>` of a tool, and those that it needs; raise ToolRefused."""
        self._root, self._targets = root, {}
        for rule in self._of(at, tool):
            self._values.spend(len(rule) + 1)
            yield rule

    def _of(self, at: int, tool: Tool) -> Iterator[str]:
        ways = []
        for shape in shapes(self._root):
            ways.append((yield from self._members(shape, self._argument, str(at), 0)))
        if not ways:
            raise ToolRefused("no arguments are valid by ", tool.member, ": mend the schema")
        yield f"args_{at}: {' | '.join(ways)}"

    def _rule(self, body: str, label: str = "", *, terminal: bool = False) -> Steps:
        """Yield a rule if it is new, `terminal`: of characters; return its name.

        `label` says whose it is where it may be more than a grammar can be.
        """
        if body not in self._rules:
            name = self._name().upper() if terminal else self._name()
            self._rules[body] = name
            if label:
                yield f"// {label}"
            yield f"{name}: {body}"
        return self._rules[body]

    def _name(self) -> str:
        self._count += 1
        return f"part_{self._count}"

    # --- names and values, with commas between those that are there -------------------------

    def _members(self, shape: Shape, key: Key, label: str, depth: int) -> Steps:
        """Yield the rules of names and values, in the order of the schema; return the symbol of all."""
        members, comma = [], self._comma
        for name, schemas in shape.named.items():
            own = yield from key(name, ())
            value = yield from self._value(schemas, f"{label} {name!r:.80}", depth)
            members.append((f"{own} {value}", name in shape.required))
        first = later = '""'  # what may come if no member was there before, and if one was
        if False not in shape.others:
            own = yield from key(None, [*shape.named])
            value = yield from self._value(shape.others, label, depth)
            other = yield from self._rule(f"{own} {value}")
            first, later = f"({other} ({comma} {other})*)?", f"({comma} {other})*"
        surely = next((at for at, (_, is_required) in enumerate(members) if is_required), len(members))
        if surely < len(members):
            member, _ = members[surely]
            behind = [
                f"{comma} {each}" if must else f"({comma} {each})?" for each, must in members[surely + 1 :]
            ]
            first = " ".join([member, *behind, later])
            later = f"{comma} {first}"
        for member, _ in reversed(members[:surely]):
            behind_it, without = (yield from self._rule(later)), (yield from self._rule(first))
            first, later = f"{member} {behind_it} | {without}", f"({comma} {member})? {behind_it}"
        return (yield from self._rule(first))

    def _argument(self, name: str | None, but: Sequence[str]) -> Steps:
        """Yield rules for the name of an argument; return the symbols of it and of what sets it."""
        if name is not None:
            return literal(name_of(name) + self._setter)
        return f"{(yield from self._other(f'/{OTHER_NAME}/', but))} {literal(self._setter)}"

    def _key(self, name: str | None, but: Sequence[str]) -> Steps:
        """Do the same for a name within a value."""
        if self._quote is not None:
            if name is not None:
                return literal(f"{name_of(name)}:")
            own = yield from self._other(f"/{OTHER_NAME}/", but)
        elif name is not None:
            own = f"/{one_of(spellings(name))}/"
        else:
            own = yield from self._other(
                any_text("*", of_names=True), [s for each in but for s in spellings(each)]
            )
        return f"{own} {self._colon}"

    def _other(self, any_name: str, but: Sequence[str]) -> Steps:
        self._values.spend(sum(map(len, but)))  # before a rule is written that is larger still
        excluded = f" & ~/{one_of(but)}/" if but else ""
        return (yield from self._rule(any_name + excluded, terminal=True))

    # --- values --------------------------------------------------------------------------------

    def _value(self, schemas: tuple[Schema, ...], label: str, depth: int) -> Steps:
        """Yield the rules of a value that all of some schemas allow; return its symbol."""
        if not schemas:
            return (yield from self._any(label))
        if len(schemas) > 1 or depth > DEPTH:
            return (yield from self._json(schemas, label))
        return (yield from self._of_schema(schemas[0], label, depth + 1))

    def _any(self, label: str) -> Steps:
        """Yield the rules of any value at all; return its symbol."""
        if "any" not in self._rules:
            self._rules["any"] = "any"
            body = yield from self._of_kinds({}, label, 0)
            yield f"any: {body}"
        return "any"

    def _json(self, schemas: tuple[Schema, ...], label: str) -> Steps:
        document = standing_alone(self._root, schemas)
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return (yield from self._values.json(text, label))

    def _of_schema(self, schema: Schema, label: str, depth: int) -> Steps:
        words = says(schema) if isinstance(schema, Mapping) else {"not"} if schema is False else set[str]()
        if not isinstance(schema, Mapping) or not words:
            return (yield from (self._json((schema,), label) if words else self._any(label)))
        if words == {"$ref"}:
            return (yield from self._referred(target(self._root, schema["$ref"]), label, depth))
        if alternatives := self._alternatives(schema, words):
            parts = []
            for each in alternatives:
                parts.append((yield from self._value((each,), label, depth)))
            return (yield from self._rule(" | ".join(parts)))
        if words & {"enum", "const"}:
            return (yield from self._listed(schema, words, label))
        if words - {"type"} <= frozenset[str]().union(*(OF_KIND[kind] for kind in kinds_of(schema))):
            return (yield from self._of_kinds(schema, label, depth))
        return (yield from self._json((schema,), label))

    def _alternatives(self, schema: Mapping[str, Any], words: set[str]) -> list[Schema]:
        """Return the schemas one of which is all that a schema asks for; none if it isn't so."""
        excludes = self._root["x-guidance"].get("coerce_one_of", False)
        if words == {"anyOf"} or (words == {"oneOf"} and excludes):
            return [each for word in words for each in schema[word] if not is_impossible(each)]
        return [*schema["allOf"]] if words == {"allOf"} and len(schema["allOf"]) == 1 else []

    def _referred(self, schema: Schema, label: str, depth: int) -> Steps:
        """Yield the rules of what is referred to, which may refer to itself; return its symbol."""
        if id(schema) not in self._targets:
            name = self._targets[id(schema)] = self._name()
            body = yield from self._value((schema,), label, depth)
            yield f"{name}: {body}"
        return self._targets[id(schema)]

    def _listed(self, schema: Mapping[str, Any], words: set[str], label: str) -> Steps:
        """Yield the rules of values that a schema lists; return their symbol."""
        values = fitting(schema) if words < {"type", "enum", "const"} else None
        if not values:
            return (yield from self._json((schema,), label))
        texts = [each for each in values if isinstance(each, str)]
        spelt = [each for value in values if not isinstance(value, str) for each in self._spellings(value)]
        if self._quote is None:
            spelt += [each for text in texts for each in spellings(text)]
            texts = []
        else:
            held = [text for text in texts if holds_quote(text, self._quote.text)]
            spelt += map(quoted, held)
            texts = [text for text in texts if text not in held]
        parts = [(yield from self._rule(f"/{one_of(spelt)}/", terminal=True))] if spelt else []
        parts += [(yield from self._text({"enum": texts}, label))] if texts else []
        return (yield from self._rule(" | ".join(parts)))

    def _spellings(self, value: Any) -> list[str]:
        """Return how a value that is no text may be written."""
        return self._spelt[value] if isinstance(value, bool | None) else [json.dumps(value)]

    # --- values by type ------------------------------------------------------------------------

    def _of_kinds(self, schema: Mapping[str, Any], label: str, depth: int) -> Steps:
        """Yield the rules of values of the types that a schema allows; return their symbol."""
        parts = []
        for kind in kinds_of(schema):
            own = {"type": kind} | {word: schema[word] for word in OF_KIND[kind] if word in schema}
            if kind == "string":
                parts.append((yield from self._text(own, label)))
            elif kind in ("boolean", "null"):
                words = self._spelt[None] if kind == "null" else self._spelt[True] + self._spelt[False]
                parts.append(f"/{one_of(words)}/")
            elif kind == "array":
                parts.append((yield from self._array(own, label, depth)))
            elif kind == "object":
                parts.append((yield from self._object(own, label, depth)))
            else:
                parts.append((yield from self._json((own,), label)))
        return (yield from self._rule(" | ".join(parts)))

    def _text(self, schema: Mapping[str, Any], label: str) -> Steps:
        string = {"type": "string", **schema}
        if self._quote is None:
            if is_impossible(string) or not schema.keys() <= {"type", "minLength", "maxLength"}:
                return (yield from self._json((string,), label))
            least, most = schema.get("minLength", 0), schema.get("maxLength", "")
            return (yield from self._rule(any_text(f"{{{least},{most}}}"), label, terminal=True))
        text = self._texts.of_words(string)
        if text is None:
            return (yield from self._json((string,), label))
        return f"{symbols((self._quote,))} {(yield from self._values.text(text, (self._quote,), label))}"

    def _array(self, schema: Mapping[str, Any], label: str, depth: int) -> Steps:
        items, least, most = schema.get("items", True), schema.get("minItems", 0), schema.get("maxItems")
        highest = least if most is None else most
        if isinstance(items, list) or is_impossible(items) or not least <= highest <= ITEMS:
            return (yield from self._json((schema,), label))
        if most == 0:
            return '"[" "]"'
        item = yield from self._value((items,), label, depth)
        more = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        every = item if most == 1 else f"{item} ({self._comma} {item}){more}"
        return (yield from self._rule(f'"[" {every} "]"' if least else f'"[" ({every})? "]"', label))

    def _object(self, schema: Mapping[str, Any], label: str, depth: int) -> Steps:
        others = schema.get("additionalProperties", True)
        named: dict[str, tuple[Schema, ...]] = {}
        named |= {name: (each,) for name, each in schema.get("properties", {}).items()}
        required = frozenset(schema.get("required", ()))
        shape = with_required(Shape(named, required, () if others is True else (others,)))
        if shape is None:
            return (yield from self._json((schema,), label))
        members = yield from self._members(shape, self._key, label, depth)
        return f'"{{" {members} "}}"'
