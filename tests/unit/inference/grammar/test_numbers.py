from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.grammar.fault import GrammarFault
from inference.grammar.numbers import is_exact, is_tightened, states
from tests.unit.inference.grammar.vocabularies import follows, schema

ODD = 2**53 + 1


def written(value: int) -> Fraction:
    """Return the number that is written for the float nearest to a value."""
    return Fraction(repr(float(value)))


@given(st.integers(min_value=-(2**80), max_value=2**80))
def test_an_integer_is_exact_if_it_survives_a_float(value: int) -> None:
    assert is_exact(value) == (Fraction(float(value)) == value == written(value))


@given(st.integers(min_value=-(2**80), max_value=2**80))
def test_a_bound_is_tightened_towards_what_is_valid(value: int) -> None:
    assert is_tightened("maximum", value) == (max(Fraction(float(value)), written(value)) <= value)
    assert is_tightened("minimum", value) == (min(Fraction(float(value)), written(value)) >= value)


@pytest.mark.parametrize(
    ("step", "expected"), [("7", 7), ("0.01", 1), ("0.25", 25), ("1000", 1000), ("12.5", 125), ("1/3", None)]
)
def test_states_are_the_number_without_its_point(step: str, expected: int | None) -> None:
    assert expected is None or states(Fraction(step)) == expected
    assert expected is not None or states(Fraction(step)) > 10**300  # ends, and is over any limit


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ({"const": ODD}, "/const"),
        ({"enum": [1, {"a": [ODD]}]}, "/enum/1/a/0"),
        ({"type": "integer", "minimum": ODD - 2**53 + 2**63}, "/minimum"),
        ({"type": "number", "maximum": -(10**400)}, "/maximum"),
        ({"type": "string", "minLength": 1_000_001}, "/minLength"),
        ({"type": "integer", "multipleOf": 999_983}, "/multipleOf"),
        ({"items": {"multipleOf": 19_999}, "prefixItems": [{"multipleOf": 3}]}, "/prefixItems/0/multipleOf"),
        ({"properties": {f"p{at}": {"multipleOf": 10_000} for at in range(3)}}, "/properties/p2/multipleOf"),
        ({"type": "number", "multipleOf": 1e-300}, None),
        ({"type": "number", "minimum": -1e300, "maximum": 1e300}, None),
    ],
)
def test_numbers_that_would_become_others_or_cost_too_much_are_refused(
    value: Any, pointer: str | None
) -> None:
    with pytest.raises(GrammarFault) as caught:
        schema(value)
    assert pointer is None or caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ({"type": "integer", "minimum": -2e20, "maximum": -1e20}, "/maximum"),
        (
            {"type": ["integer", "null"], "exclusiveMinimum": -1e308, "exclusiveMaximum": -1e19},
            "/exclusiveMaximum",
        ),
        ({"allOf": [{"type": "integer", "minimum": -1e21}, {"maximum": -1e20}]}, "/allOf/1/maximum"),
        ({"type": "integer", "minimum": -1e20, "maximum": 1 - 2**63}, "/maximum"),
        ({"type": "integer", "minimum": 1e20, "maximum": 2e20}, "/minimum"),
        ({"type": "integer", "exclusiveMinimum": 2**64}, "/exclusiveMinimum"),
    ],
)
def test_bounds_that_would_be_clamped_to_looser_ones_or_end_the_process_are_refused(
    value: Any, pointer: str
) -> None:
    with pytest.raises(GrammarFault, match="Give such numbers as strings") as caught:
        schema(value)
    assert caught.value.pointer == pointer


def test_usual_numbers_pass_and_mean_what_they_say() -> None:
    price = schema({"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.01})
    assert follows(price, "9.99")
    assert not follows(price, "9.999")
    assert not follows(price, "10.01")
    assert follows(schema({"const": 10**22}), str(10**22))
    assert follows(schema({"type": "integer", "maximum": 9_223_372_036_854_776_000}), "7")
    both = schema({"type": "integer", "allOf": [{"multipleOf": 6}, {"multipleOf": 10}]})
    assert [n for n in range(1, 91) if follows(both, str(n))] == [30, 60, 90]
