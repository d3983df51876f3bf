"""Exclusions of the contract that a setting lifts."""

from __future__ import annotations

import openapi
from handlers.routes.exclusions import lift_exclusions
from handlers.settings.table import Settings

FORMS = ("response_format", "guided_json", "guided_regex", "guided_choice", "structured_outputs")


def test_by_default_the_contract_stays_as_it_is() -> None:
    document = openapi.load()
    lift_exclusions(document, Settings())
    assert document == openapi.load()


def test_for_everybody_the_exclusion_alone_goes() -> None:
    document, expected = openapi.load(), openapi.load()
    lift_exclusions(document, Settings(response_format_with_tools="all"))
    for name in FORMS:
        form = expected["components"]["schemas"]["ChatRequest"]["properties"][name]
        assert form.pop("x-excludes").keys() == {"tools"}
        assert form.pop("x-excludes-unless") == "response_format_with_tools"
    assert document == expected


def test_for_nobody_it_holds_without_exception() -> None:
    document, expected = openapi.load(), openapi.load()
    lift_exclusions(document, Settings(response_format_with_tools="none"))
    for name in FORMS:
        del expected["components"]["schemas"]["ChatRequest"]["properties"][name]["x-excludes-unless"]
    assert document == expected
