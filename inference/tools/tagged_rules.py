"""The rules of arguments in tags, made of a schema that was checked and reduced to what grammars express."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from inference.errors import Member, ToolRefused
from inference.grammar.schema import LIMITS
from inference.tools.formats import Marker, Tags, text_of
from inference.tools.lark import ANY, in_regex, literal, symbols
from inference.tools.shapes import Schema, shapes, standing_alone
from inference.tools.texts import Text, Values
from inference.tools.types import Tool


class TaggedRules:
    """Writes the rules of the arguments of all tools of one grammar; equal ones once."""

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._end = text_of(tags.after)
        self._line = ' "\\n"?' if tags.line else ""
        self._size = 0  # of all that was written
        self._known: dict[str, str] = {}  # names of rules by what they are
        self._texts: dict[Text, str] = {}  # the same names by texts: to write one may be much work
        self._others: dict[frozenset[str], str] = {}  # and by the names that others are not

    def of(self, at: int, tool: Tool, root: Mapping[str, Any]) -> Iterator[str]:
        """Yield the rule `args_<at>` of a tool, and those that it needs; raise ToolRefused."""
        for rule in self._of(at, tool, root):
            self._spend(len(rule) + 1)
            yield rule

    def _spend(self, size: int) -> None:
        """Count what is written; raise ToolRefused before it is more than a grammar may be.

        Much can come of little: a name is written again in every way to give arguments.
        """
        self._size += size
        if self._size > LIMITS.lark_bytes:
            raise ToolRefused(
                Member("tools", "the `parameters` of the functions in `tools`"),
                " are too large together: shorten them, or offer fewer functions at a time",
            )

    def _of(self, at: int, tool: Tool, root: Mapping[str, Any]) -> Iterator[str]:
        values, ways = Values(tool.parameters, self._end), []
        documents: dict[tuple[int, ...], str] = {}  # by the schemas of this root that they are of
        for number, shape in enumerate(shapes(root)):
            words = []
            for place, (name, schemas) in enumerate(shape.named.items()):
                rule = f"arg_{at}_{number}_{place}"
                yield f"{rule}: {self._opened(name, tool)}"
                label = f"{at} {name!r:.80}"
                value = yield from self._value(root, schemas, values.text(name), label, documents)
                yield f"{rule}_value: {value}"
                words.append(f"({rule} {rule}_value)" + ("" if name in shape.required else "?"))
            if False not in shape.others:
                value = yield from self._value(root, shape.others, values.other, str(at), documents)
                other = yield from self._other_names(shape.named)
                words.append(f"({other} {value})*")
            ways.append(" ".join(words) or '""')
        if not ways:
            raise ToolRefused("no arguments are valid by ", tool.member, ": mend the schema")
        yield f"args_{at}: {' | '.join(ways)}"

    def _opened(self, name: str, tool: Tool) -> str:
        """Return what stands before a value."""
        for text in (text_of(self._tags.middle), self._end, *(m.text for m in self._tags.markers)):
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
        self._spend(sum(map(len, named)))  # before a rule is written that is larger still
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
        label: str,
        documents: dict[tuple[int, ...], str],
    ) -> Generator[str, None, str]:
        """Yield the rules of a value if they are new; return the symbols of it and what ends it."""
        if text is not None:
            return (yield from self._text(text, label))
        of_whom = tuple(map(id, schemas))
        if of_whom not in documents:
            document = json.dumps(standing_alone(root, schemas), ensure_ascii=False, separators=(",", ":"))
            documents[of_whom] = yield from self._json(document, label)
        return f"{documents[of_whom]} {symbols(self._tags.after)}{self._line}"

    def _json(self, document: str, label: str) -> Generator[str, None, str]:
        """Yield the rule of a value in JSON if it is new; return its name."""
        if document not in self._known:
            self._known[document] = f"json_{len(self._known)}"
            yield f"// {label}"
            yield f"{self._known[document]}: %json {document}"
        return self._known[document]

    def _text(self, text: Text, label: str) -> Generator[str, None, str]:
        """Yield the rules of a text if they are new; return the symbols of it and what ends it.

        It goes up to where its end is first found: as a suffix, for llguidance, where that is no token.
        """
        after = self._tags.after
        is_token = after[0].id is not None
        rest = f" {symbols(after)}" if is_token else ""
        if text in self._texts:
            return f"{self._texts[text]}{rest}{self._line}"
        every = [f"/{expression}/" for expression in text.expressions] or [f"/{ANY}/"]
        if text.may_hold_end and not is_token:
            every += [f"~/{ended}/" for ended in self._early_ends()]
        if not text.listed and self._tags.slips:
            every.append(f"~/{ANY}({'|'.join(map(in_regex, self._tags.slips))}){ANY}/")
        null = " | /null/" if text.or_null and text.expressions else ""
        rule = f"({' & '.join(every)}){null}"
        if rule not in self._known:
            name = f"text_{len(self._known)}"
            self._known[rule] = name
            suffix = "" if is_token else f"[suffix={literal(self._end)}]"
            yield f"{name}{suffix}: {name.upper()}"
            yield f"// {label}"
            yield f"{name.upper()}: {rule}"
        self._texts[text] = self._known[rule]
        return f"{self._known[rule]}{rest}{self._line}"

    def _early_ends(self) -> Iterator[str]:
        """Yield expressions of the texts that would end earlier, with their end behind them."""
        yield f"{ANY}{in_regex(self._end)}{ANY}"
        for size in range(1, len(self._end)):
            if self._end.endswith(self._end[:size]):
                yield f"{ANY}{in_regex(self._end[:-size])}"
