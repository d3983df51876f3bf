"""Which members of a body have an effect: the document says it with `x-support`, and is held to it here.

* `honoured`: has its effect.
* `descriptive`: accepted; a name for people, which has no effect by definition.
* `reported`: accepted, and named in the response header `x-ignored-parameters`, as are unknown members.
* `later`, `refused`: 422, unless the value is null or one of `x-neutral`, which ask for nothing.

A member with `x-excludes` can't stand beside the members named there: 422 with the words given there, unless
its own value is neutral or theirs null; where `x-excludes-unless` stands beside it, clients of OpenAI's API
may send both. `x-without-effect` names members of what stands below that are `reported` there, whatever they
are elsewhere, unless their value is the default.

The rules hold at every depth: inside of objects, of arrays, and of the alternative of an `anyOf` that
applies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NoReturn

import orjson

from handlers.http.errors import Refused
from handlers.http.explain import same

Json = Any
Schema = Mapping[str, Any]
Verdict = Callable[[Json], bool]
Synonyms = Mapping[str, Sequence[str]]  # by values of the document: what asks for as little in this server
NO_SYNONYMS: Synonyms = MappingProxyType({})

HONOURED, DESCRIPTIVE, REPORTED = "honoured", "descriptive", "reported"
LATER, REFUSED = "later", "refused"
SUPPORT = (HONOURED, DESCRIPTIVE, REPORTED, LATER, REFUSED)
UNIONS = ("anyOf", "oneOf", "allOf")

MOST_NAMES = 20  # in the header
REST = "..."  # in place of the names beyond
MOST_BYTES = 1000
LONG = re.compile(r"\A(.{97}).{4,}\Z", re.DOTALL)  # a name that would leave others no room
MOST_COLLECTED = 1000  # a body can have a million members
UNSAFE = re.compile(r"[^\x21-\x2b\x2d-\x7e]")  # not for a list in a header: the comma, spaces, non-ASCII


@dataclass(frozen=True, slots=True)
class Member:
    """One member that the document knows."""

    support: str
    shape: Shape
    neutral: tuple[Json, ...] = ()
    default: tuple[Json, ...] = ()  # the value that absence stands for, if there is one
    reason: str = ""
    error: Mapping[str, str] | None = None  # `x-error`: TGI's own words for the refusal

    def is_neutral(self, value: Json) -> bool:
        """Return whether the value asks for nothing."""
        return value is None or any(same(value, neutral) for neutral in self.neutral)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Two members that can't stand side by side."""

    name: str
    other: str
    member: Member
    error: Mapping[str, str]  # TGI's words
    by_sender: bool  # clients of OpenAI's API may send both

    def applies(self, value: Mapping[str, Json], speaks_openai: bool) -> bool:
        """Return whether the object has both, and its sender may not."""
        if speaks_openai and self.by_sender:
            return False
        return value.get(self.other) is not None and not self.member.is_neutral(value.get(self.name))


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """An object with named members; an open one takes any others as its own."""

    members: Mapping[str, Member]
    required: frozenset[str]
    open: bool
    plain: frozenset[str]  # members that need no further look
    exclusions: tuple[Exclusion, ...] = ()
    fits: Verdict | None = None  # where it is one of several alternatives

    def without(self, names: frozenset[str]) -> ObjectShape:
        """Return the object as it is where some of its members have no effect."""
        members = {
            name: replace(member, support=REPORTED, neutral=member.neutral + member.default)
            if name in names
            else member
            for name, member in self.members.items()
        }
        return replace(self, members=members, plain=self.plain - names)


@dataclass(slots=True)
class Shape:
    """What a value may contain: object alternatives, and the shape of the items if it's an array.

    Filled after it was made, because schemas can refer to themselves.
    """

    objects: list[ObjectShape] = field(default_factory=list)
    items: list[Shape] = field(default_factory=list)

    @property
    def leaf(self) -> bool:
        """Return whether there is nothing to look into."""
        return not self.items and all(shape.open and not shape.members for shape in self.objects)

    def object_for(self, value: Mapping[str, Json]) -> ObjectShape | None:
        """Return the alternative that applies: the first whose required members are there, and right."""
        meant = [shape for shape in self.objects if shape.required <= value.keys()]
        if len(meant) > 1:
            meant = [shape for shape in meant if shape.fits is None or shape.fits(value)]
        return meant[0] if meant else None

    def without(self, names: frozenset[str]) -> Shape:
        """Return the shape as it is where members of its objects, or of its items', have no effect."""
        return Shape(
            [shape.without(names) for shape in self.objects], [items.without(names) for items in self.items]
        )


