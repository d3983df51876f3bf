"""OpenAI's Python client on Responses."""

from __future__ import annotations

import json
import re

import pytest

from tests.clients.interpreters import Ask, Results, ask_any

CLIENT = "openai"
ON_ANY_SERVER = (
    *("response", "response_stream", "response_logprobs", "response_tools", "response_parsed"),
    *("response_conversation", "response_counted", "response_stored", "response_retrieved"),
    "response_custom",
)


@pytest.fixture(params=["fake_server", "embedded_server"])
def results(request: pytest.FixtureRequest, ask: Ask) -> Results:
    return ask_any(CLIENT, request, ask, *ON_ANY_SERVER)


def test_an_answer_is_openais_to_the_letter(results: Results) -> None:
    answer = results["response"]
    assert answer["text_of_it"] != ""
    assert (answer["model"], answer["object"], answer["status"]) == ("gpt-4o", "response", "incomplete")
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (answer["instructions"], answer["metadata"]) == ("Be short.", {"a": "b"})
    assert answer["usage"]["output_tokens"] == 8


def test_an_input_is_counted_as_its_answer_says(results: Results) -> None:
    told = results["response_counted"]
    assert told["counted"] == {"object": "response.input_tokens", "input_tokens": told["usage"]}


def test_a_streams_events_put_together_are_the_answer(results: Results) -> None:
    told = results["response_stream"]
    assert told["final"] == told["whole"] != ""
    assert told["told"][:2] == ["response.created", "response.in_progress"]
    assert told["told"][-1] == "response.completed"
    raw = told["raw"]
    assert [event["sequence_number"] for event in raw] == list(range(len(raw)))
    assert raw[-1]["type"] == "response.incomplete"
    pieces = [event["delta"] for event in raw if event["type"] == "response.output_text.delta"]
    assert "".join(pieces) == raw[-1]["response"]["output"][0]["content"][0]["text"]


def test_log_probabilities_are_told_with_the_text(results: Results) -> None:
    answer = results["response_logprobs"]
    entries = answer["output"][0]["content"][0]["logprobs"]
    assert len(entries) == answer["usage"]["output_tokens"]
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        assert entry["bytes"] == list(entry["token"].encode())


def test_a_call_is_the_same_whole_and_streamed_and_its_result_can_be_given_back(results: Results) -> None:
    told = results["response_tools"]
    whole, final, second = told["whole"], told["final"], told["second"]
    assert json.loads(whole["arguments"]).keys() == {"city", "unit"}
    assert (whole["type"], whole["name"], whole["status"]) == ("function_call", "get_weather", "completed")
    assert told["deltas"] == final["arguments"] == whole["arguments"]
    assert final["name"] == whole["name"]
    assert len({call["call_id"] for call in (whole, final, second)}) == 3  # of as many answers


def test_a_custom_tools_input_is_a_text_of_its_form_whole_and_streamed(results: Results) -> None:
    told = results["response_custom"]
    whole, final, grouped = told["whole"], told["final"], told["grouped"]
    for called in (whole, final, grouped):
        assert (called["type"], called["name"]) == ("custom_tool_call", "note")
        assert re.fullmatch("(Paris|Rome), [CF]", called["input"])
    assert told["deltas"] == final["input"] == whole["input"]
    assert (whole["namespace"], grouped["namespace"]) == (None, "crm")
    assert told["ignored"] == "tools[].web_search"


def test_a_text_has_the_form_of_a_class(results: Results) -> None:
    assert results["response_parsed"]["whole"].keys() == {"city", "unit", "sunny"}
    assert results["response_parsed"]["whole"] == results["response_parsed"]["streamed"]


def test_an_answers_items_can_be_given_back_and_nothing_of_them_is_ignored(results: Results) -> None:
    assert results["response_conversation"]["ignored"] is None
    assert results["response_conversation"]["text"] != ""


def test_what_would_have_to_be_stored_is_refused(results: Results) -> None:
    refused = results["response_stored"]
    assert (refused["raised"], refused["status_code"]) == ("UnprocessableEntityError", 422)
    assert "`previous_response_id` is not supported: answers are not stored" in refused["message"]
    assert results["response_retrieved"]["raised"] == "NotFoundError"


def test_a_failure_after_the_first_token_is_told_by_the_last_event(ask: Ask, narrow_server: str) -> None:
    *told, last = ask(CLIENT, narrow_server, "response_failed")["response_failed"]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert "injected failure" in last["response"]["error"]["message"]
    assert last["sequence_number"] == len(told)
    text = "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")
    assert last["response"]["output"][0]["content"][0]["text"] == text != ""
