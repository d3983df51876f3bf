"""Which validator does the work, and what an operation's check gives back."""

from __future__ import annotations

import importlib.util

import pytest

from handlers.http.errors import Refused
from handlers.http.validation import COMPILED, REFERENCE, available, compile_schema, request_check

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}, "required": ["n"]}


def test_the_validator_asked_for_is_used() -> None:
    assert (available(COMPILED), available(REFERENCE)) == (COMPILED, REFERENCE)


def test_without_the_fast_validator_the_reference_does_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert available(COMPILED) == REFERENCE
    assert "jsonschema_rs is not installed" in caplog.text


@pytest.mark.parametrize("validator", [COMPILED, REFERENCE])
@pytest.mark.parametrize(
    ("body", "fits"),
    [({"n": 1}, True), ({"n": 1.0}, False), ({"n": True}, False), ({"n": -1}, False), ({}, False)],
)
def test_a_verdict(validator: str, body: object, fits: bool) -> None:
    assert compile_schema(SCHEMA, validator)(body) is fits


@pytest.mark.parametrize("validator", [COMPILED, REFERENCE])
def test_a_check_names_members_without_effect_or_refuses(validator: str) -> None:
    check = request_check(SCHEMA, {}, validator)
    assert check({"n": 1, "b": 1, "a": 1}) == ("a", "b")
    with pytest.raises(Refused, match="n: expected at least 0, got -1"):
        check({"n": -1})


@pytest.mark.parametrize("validator", [COMPILED, REFERENCE])
def test_a_value_nested_deeply_is_refused_like_any_other(validator: str) -> None:
    deep: list[object] = []
    for _ in range(1000):
        deep = [deep]
    with pytest.raises(Refused, match="n: expected an integer, got an array of 1"):
        request_check(SCHEMA, {}, validator)({"n": deep})
