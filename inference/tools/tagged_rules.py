"""The rules of arguments in tags, made of a schema that was checked and reduced to what grammars express."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from inference.errors import ToolRefused
from inference.grammar.keywords import LITERALS, may_be, says
from inference.tools.formats import Marker, Tags, text_of
from inference.tools.lark import in_regex, literal, symbols
from inference.tools.shapes import Schema, shapes, standing_alone
from inference.tools.texts import JOINS, OF_TEXTS, Text, Values
from inference.tools.types import Tool
from inference.tools.value_rules import ValueRules

WITHOUT_TYPE = frozenset((*JOINS, *LITERALS, "$ref"))  # what may say of which type a value is


class TaggedRules:
    """Writes the rules of the arguments of all tools of one grammar; equal ones once."""

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._end = text_of(tags.after)
        self._line = ' "\\n"?' if tags.line else ""
        self._values = ValueRules(tags.slips)
        self._others: dict[frozenset[str], str] = {}  # names of rules by the names that others are not

    def of(self, at: int, tool: Tool, root: Mapping[str, Any]) -> Iterator[str]:
        """Yield the rule `args_<at>` of a tool, and those that it needs; raise ToolRefused."""
        for rule in self._of(at, tool, root):
            self._values.spend(len(rule) + 1)
            yield rule

    def _of(self, at: int, tool: Tool, root: Mapping[str, Any]) -> Iterator[str]:
        values, ways = Values(tool.parameters, self._end), []
        documents: dict[tuple[int, ...], str] = {}  # by the schemas of this root that they are of
        for number, shape in enumerate(shapes(root)):
            words = []
            for place, (name, schemas) in enumerate(shape.named.items()):
                rule = f"arg_{at}_{number}_{place}"
                yield f"{rule}: {self._opened(name, tool)}"
                label = f"{at} {name!r:.80}"
                end = self._tags.ended(name)
                value = yield from self._value(root, schemas, values.text(name), end, label, documents)
                yield f"{rule}_value: {value}"
                words.append(f"({rule} {rule}_value)" + ("" if name in shape.required else "?"))
            if False not in shape.others and not self._tags.named:  # whose ends have a name that is known
                end = self._tags.after
                value = yield from self._value(root, shape.others, values.other, end, str(at), documents)
                other = yield from self._other_names(shape.named)
                words.append(f"({other} {value})*")
            ways.append(" ".join(words) or '""')
        if not ways:
            raise ToolRefused("no arguments are valid by ", tool.member, ": mend the schema")
        yield f"args_{at}: {' | '.join(ways)}"

    def _opened(self, name: str, tool: Tool) -> str:
        """Return what stands before a value."""
        pieces = (marker.text for marker in self._tags.markers)  # of which `<` alone ends nothing
        texts = (
            *(text_of(self._tags.middle), self._end),
            *(piece for piece in pieces if any(map(str.isalnum, piece))),
        )
        for text in (*texts, "/") if self._tags.named else texts:
            if text.strip() and text in name:
                raise ToolRefused(
                    tool.member,
                    f" has a property whose name contains {text!r}, by which this model ends "
                    "names: rename it",
                )
        return symbols((*self._tags.before, Marker(name), *self._tags.middle))

    def _other_names(self, named: Mapping[str, Any]) -> Generator[str, None, str]:
        """Yield the rules of a name that no schema lists, if they are new; return the one with its tags."""
        names = frozenset(named)
        if names in self._others:
            return self._others[names]
        rule = self._others[names] = f"other_{len(self._others)}"
        self._values.spend(sum(map(len, named)))  # before a rule is written that is larger still
        stops = "".join(in_regex(char) for char in sorted({*text_of(self._tags.middle)[:1], "\n"}))
        listed = f" & ~/({'|'.join(map(in_regex, named))})/" if named else ""
        yield f"{rule.upper()}: /[^{stops}]{{1,64}}/{listed}"
        yield f"{rule}: {symbols(self._tags.before)} {rule.upper()} {symbols(self._tags.middle)}"
        return rule

    def _value(
        self,
        root: Mapping[str, Any],
        schemas: tuple[Schema, ...],
        text: Text | None,
        end: tuple[Marker, ...],
        label: str,
        documents: dict[tuple[int, ...], str],
    ) -> Generator[str, None, str]:
        """Yield the rules of a value if they are new; return the symbols of it and what is around it."""
        if self._tags.kinds is not None:
            return (yield from self._told(root, schemas, text, label, documents))
        if text is not None and self._tags.wrap is not None:
            return (yield from self._wrapped(text, self._tags.wrap, end, label))
        if text is not None:
            return (yield from self._values.text(text, end, label)) + self._line
        json_value = yield from self._json(root, schemas, label, documents)
        return f"{json_value} {symbols(end)}{self._line}"

    def _wrapped(
        self, text: Text, wrap: tuple[str, str], end: tuple[Marker, ...], label: str
    ) -> Generator[str, None, str]:
        """Do the same for a text that is wrapped unless what it holds allows it to stand as it is."""
        plain = replace(text, expressions=(*text.expressions, self._tags.bare), may_hold_end=False)
        within = replace(text, or_null=False, may_hold_end=True)
        bare = yield from self._values.text(plain, end, label)
        wrapped = yield from self._values.text(within, (Marker(wrap[1]), *end), label)
        return f"({bare} | {literal(wrap[0])} {wrapped})"

    def _told(
        self,
        root: Mapping[str, Any],
        schemas: tuple[Schema, ...],
        text: Text | None,
        label: str,
        documents: dict[tuple[int, ...], str],
    ) -> Generator[str, None, str]:
        """Do the same where the kind of a value is told before it: what can be a text is one as it is."""
        assert self._tags.kinds is not None
        as_text, as_json = (symbols((Marker(kind), *self._tags.kind_end)) for kind in self._tags.kinds)
        after = f"{symbols(self._tags.after)}{self._line}"
        own = text_among(schemas) if text is None else replace(text, or_null=False)
        ways = []
        if own is not None:
            ways.append(
                f"{as_text} {(yield from self._values.text(own, self._tags.after, label))}{self._line}"
            )
        if text is None:
            ways.append(f"{as_json} {(yield from self._json(root, schemas, label, documents))} {after}")
        elif text.or_null:
            ways.append(f'{as_json} "null" {after}')
        return f"({' | '.join(ways)})"

    def _json(
        self,
        root: Mapping[str, Any],
        schemas: tuple[Schema, ...],
        label: str,
        documents: dict[tuple[int, ...], str],
    ) -> Generator[str, None, str]:
        """Yield the rule of a value in JSON if it is new; return its name."""
        of_whom = tuple(map(id, schemas))
        if of_whom not in documents:
            document = json.dumps(standing_alone(root, schemas), ensure_ascii=False, separators=(",", ":"))
            documents[of_whom] = yield from self._values.json(document, label)
        return documents[of_whom]


def text_among(schemas: tuple[Schema, ...]) -> Text | None:
    """Return the text that a value of some schemas may be among others; None if that can't be said."""
    if not schemas:
        return Text()
    (schema, *others) = schemas
    if others or not isinstance(schema, Mapping):
        return None if others or schema is not True else Text()
    if says(schema) & WITHOUT_TYPE or not may_be(schema, "string"):
        return None
    return Values({}, "").of_words(
        {"type": "string", **{word: schema[word] for word in OF_TEXTS & schema.keys() - {"type"}}}
    )
