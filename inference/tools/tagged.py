"""Arguments that stand between tags, one by one: texts as they are, all else as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from inference.tools.formats import Marker, Tags, text_of
from inference.tools.shapes import lost_words, shapes
from inference.tools.tagged_reader import TaggedReader
from inference.tools.tagged_rules import TaggedRules
from inference.tools.texts import Values
from inference.tools.types import Tool


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """Arguments in tags, with the markers behind the last one.

    A value is a text as it is where the parameter can be nothing but a text (or null, which then is that
    word), and JSON where it can be anything else, or has to follow what only JSON's grammar can express.
    """

    tags: Tags
    closing: tuple[Marker, ...]

    @property
    def begins(self) -> str:
        """Return the first tag, or what closes a call without arguments."""
        return f"(?:{re.escape(text_of(self.tags.before))}|{re.escape(text_of(self.closing))})"

    def rules(self, tools: Sequence[Tool], schemas: Sequence[str]) -> Iterator[str]:
        """Yield the rules of all arguments."""
        rules = TaggedRules(self.tags)
        for at, (tool, schema) in enumerate(zip(tools, schemas, strict=True)):
            yield from rules.of(at, tool, json.loads(schema))

    def lost(self, tool: Tool, schema: str) -> frozenset[str]:
        """Return the keywords that speak of an object as a whole, or of names for which there are no tags."""
        root = json.loads(schema)
        is_open = self.tags.named and any(False not in shape.others for shape in shapes(root))
        return lost_words(root) | ({"additionalProperties"} if is_open else frozenset[str]())

    def reader(self, tool: Tool) -> TaggedReader:
        """Return what reads arguments and makes JSON of them."""
        return TaggedReader(self.tags, Values(tool.parameters, text_of(self.tags.after)))

    def written(self, arguments: object) -> str:
        """Return arguments in their tags; a text that is no object stands there as it is."""
        if not isinstance(arguments, Mapping):
            return "" if arguments is None else str(arguments)
        before, middle, line = text_of(self.tags.before), text_of(self.tags.middle), "\n" * self.tags.line
        return "".join(
            f"{before}{name}{middle}{self._kind(value)}"
            f"{self._text(value) if isinstance(value, str) else as_json(value)}"
            f"{text_of(self.tags.ended(name))}{line}"
            for name, value in arguments.items()
        )

    def _text(self, value: str) -> str:
        """Return a text as it stands between tags."""
        if self.tags.wrap is None or re.fullmatch(self.tags.bare, value):
            return value
        return value.join(self.tags.wrap)

    def _kind(self, value: object) -> str:
        """Return what tells the kind of a value before it, if the notation does."""
        if self.tags.kinds is None:
            return ""
        return self.tags.kinds[0 if isinstance(value, str) else 1] + text_of(self.tags.kind_end)


def as_json(value: object) -> str:
    """Return a value that is no text as templates write it."""
    return json.dumps(value, ensure_ascii=False)