class NotSupported(Refused):
    """A member of a body that is understood asks for what isn't done, or can't be done beside another."""


class SupportRules:
    """The rules of one request body."""

    def __init__(
        self,
        schema: Schema,
        components: Schema,
        verdict: Callable[[Schema], Verdict],
        synonyms: Synonyms = NO_SYNONYMS,
    ) -> None:
        """Compile the rules; `verdict` compiles a schema of the document into the function that checks it."""
        self._shape = Compiler(components, verdict, synonyms).shape(schema)

    def check(self, body: Json, *, speaks_openai: bool = False) -> tuple[str, ...]:
        """Return the names of the members without effect; raise NotSupported for one that isn't.

        `speaks_openai` says that a client of OpenAI's API has sent them.
        """
        reading = Reading(speaks_openai)
        _walk(self._shape, body, "", reading)
        return tuple(sorted(reading.ignored))


@dataclass(slots=True)
class Reading:
    """One body on its way through the rules."""

    speaks_openai: bool  # its sender does
    places: list[int] = field(default_factory=list)  # of the items that are looked into, the outermost first
    ignored: set[str] = field(default_factory=set)  # names of members without effect

    def ignore(self, path: str) -> None:
        """Note a member without effect."""
        self.ignored.add(path if len(self.ignored) < MOST_COLLECTED else REST)


class Compiler:
    """Turns schemas of the document into shapes, each component once."""

    def __init__(
        self, components: Schema, verdict: Callable[[Schema], Verdict], synonyms: Synonyms = NO_SYNONYMS
    ) -> None:
        self._schemas: Schema = components.get("schemas", {})
        self._verdict = verdict
        self._synonyms = synonyms
        self._shapes: dict[str, Shape] = {}

    def resolve(self, schema: Schema) -> Schema:
        """Follow references to the schema itself."""
        while "$ref" in schema:
            schema = self._schemas[_name(schema)]
        return schema

    def shape(self, schema: Schema) -> Shape:
        """Return the shape of a schema."""
        if "$ref" not in schema:
            return self._fill(Shape(), schema)
        name = _name(schema)
        if name not in self._shapes:
            self._shapes[name] = Shape()
            self._fill(self._shapes[name], self._schemas[name])
        return self._shapes[name]

    def _fill(self, shape: Shape, schema: Schema) -> Shape:
        if "$ref" in schema:
            return self._fill(shape, self._schemas[_name(schema)])
        if "properties" in schema:
            shape.objects.append(self._object(schema))
        elif schema.get("type") == "object" and "enum" not in schema:
            shape.objects.append(ObjectShape({}, frozenset(), True, frozenset()))
        if "items" in schema:
            shape.items.append(self.shape(schema["items"]))
        for union in (schema[union] for union in UNIONS if union in schema):
            self._add_branches(shape, union)
        return shape

    def _add_branches(self, shape: Shape, union: list[Schema]) -> None:
        branches = [(branch, self._fill(Shape(), branch)) for branch in union]
        several = sum(bool(part.objects) for _, part in branches) > 1
        for branch, part in branches:
            fits = self._verdict(branch) if several and part.objects else None
            shape.objects += [replace(found, fits=fits) for found in part.objects] if fits else part.objects
            shape.items += part.items

    def _object(self, schema: Schema) -> ObjectShape:
        members = {name: self._member(name, member) for name, member in schema["properties"].items()}
        plain = frozenset(
            name for name, member in members.items() if member.support == HONOURED and member.shape.leaf
        )
        is_open = schema.get("additionalProperties") not in (None, False)
        exclusions = tuple(
            Exclusion(name, other, members[name], error, by_sender="x-excludes-unless" in member)
            for name, member in schema["properties"].items()
            for other, error in member.get("x-excludes", {}).items()
        )
        return ObjectShape(members, frozenset(schema.get("required", ())), is_open, plain, exclusions)

    def _member(self, name: str, schema: Schema) -> Member:
        resolved = {**self.resolve(schema), **schema}
        support = resolved.get("x-support", HONOURED)
        if support not in SUPPORT:
            raise ValueError(f"x-support of `{name}` is {support!r}; it is one of {', '.join(SUPPORT)}")
        shape = self.shape(schema)
        if "x-without-effect" in resolved:
            shape = shape.without(frozenset(resolved["x-without-effect"]))
        return Member(
            support,
            shape,
            neutral=self._with_synonyms(resolved.get("x-neutral", ())),
            default=self._with_synonyms([resolved["x-default"]] if "x-default" in resolved else ()),
            reason=resolved.get("x-reason", ""),
            error=resolved.get("x-error"),
        )

    def _with_synonyms(self, values: Iterable[Json]) -> tuple[Json, ...]:
        values = tuple(values)
        texts = (value for value in values if isinstance(value, str))
        return (*values, *(other for text in texts for other in self._synonyms.get(text, ())))


