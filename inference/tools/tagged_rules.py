"""The rules of arguments in tags, made of a schema that was checked and reduced to what grammars express."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from inference.errors import ToolRefused
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
        self._size = 0  # of all documents
        self._known: dict[str, str] = {}  # names of rules by what they are

    def of(self, at: int, tool: Tool, root: Mapping[str, Any], member: str) -> Iterator[str]:
        """Yield the rule `args_<at>` of a tool, and those that it needs; raise ToolRefused."""
        values, ways = Values(tool.parameters, self._end), []
        for number, shape in enumerate(shapes(root)):
            words = []
            for place, (name, schemas) in enumerate(shape.named.items()):
                rule = f"arg_{at}_{number}_{place}"
                yield f"{rule}: {self._opened(name, member)}"
                value = yield from self._value(root, schemas, values.text(name), f"{member} {name!r:.80}")
                yield f"{rule}_value: {value}"
                words.append(f"({rule} {rule}_value)" + ("" if name in shape.required else "?"))
            if False not in shape.others:
                value = yield from self._value(root, shape.others, values.other, member)
                yield from self._other_names(f"other_{at}_{number}", shape.named)
                words.append(f"(other_{at}_{number} {value})*")
            ways.append(" ".join(words) or '""')
        if not ways:
            raise ToolRefused(f"no arguments are valid by `{member}`: mend the schema")
        yield f"args_{at}: {' | '.join(ways)}"

    def _opened(self, name: str, member: str) -> str:
        """Return what stands before a value."""
        for text in (text_of(self._tags.middle), self._end, *(m.text for m in self._tags.markers)):
            if text.strip() and text in name:
                raise ToolRefused(
                    f"`{member}` has a property whose name contains {text!r}, by which this model ends "
                    "names: rename it"
                )
        return symbols((*self._tags.before, Marker(name), *self._tags.middle))

    def _other_names(self, rule: str, named: Mapping[str, Any]) -> Iterator[str]:
        """Yield the rules of a name that no schema lists, and what stands around it."""
        stops = "".join(in_regex(char) for char in sorted({*text_of(self._tags.middle)[:1], "\n"}))
        listed = f" & ~/({'|'.join(map(in_regex, named))})/" if named else ""
        yield f"{rule.upper()}: /[^{stops}]{{1,64}}/{listed}"
        yield f"{rule}: {symbols(self._tags.before)} {rule.upper()} {symbols(self._tags.middle)}"

    def _value(
        self, root: Mapping[str, Any], schemas: tuple[Schema, ...], text: Text | None, label: str
    ) -> Generator[str, None, str]:
        """Yield the rules of a value if they are new; return the symbols of it and what ends it."""
        if text is not None:
            return (yield from self._text(text))
        document = json.dumps(standing_alone(root, schemas), ensure_ascii=False, separators=(",", ":"))
        if document not in self._known:
            self._size += len(document)
            if self._size > LIMITS.lark_bytes:
                raise ToolRefused(
                    "the `parameters` of the functions in `tools` are too large together: shorten them, or "
                    "offer fewer functions at a time"
                )
            self._known[document] = f"json_{len(self._known)}"
            yield f"// {label}"
            yield f"{self._known[document]}: %json {document}"
        return f"{self._known[document]} {symbols(self._tags.after)}{self._line}"

    def _text(self, text: Text) -> Generator[str, None, str]:
        """Yield the rules of a text if they are new; return the symbols of it and what ends it.

        It goes up to where its end is first found: as a suffix, for llguidance, where that is no token.
        """
        after = self._tags.after
        is_token = after[0].id is not None
        every = [f"/{expression}/" for expression in text.expressions] or [f"/{ANY}/"]
        if text.may_hold_end and not is_token:
            every += [f"~/{ended}/" for ended in self._early_ends()]
        null = " | /null/" if text.or_null and text.expressions else ""
        rule = f"({' & '.join(every)}){null}"
        if rule not in self._known:
            name = f"text_{len(self._known)}"
            self._known[rule] = name
            suffix = "" if is_token else f"[suffix={literal(self._end)}]"
            yield f"{name}{suffix}: {name.upper()}"
            yield f"{name.upper()}: {rule}"
        rest = f" {symbols(after)}" if is_token else ""
        return f"{self._known[rule]}{rest}{self._line}"

    def _early_ends(self) -> Iterator[str]:
        """Yield expressions of the texts that would end earlier, with their end behind them."""
        yield f"{ANY}{in_regex(self._end)}{ANY}"
        for size in range(1, len(self._end)):
            if self._end.endswith(self._end[:size]):
                yield f"{ANY}{in_regex(self._end[:-size])}"
