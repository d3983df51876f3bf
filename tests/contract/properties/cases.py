"""All cases that the contract asks for, sent to one operation, and what was wrong with the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

from schemathesis.core.transport import Response

import openapi
from codegen import property_cases
from codegen.document import Document
from codegen.property_cases import Case, Operation
from codegen.property_contract import Promise, promises
from tests.contract.properties.target import Target

MOST_SHOWN = 10
KINDS_OF_FAILURES = 10_000  # after which no more cases are sent


@dataclass(slots=True)
class Outcome:
    """What came of a number of cases."""

    ran: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)  # the complaint, and the first case with it

    def add(self, case: Case, response: Response, complaints: Iterable[str]) -> None:
        """Count a case."""
        self.ran += 1
        self.statuses[response.status_code] += 1
        for complaint in complaints:
            sent = f"{case.method} {case.formatted_path} {property_cases.body_of(case)!r}"[:500]
            answer = f"{response.status_code} {response.content[:300]!r}"
            self.failures.setdefault(complaint, f"{sent}\n    -> {answer}")

    def __str__(self) -> str:
        shown = [f"{complaint}\n    {sent}" for complaint, sent in self.failures.items()][:MOST_SHOWN]
        return "\n".join([f"{len(self.failures)} kinds of failures in {self.ran} cases:", *shown])


def every_case(name: str, target: Target, *, at_least: int) -> None:
    """Send each case of an operation; fail if an answer breaks the contract, or if there are too few."""
    outcome = run(name, target)
    assert not outcome.failures, str(outcome)
    assert outcome.ran >= at_least
    assert outcome.statuses.keys() & {200, 404}, f"nothing was accepted: {outcome.statuses}"


def run(name: str, target: Target, *, most: int | None = None) -> Outcome:
    """Send the first `most` cases of an operation, all of them without a number."""
    outcome = Outcome()
    for case in islice(property_cases.coverage(operation(name)), most):
        response = target.send(case, outcome.ran)
        outcome.add(case, response, property_cases.case_problems(promise(name), case, response))
        if len(outcome.failures) >= KINDS_OF_FAILURES:
            break
    return outcome


def promise(name: str) -> Promise:
    """Return what the contract promises of an operation."""
    return _promises()[name]


def operation(name: str) -> Operation:
    """Return an operation as schemathesis has it."""
    return _operations()[name]


@cache
def _promises() -> dict[str, Promise]:
    return promises(Document.load())


@cache
def _operations() -> dict[str, Operation]:
    return property_cases.operations(property_cases.load(openapi.load()))
