"""A defect that is planted in the application, and the generated tests that may be asked to catch it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.contract.properties.tampering import Plant

CASES = "every_case_is_answered_as_promised"
KEY = "the_key_is_asked_for"
OPEN = "it_is_open_to_all"
NO_JSON = "what_is_no_json_is_refused"
UNKNOWN = "unknown_members_are_named"
RANGES = "values_out_of_their_ranges_are_refused"
APART = "honoured_members_are_told_apart"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect and the test that catches it."""

    name: str
    operation: str
    test: str
    plant: Plant

    def __str__(self) -> str:
        return f"{self.operation}: {self.name}"
