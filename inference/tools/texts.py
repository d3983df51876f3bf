"""Which parameters of a tool are texts, to be written as they are, and what these may be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from inference.grammar.fault import GrammarFault
from inference.grammar.keywords import FORMATS, UNSUPPORTED, says
from inference.grammar.loosening import is_lost
from inference.grammar.regex import searched
from inference.tools.lark import in_regex
from inference.tools.shapes import target

STEPS = 32  # references followed, and schemas within each other that are all of one value
OF_TEXTS = frozenset({"type", "enum", "const", "pattern", "minLength", "maxLength", "format"})
JOINS = ("allOf", "anyOf", "oneOf")
NULL = {"type": "null"}

LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOST = rf"{LABEL}(\.{LABEL}){{0,8}}"
LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
DAY = (
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{LEAP}-02-29)"
)
HOURS = "([01][0-9]|2[0-3]):[0-5][0-9]"
TIME = rf"{HOURS}:[0-5][0-9](\.[0-9]{{1,9}})?([Zz]|[+-]{HOURS})"
BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
SAFE = r"([A-Za-z0-9._~!$\x26'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
PART = rf"({SAFE}|[\/?])"
BRACKETED = (
    rf"\/\/({SAFE}*@)?\[[0-9A-Fa-f:.]{{2,45}}\](:[0-9]*)?([\/?]{PART}*)?"  # a host as in http://[::1]/
)
ATEXT = r"[A-Za-z0-9!#$%\x26'*+\/=?\^_`{|}~-]+"
FORMS = {  # of formats, each at most what it allows
    "date": DAY,
    "time": TIME,
    "date-time": f"{DAY}[Tt]{TIME}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"{BYTE}(\.{BYTE}){{3}}",
    "hostname": HOST,
    "email": rf"{ATEXT}(\.{ATEXT}){{0,8}}@{HOST}",
    "uri": rf"[A-Za-z][A-Za-z0-9+.-]*:({PART}+|{BRACKETED})(#{PART}*)?",
}
SHORTEST = {  # text of each format: one that may be as long contradicts nothing
    "date": 10,
    "time": 9,
    "date-time": 20,
    "uuid": 36,
    "ipv4": 7,
    "hostname": 1,
    "email": 3,
    "uri": 3,
}


@dataclass(frozen=True, slots=True)
class Text:
    """A parameter that is a text, and matches all of some regular expressions."""

    expressions: tuple[str, ...] = ()
    or_null: bool = False  # it may be null
    may_hold_end: bool = False  # what matches may hold the end of texts, behind what doesn't match
    listed: bool = False  # it is one of the texts that its schema lists


class Values:
    """What the values of a tool's parameters are, by the schema that the client gave, and what ends a text.

    What writes the grammar and what reads an answer both ask here, so that they agree. Words that no grammar
    can express say nothing here: tools that are `strict` are refused for them, and others go without.
    """

    def __init__(self, parameters: Mapping[str, Any], end: str) -> None:
        self._root = parameters
        self._end = end
        self._known: dict[str, Text | None] = {}
        self._kinds: dict[int, Text | None] = {}  # by schema: many may refer to one, and it may be large

    def text(self, name: str) -> Text | None:
        """Return what text a parameter is, None if it is JSON."""
        if name not in self._listed:
            return self.other
        if name not in self._known:
            first, *others = self._listed[name]
            is_mixed = self._mixed or any(each != first for each in others)
            self._known[name] = None if is_mixed else self._kind(first)
        return self._known[name]

    @cached_property
    def _parts(self) -> tuple[Mapping[str, Any], ...]:
        """The schemas that speak of the arguments as a whole."""
        found: dict[int, Mapping[str, Any]] = {}
        stack: list[Any] = [self._root]
        while stack:
            part = stack.pop()
            if isinstance(part, Mapping) and id(part) not in found:
                found[id(part)] = part
                stack += (each for join in JOINS for each in _list(part.get(join)))
                stack.append(self._target(part))
        return tuple(found.values())

    @cached_property
    def _mixed(self) -> bool:
        """Whether one schema speaks of values that another lists."""
        parts = self._parts
        return any("patternProperties" in part for part in parts) or (
            len(parts) > 1 and any(isinstance(part.get("additionalProperties"), Mapping) for part in parts)
        )

    @cached_property
    def _listed(self) -> dict[str, list[Any]]:
        """What schemas say of the parameters that they list."""
        schemas: dict[str, list[Any]] = {}
        for part in self._parts:
            listed = part.get("properties")
            for name, schema in listed.items() if isinstance(listed, Mapping) else ():
                schemas.setdefault(name, []).append(schema)
        return schemas

    @cached_property
    def other(self) -> Text | None:
        """What parameters are that no schema lists."""
        return None if self._mixed else self._kind(self._root.get("additionalProperties"))

    def _kind(self, schema: Any, steps: int = 0) -> Text | None:
        """Return what text a schema's values are."""
        if not isinstance(schema, Mapping) or steps > STEPS:
            return None
        words = says(schema) - UNSUPPORTED.keys()
        if words == {"$ref"}:
            return self._kind(self._target(schema), steps + 1)
        if len(words) == 1 and words <= {*JOINS}:
            return self._of_alternatives(_list(schema[words.copy().pop()]), "allOf" in words, steps)
        if id(schema) not in self._kinds:
            self._kinds[id(schema)] = self.of_words(schema) if words <= OF_TEXTS else None
        return self._kinds[id(schema)]

    def _of_alternatives(self, schemas: list[Any], joined: bool, steps: int) -> Text | None:
        """Return the one text that some schemas are of, and whether null is another."""
        others = [each for each in schemas if each != NULL]
        if len(others) != 1 or (joined and len(schemas) > 1):
            return None
        text = self._kind(others[0], steps + 1)
        return replace(text, or_null=True) if text is not None and len(schemas) > 1 else text

    def of_words(self, schema: Mapping[str, Any]) -> Text | None:
        """Return what text a schema's own words speak of, all of which are about texts."""
        literals = _literals(schema)
        kinds = schema.get("type", _kinds(literals))
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list) or "string" not in kinds or not set(kinds) <= {"string", "null"}:
            return None
        expressions = [*self._expressions(schema, literals)]
        if None in expressions:
            return None
        or_null = "null" in kinds and (literals is None or None in literals)
        may_hold_end = literals is None and bool(schema.get("minLength") or "pattern" in schema)
        return Text(
            tuple(each for each in expressions if each is not None),
            or_null,
            may_hold_end,
            literals is not None,
        )

    def _expressions(self, schema: Mapping[str, Any], literals: Any) -> Iterator[str | None]:
        """Yield regular expressions that a text must match, None for what none can say.

        Nor can they say that nothing matches all of them: an answer would end in the midst of such a text.
        What may contradict itself is left to JSON, whose grammar finds that.
        """
        least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
        if not _is_count(least) or not (most == math.inf or _is_count(most)) or least > most:
            yield None
            return
        has_pattern = isinstance(schema.get("pattern"), str) and not is_lost(schema["pattern"])
        form = schema["format"] if schema.get("format") in FORMATS else None
        if literals is not None:
            texts = [each for each in literals if isinstance(each, str) and least <= len(each) <= most]
            fits = texts and not any(self._end in each + self._end[:-1] for each in texts)
            fits = fits and form is None and not has_pattern
            yield f"(?:{'|'.join(map(in_regex, texts))})" if fits else None  # nothing would be a comment
            return
        if least or most != math.inf:
            yield f"(?s:.){{{least},{'' if most == math.inf else most}}}"
        if has_pattern:
            yield _searched(schema["pattern"]) if form is None else None
        if form is not None:
            yield FORMS.get(form) if least <= SHORTEST.get(form, 0) <= most else None

    def _target(self, schema: Mapping[str, Any]) -> Any:
        """Return what a schema refers to, None for nothing."""
        reference = schema.get("$ref")
        return target(self._root, reference) if isinstance(reference, str) else None


def _list(value: Any) -> list[Any]:
    return [*value] if isinstance(value, list | tuple) else []


def _literals(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists, those of `enum` that `const` allows; None if it lists none."""
    listed = _list(schema["enum"]) if "enum" in schema else None
    if "const" not in schema:
        return listed
    only = schema["const"]
    return [only] if listed is None or only in listed else []


def _kinds(literals: Any) -> list[str] | None:
    """Return the types of literals if each of them is a text or null."""
    if not isinstance(literals, list | tuple) or not all(isinstance(each, str | None) for each in literals):
        return None
    return ["null" if each is None else "string" for each in literals]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _searched(pattern: str) -> str | None:
    """Return the expression of texts in which a pattern is found, None where that can't be said."""
    try:
        return searched(pattern)
    except GrammarFault:
        return None
