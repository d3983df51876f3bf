"""Exclusions of the contract that a setting lifts."""

from __future__ import annotations

import openapi
from handlers.exclusions import lift_exclusions
from handlers.settings import Settings


def test_without_the_setting_the_contract_stays_as_it_is() -> None:
    document = openapi.load()
    lift_exclusions(document, Settings())
    assert document == openapi.load()


def test_the_setting_that_the_contract_names_lifts_the_exclusion_alone() -> None:
    document, expected = openapi.load(), openapi.load()
    lift_exclusions(document, Settings(response_format_with_tools=True))
    form = expected["components"]["schemas"]["ChatRequest"]["properties"]["response_format"]
    assert form.pop("x-excludes").keys() == {"tools"}
    assert form.pop("x-excludes-unless") == "response_format_with_tools"
    assert document == expected
