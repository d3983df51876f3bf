"""What a fuzzing run asks: of each operation a share of the cases, from three sources.

* The deterministic cases of the contract's borders, first.
* Random ones, right and wrong, drawn by schemathesis.
* Crossed ones: members of several right requests in one body, now and then with one wrong value in it. Most
  of them are accepted, so they reach further than what is drawn.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from codegen import property_cases
from codegen.property_cases import Case, Operation
from codegen.property_contract import Promise

BORDERS, DRAWN, CROSSED = "borders", "drawn", "crossed"
WITHOUT_BODY = 0.1  # share of an operation without a body, where others have 1
WRONG_VALUE = 0.25  # of the crossed bodies, those with one
WRONG_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**64 - 1, 2**64, -(2**63), 10**400),
    *(0.5, -0.0, 1e308, 5e-324, "", "\0", "\ud7ff\ue000", "\u202e\U0001f469\u200d\U0001f4bb"),
    *("a" * 5000, "{{ 1/0 }}", "</s><|im_end|>"),
    *([], {}, [[]], [None], {"": None}, {"a": {"a": {"a": {}}}}, ["a"] * 50, [{}] * 20),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the run: a case, or a body that was put together here."""

    operation: str
    source: str
    case: Case


Take = Callable[[Asked], None]


def shares(promises: Mapping[str, Promise], cases: int) -> dict[str, int]:
    """Return how many cases each operation gets, `cases` in all."""
    weights = {name: 1.0 if promise.body else WITHOUT_BODY for name, promise in promises.items()}
    whole = sum(weights.values())
    numbers = {name: int(cases * weight / whole) for name, weight in weights.items()}
    widest = max(weights, key=weights.__getitem__)
    numbers[widest] += cases - sum(numbers.values())
    return numbers


def ask(operation: Operation, promise: Promise, number: int, seed: int, take: Take) -> None:
    """Give `take` so many requests of one operation; the same ones for the same seed."""
    borders = list(islice(property_cases.coverage(operation), number))
    for case in borders if promise.body is not None else islice(cycle(borders), number):
        take(Asked(promise.id, BORDERS, case))
    if promise.body is None:  # there is nothing to draw; in between other requests the answer stays the same
        return
    rest = number - len(borders)
    right = [case for case in borders if _is_right(promise, case)]
    right = [case for case in right if not _names(case.body) & promise.unsupported] or right
    crossings = rest // 2 if right else 0
    for case in islice(_crossed(promise, right, random.Random(f"{seed} {promise.id}")), crossings):
        take(Asked(promise.id, CROSSED, case))
    drawn = rest - crossings
    property_cases.drawn(operation, drawn, seed, lambda case: take(Asked(promise.id, DRAWN, case)))


def _is_right(promise: Promise, case: Case) -> bool:
    body = case.body
    right = isinstance(body, dict) and promise.body is not None and promise.body.fits(_json(body))
    return bool(right) and case.method.upper() == promise.method


def _crossed(promise: Promise, right: list[Case], chance: random.Random) -> Iterator[Case]:
    """Yield cases without end."""
    while right:
        first, *others = (chance.choice(right) for _ in range(chance.randint(2, 4)))
        body = copy.deepcopy(first.body)
        for other in others:
            _mix(body, copy.deepcopy(other.body), chance)
        if chance.random() < WRONG_VALUE:
            _spoil(body, chance)
        yield first.operation.Case(
            method=first.method,
            path_parameters=first.path_parameters,
            body=body,
            media_type=first.media_type,
        )


def _mix(body: Any, other: Any, chance: random.Random) -> None:
    for name, value in other.items():
        if isinstance(body.get(name), dict) and isinstance(value, dict):
            _mix(body[name], value, chance)
        elif chance.random() < 0.5:
            body[name] = value


def _spoil(body: Any, chance: random.Random) -> None:
    """Put a wrong value somewhere."""
    holder = body
    while True:
        place = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        below = holder[place]
        if isinstance(below, dict | list) and below and chance.random() < 0.7:
            holder = below
            continue
        holder[place] = copy.deepcopy(chance.choice(WRONG_VALUES))
        return


def _names(body: Any) -> set[str]:
    """Return the names of all members that aren't null."""
    if isinstance(body, list):
        return {name for each in body for name in _names(each)}
    if not isinstance(body, dict):
        return set()
    own = {name for name, value in body.items() if value is not None}
    return own | {name for value in body.values() for name in _names(value)}


def _json(body: Any) -> Any:
    return json.loads(json.dumps(body))
