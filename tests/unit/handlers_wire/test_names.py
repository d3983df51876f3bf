from __future__ import annotations

from typing import Any

import pytest

from handlers.wire.names import MESSAGES, OPENAI, RESPONSES, Names, names_of
from inference.errors import InvalidInput, Member
from openapi import load

NEW = Member("max_new_tokens", "`max_new_tokens` (`max_tokens`)")
WORDS = (Member("inputs"), " tokens + ", NEW, ' are too many. Given: "`inputs`"')


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (OPENAI, '`inputs` tokens + `max_new_tokens` (`max_tokens`) are too many. Given: "`inputs`"'),
        (RESPONSES, '`input` tokens + `max_output_tokens` are too many. Given: "`inputs`"'),
        (MESSAGES, '`messages` tokens + `max_tokens` are too many. Given: "`inputs`"'),
    ],
)
def test_members_have_the_dialects_names_and_what_is_quoted_stays(names: Names, message: str) -> None:
    assert names.message(InvalidInput(*WORDS)) == message


def test_where_a_name_is_not_enough_the_dialect_has_other_words() -> None:
    error = InvalidInput(Member("adapter_id"), " can't be had")
    assert OPENAI.message(error) == "`adapter_id` can't be had"
    assert RESPONSES.message(error) == "an adapter as `model` can't be had"
    assert RESPONSES.param(error, {"model": "a"}) == "model"


def test_one_of_several_that_may_be_wrong_is_only_named() -> None:
    error = InvalidInput("send shorter ", Member("messages", only_named=True), " or `tools`")
    assert RESPONSES.message(error) == "send shorter `input` or `tools`"
    assert RESPONSES.param(error, {"input": "Hi"}) is None


def test_one_of_several_requests_of_a_body_is_told_with_its_place() -> None:
    error = InvalidInput(Member("max_new_tokens"), " is wrong")
    error.within = ("instances", 1)
    instances: list[Any] = [{"max_tokens": 1}, {"max_tokens": 0}]
    assert OPENAI.param(error, {"instances": instances}) == "instances[1].max_tokens"
    assert OPENAI.param(error, {"instances": [*instances[:1], {"messages": []}]}) is None


@pytest.mark.parametrize(
    ("names", "member", "body", "param"),
    [
        (OPENAI, "max_new_tokens", {"max_tokens": 1}, "max_tokens"),
        (OPENAI, "max_new_tokens", {"max_tokens": 1, "max_completion_tokens": 1}, "max_completion_tokens"),
        (OPENAI, "max_new_tokens", {"parameters": {"max_new_tokens": 1}}, "parameters.max_new_tokens"),
        (OPENAI, "max_new_tokens", {"parameters": "max_new_tokens"}, None),
        (OPENAI, "inputs", {"inputs": "Hi"}, "inputs"),
        (OPENAI, "inputs", {"messages": []}, "messages"),
        (OPENAI, "best_of", {"best_of": 2, "n": 1}, "best_of"),
        (OPENAI, "best_of", {"n": 2}, "n"),
        (OPENAI, "parameters.grammar.value", {"parameters": {"grammar": {}}}, "parameters.grammar.value"),
        (OPENAI, "stop[3]", {"stop": []}, "stop[3]"),
        (OPENAI, "stop[3]", {}, None),
        (OPENAI, "stop", [], None),
        (RESPONSES, "max_new_tokens", {"max_output_tokens": 1, "max_new_tokens": 1}, "max_output_tokens"),
        (MESSAGES, "stop", {"stop_sequences": [], "stop": "ignored"}, "stop_sequences"),
    ],
)
def test_the_name_that_the_body_has_is_told(names: Names, member: str, body: Any, param: str | None) -> None:
    assert names.param(InvalidInput(Member(member)), body) == param


def test_an_error_without_a_member_is_about_none() -> None:
    assert OPENAI.param(InvalidInput("`stop` is a word"), {"stop": "a"}) is None


@pytest.mark.parametrize(
    ("names", "schemas"),
    [
        (OPENAI, ["ChatRequest", "CompletionRequest"]),
        (RESPONSES, ["ResponsesRequest"]),
        (MESSAGES, ["MessagesRequest"]),
    ],
)
def test_the_names_of_members_are_the_contracts(names: Names, schemas: list[str]) -> None:
    documented = load()["components"]["schemas"]
    members = {member for schema in schemas for member in documented[schema]["properties"]}
    assert {path for paths in names.paths.values() for path in paths} <= members


def test_operations_have_the_names_of_their_bodies() -> None:
    assert names_of("count_message_tokens") is MESSAGES
    assert names_of("sagemaker_compatibility") is OPENAI
