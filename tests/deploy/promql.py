"""A reader of PromQL, as far as boards and alerts need it: is it one, and which series does it select."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

AGGREGATIONS = frozenset({"sum", "avg", "max", "min", "count", "topk"})
FUNCTIONS = {  # name: how many arguments
    **dict.fromkeys(("rate", "increase", "changes", "absent", "vector"), 1),
    **dict.fromkeys(("histogram_quantile", "clamp_min"), 2),
}
OPERATORS = frozenset({"+", "-", "*", "/", ">", "<", ">=", "<=", "==", "!=", "and", "or", "unless"})
TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+\.?\d*(?:e-?\d+)?)|(?P<string>"(?:\\.|[^"\\])*")|(?P<name>[A-Za-z_:][\w:]*)
    |(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])|(?P<op>=~|!~|[<>=!]=|[-+*/<>(){},=]))""",
    re.VERBOSE,
)


class NotPromQL(ValueError):
    """A text that Prometheus would refuse."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric's name with matchers: (label, operator, value)."""

    name: str
    matchers: tuple[tuple[str, str, str], ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether it selects a sample."""
        return name == self.name and all(
            _holds(labels.get(label, ""), *rest) for label, *rest in self.matchers
        )


@dataclass(slots=True)
class Query:
    """What was read of one."""

    selectors: list[Selector] = field(default_factory=list)
    grouping: set[str] = field(default_factory=set)  # labels of `by`


def read(text: str) -> Query:
    """Read an expression; raises NotPromQL."""
    reader = _Reader(text)
    reader.expression()
    if reader.peek() is not None:
        raise NotPromQL(f"{reader.peek()} follows the end of {text}")
    return reader.query


class _Reader:
    def __init__(self, text: str) -> None:
        self.query = Query()
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            found = TOKEN.match(text, at)
            if found is None:
                raise NotPromQL(f"no token at {text[at:]!r}")
            assert found.lastgroup is not None
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()

    def peek(self) -> str | None:
        return self._tokens[0][1] if self._tokens else None

    def take(self, *wanted: str) -> tuple[str, str]:
        if not self._tokens:
            raise NotPromQL(f"it ends where {wanted or 'something'} should come")
        kind, text = self._tokens.pop(0)
        if wanted and text not in wanted and kind not in wanted:
            raise NotPromQL(f"{text!r} where {wanted} should come")
        return kind, text

    def expression(self) -> None:
        self.operand()
        while self.peek() in OPERATORS:
            self.take()
            self.operand()

    def operand(self) -> None:
        if self.peek() == "(":
            self.take()
            self.expression()
            self.take(")")
        else:
            kind, text = self.take("number", "name")
            if kind == "name":
                self.named(text)

    def named(self, name: str) -> None:
        if name in AGGREGATIONS:
            self.by()
            self.arguments(2 if name == "topk" else 1)
            self.by()
        elif name in FUNCTIONS:
            self.arguments(FUNCTIONS[name], ranged=name in ("rate", "increase", "changes"))
        elif self.peek() == "(":
            raise NotPromQL(f"there is no function {name}")
        else:
            self.selector(name)

    def by(self) -> None:
        if self.peek() == "by":
            self.take()
            self.take("(")
            self.query.grouping.add(self.take("name")[1])
            while self.take(",", ")")[1] == ",":
                self.query.grouping.add(self.take("name")[1])

    def arguments(self, count: int, *, ranged: bool = False) -> None:
        self.take("(")
        for place in range(count):
            if place:
                self.take(",")
            self.expression()
        if ranged:
            self.take("range")
        self.take(")")

    def selector(self, name: str) -> None:
        matchers = []
        if self.peek() == "{":
            self.take()
            while self.peek() != "}":
                label = self.take("name")[1]
                operator = self.take("=", "!=", "=~", "!~")[1]
                matchers.append((label, operator, self.take("string")[1][1:-1]))
                if self.peek() != "}":
                    self.take(",")
            self.take("}")
        self.query.selectors.append(Selector(name, tuple(matchers)))


def _holds(value: str, operator: str, wanted: str) -> bool:
    equal = re.fullmatch(wanted, value) is not None if operator.endswith("~") else value == wanted
    return equal is not operator.startswith("!")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of an exposition, with the labels that Prometheus gives to what it scrapes."""

    name: str
    labels: Mapping[str, str]
    value: float


def selected(query: Query, samples: Iterable[Sample]) -> dict[Selector, list[Sample]]:
    """Return what each selector finds."""
    every = list(samples)
    return {each: [s for s in every if each.matches(s.name, s.labels)] for each in query.selectors}
