"""That the generated tests ask enough, the same each time, and from the document as it is."""

from __future__ import annotations

import re
from functools import cache

import pytest

from codegen import property_cases
from codegen.document import Document
from codegen.property_tests import FOLDER, render
from tests.contract.members import PLACES
from tests.contract.properties.cases import operation, promise
from tests.contract.properties.ranges import values_beyond, values_beyond_others

NAMES = [each.id for each in Document.load().operations()]
ENOUGH = 3000


@cache
def asked(name: str) -> list[tuple[str, str, str]]:
    """Return what an operation is asked, without sending it."""
    cases = property_cases.coverage(operation(name))
    return [(each.method, each.formatted_path, repr(property_cases.body_of(each))) for each in cases]


def test_there_is_a_module_for_each_operation() -> None:
    assert {path.name for path in FOLDER.glob("test_*.py")} == {f"test_{name}.py" for name in NAMES}
    assert set(render()) == set(FOLDER.glob("test_*.py"))


def test_all_together_ask_3000_cases_or_more() -> None:
    assert sum(len(asked(name)) for name in NAMES) >= ENOUGH


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_is_asked_right_and_wrong(name: str) -> None:
    bodies = [property_cases.body_of(case) for case in property_cases.coverage(operation(name))]
    schema = promise(name).body
    if schema is None:
        assert len(bodies) >= 2
        return
    fitting = [schema.fits(body) for body in bodies if not isinstance(body, bytes)]
    assert True in fitting
    assert False in fitting


def test_the_cases_are_the_same_each_time() -> None:
    assert sorted(asked("generate")) == sorted(asked.__wrapped__("generate"))


def test_values_beyond_ranges_are_found_where_ranges_are_written_in_numbers() -> None:
    ranges = {str(place.told["x-range"]) for place in PLACES if "x-range" in place.told}
    found = {str(place.told["x-range"]) for place in PLACES if list(values_beyond(place))}
    in_numbers = {words for words in ranges if re.fullmatch(r"[-\d<>=., ]+( to [\d]+)?", words)}
    assert len(in_numbers) >= 6
    assert in_numbers <= found
    assert {"1 to --max-n (16)", "not empty"} <= found


def test_values_beyond_ranges_are_found_where_another_member_bounds_them() -> None:
    found = {
        (place.schema, place.member, value, *beside.items())
        for place in PLACES
        for value, beside in values_beyond_others(place)
    }
    assert found == {
        ("CompletionRequest", "best_of", 1, ("n", 2)),
        ("GenerateParameters", "min_new_tokens", 3, ("max_new_tokens", 2)),
        ("CompletionRequest", "min_tokens", 3, ("max_tokens", 2)),
        ("ChatRequest", "min_tokens", 3, ("max_tokens", 2)),
        ("ResponsesRequest", "min_tokens", 3, ("max_output_tokens", 2)),
        ("MessagesRequest", "min_tokens", 3, ("max_tokens", 2)),
    }