def header_value(names: Iterable[str]) -> str:
    """Return names in order as a header's value: printable ASCII, 20 names and 1 kB at most.

    `...` stands for the rest, also where it is among the names, and for the rest of a long name.
    """
    safe = {UNSAFE.sub("?", LONG.sub(rf"\1{REST}", name)) for name in names}
    shown: list[str] = []
    size = 0
    for name in sorted(safe - {REST}):
        if len(shown) == MOST_NAMES or size + len(name) > MOST_BYTES:
            return ",".join([*shown, REST])
        shown.append(name)
        size += len(name) + 1
    return ",".join([*shown, REST] if REST in safe else shown)


def ignored_header(names: Collection[str]) -> dict[str, str]:
    """Return the header that names what has no effect; none if there is nothing."""
    return {"x-ignored-parameters": header_value(names)} if names else {}


def merged(values: Iterable[str]) -> str:
    """Return the names of several values of the header as one."""
    return header_value(name for value in values for name in value.split(","))


def _walk(shape: Shape, value: Json, prefix: str, reading: Reading) -> None:
    if isinstance(value, dict):
        chosen = shape.object_for(value)
        if chosen is not None:
            _refuse_excluded(chosen, value, reading.speaks_openai)
            for name in value:  # in the body's order: of several that are refused the first is told
                if name not in chosen.plain:
                    _member(chosen, name, value[name], prefix, reading)
    elif isinstance(value, list):
        within = f"{prefix[:-1]}[]."
        for items in shape.items:
            if not items.leaf:
                for at, item in enumerate(value):
                    if isinstance(item, (dict, list)):  # most of half a million tokens aren't
                        reading.places.append(at)
                        _walk(items, item, within, reading)
                        reading.places.pop()


def _member(owner: ObjectShape, name: str, value: Json, prefix: str, reading: Reading) -> None:
    member = owner.members.get(name)
    if member is None:
        if not owner.open:
            reading.ignore(prefix + name)
    elif member.support == HONOURED:
        _walk(member.shape, value, f"{prefix}{name}.", reading)
    elif member.support == DESCRIPTIVE or member.is_neutral(value):
        return
    elif member.support == REPORTED:
        reading.ignore(prefix + name)
    else:
        _refuse(member, _placed(prefix + name, reading.places))


def _refuse_excluded(shape: ObjectShape, value: Mapping[str, Json], speaks_openai: bool) -> None:
    for exclusion in shape.exclusions:
        if exclusion.applies(value, speaks_openai):
            raise _in_tgis_words(exclusion.error, exclusion.name)


def _refuse(member: Member, path: str) -> NoReturn:
    if member.error is not None:
        raise _in_tgis_words(member.error, path)
    because = f": {member.reason}" if member.reason else ""
    yet = " yet" if member.support == LATER else ""
    neutral = " or ".join(orjson.dumps(value).decode() for value in (*member.neutral, None))
    raise NotSupported(
        f"Input validation error: `{path}` is not supported{yet}{because}; leave it out or send {neutral}",
        param=path,
    )


def _placed(path: str, places: Sequence[int]) -> str:
    """Return a path with the number of each item on its way."""
    first, *others = path.split("[]")
    return first + "".join(f"[{at}]{other}" for at, other in zip(places, others, strict=True))


def _in_tgis_words(error: Mapping[str, str], path: str) -> NotSupported:
    return NotSupported(error["error"], error_type=error["error_type"], to_the_letter=True, param=path)


def _name(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]
