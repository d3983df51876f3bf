"""A reader of PromQL, as far as boards and alerts need it.

Is it one, which series does it select, and do the vectors that its operators join have the same labels: those
of different ones never meet, and what is asked by them is never so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

AGGREGATIONS = frozenset({"sum", "avg", "max", "min", "count", "topk"})
FUNCTIONS = {  # name: how many arguments
    **dict.fromkeys(("rate", "increase", "changes", "absent", "vector"), 1),
    **dict.fromkeys(("histogram_quantile", "clamp_min"), 2),
}
OPERATORS = (  # by how closely they bind
    frozenset({"or"}),
    frozenset({"and", "unless"}),
    frozenset({">", "<", ">=", "<=", "==", "!="}),
    frozenset({"+", "-"}),
    frozenset({"*", "/"}),
)
SETS = OPERATORS[0] | OPERATORS[1]  # whose result has all labels of the left side
MATCHING = ("on", "ignoring")
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


Names = frozenset[str] | None  # of labels; None: a number, which has none
Labels = Callable[[Mapping[str, frozenset[str]]], Names]  # of a vector, by those of each metric


@dataclass(frozen=True, slots=True)
class Join:
    """Two sides of an operator, and by which labels their series find each other."""

    operator: str
    left: Labels
    right: Labels
    matching: str = ""  # `on`, `ignoring`, or "": by all labels
    named: frozenset[str] = frozenset()

    def labels(self, exported: Mapping[str, frozenset[str]]) -> Names:
        """Return the labels of the result."""
        left, right = self.left(exported), self.right(exported)
        if left is None or right is None:
            return right if left is None else left
        if self.operator in SETS or not self.matching:
            return left
        return self.named if self.matching == "on" else left - self.named

    def fault(self, exported: Mapping[str, frozenset[str]]) -> str | None:
        """Return why its sides never meet, or None."""
        left, right = self.left(exported), self.right(exported)
        if left is None or right is None:
            return None
        if self.matching == "on":
            lacking = self.named - (left & right)
            return f"{self.operator} on {sorted(lacking)}, which one side lacks" if lacking else None
        odd = (left ^ right) - self.named
        return f"{self.operator} between sides of which one alone has {sorted(odd)}" if odd else None


@dataclass(slots=True)
class Query:
    """What was read of one."""

    selectors: list[Selector] = field(default_factory=list)
    grouping: set[str] = field(default_factory=set)  # labels of `by`
    joins: list[Join] = field(default_factory=list)


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

    def expression(self, level: int = 0) -> Labels:
        """Read operands of operators that bind at least so closely; return the labels of the result."""
        if level == len(OPERATORS):
            return self.operand()
        left = self.expression(level + 1)
        while self.peek() in OPERATORS[level]:
            operator = self.take()[1]
            matching, named = "", frozenset[str]()
            if self.peek() in MATCHING:
                matching, named = self.take()[1], self.names()
            join = Join(operator, left, self.expression(level + 1), matching, named)
            self.query.joins.append(join)
            left = join.labels
        return left

    def operand(self) -> Labels:
        if self.peek() == "(":
            self.take()
            inner = self.expression()
            self.take(")")
            return inner
        kind, text = self.take("number", "name")
        return self.named(text) if kind == "name" else _number

    def named(self, name: str) -> Labels:
        if name in AGGREGATIONS:
            before = self.by()
            (*_, of) = self.arguments(2 if name == "topk" else 1)
            grouped = before | self.by()
            return of if name == "topk" else lambda exported: grouped
        if name in FUNCTIONS:
            given = self.arguments(FUNCTIONS[name], ranged=name in ("rate", "increase", "changes"))
            if name in ("absent", "vector"):
                return lambda exported: frozenset()
            if name == "histogram_quantile":
                return lambda exported: (given[1](exported) or frozenset()) - {"le"}
            return given[0]
        if self.peek() == "(":
            raise NotPromQL(f"there is no function {name}")
        return self.selector(name)

    def by(self) -> frozenset[str]:
        if self.peek() != "by":
            return frozenset()
        self.take()
        names = self.names()
        self.query.grouping |= names
        return names

    def names(self) -> frozenset[str]:
        self.take("(")
        names = {self.take("name")[1]}
        while self.take(",", ")")[1] == ",":
            names.add(self.take("name")[1])
        return frozenset(names)

    def arguments(self, count: int, *, ranged: bool = False) -> list[Labels]:
        self.take("(")
        given = []
        for place in range(count):
            if place:
                self.take(",")
            given.append(self.expression())
        if ranged:
            self.take("range")
        self.take(")")
        return given

    def selector(self, name: str) -> Labels:
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
        return lambda exported: exported.get(name, frozenset())


def _number(exported: Mapping[str, frozenset[str]]) -> Names:
    return None


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


def mismatched(query: Query, samples: Iterable[Sample]) -> list[str]:
    """Return what is wrong with operators between vectors whose series never meet."""
    exported = {each.name: frozenset(each.labels) for each in samples}
    return [fault for join in query.joins if (fault := join.fault(exported)) is not None]
