"""OpenAI's Python client, with those of TGI's integration tests that any model passes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.clients.interpreters import Ask, Results, ask_any

CLIENT = "openai"
ON_ANY_SERVER = (
    *("chat", "chat_stream", "chat_stream_with_usage", "chat_logprobs", "continue_final_message"),
    *("tools", "tool_results", "tool_custom", "tool_not_found", "parsed", "parsed_beside_tools"),
    *("too_long", "choices", "biased"),
    *("completion", "completion_prompts", "models", "unknown_model"),
    *("validation_error", "validation_error_streamed"),
)


@pytest.fixture(params=["fake_server", "embedded_server"])
def results(request: pytest.FixtureRequest, ask: Ask) -> Results:
    return ask_any(CLIENT, request, ask, *ON_ANY_SERVER)


def content_of(chunks: list[Any]) -> str:
    return "".join(choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"])


def test_a_chat_is_answered_with_the_name_that_was_asked_for(results: Results) -> None:
    answer = results["chat"]
    assert answer["model"] == "gpt-4o"
    assert answer["choices"][0]["message"]["content"] != ""
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")


def test_a_chat_stream_says_what_the_answer_says(results: Results) -> None:
    assert content_of(results["chat_stream"]) == results["chat"]["choices"][0]["message"]["content"]


def test_usage_is_streamed_once_at_the_end_if_asked_for(results: Results) -> None:
    *chunks, last = results["chat_stream_with_usage"]
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == results["chat"]["usage"]["total_tokens"]
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in results["chat_stream"])


def test_seven_alternatives_of_each_token_are_told(results: Results) -> None:
    entries = results["chat_logprobs"]["choices"][0]["logprobs"]["content"]
    assert len(entries) == results["chat_logprobs"]["usage"]["completion_tokens"]
    for entry in entries:
        assert len(entry["top_logprobs"]) == 7
        assert entry["bytes"] == list(entry["token"].encode())
        best = [top["logprob"] for top in entry["top_logprobs"]]
        assert best == sorted(best, reverse=True)
        assert entry["logprob"] <= best[0]


def test_the_last_message_of_the_assistant_is_continued(results: Results) -> None:
    answer = results["continue_final_message"]["choices"][0]["message"]["content"]
    assert answer != ""
    assert "I am a" not in answer


def test_a_tools_call_is_the_same_whole_and_streamed(results: Results) -> None:
    told = results["tools"]
    whole, final = told["whole"]["choices"][0], told["final"]
    (call,) = whole["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert arguments.keys() == {"city", "unit"}
    assert (call["id"][:5], call["function"]["name"]) == ("call_", "get_weather")
    assert whole["finish_reason"] == "tool_calls"
    assert told["finished"] == ["get_weather"]
    (streamed,) = final["message"]["tool_calls"]
    assert (streamed["id"][:5], streamed["type"]) == ("call_", call["type"])
    assert streamed["id"] != call["id"]  # that of another conversation
    for member in ("name", "arguments"):
        assert streamed["function"][member] == call["function"][member]
    assert (final["finish_reason"], final["message"]["content"]) == ("tool_calls", None)


def test_every_chunk_of_a_call_has_a_piece_of_it(results: Results) -> None:
    choices = [choice for chunk in results["tools"]["chunks"] for choice in chunk["choices"]]
    pieces = [piece for choice in choices for piece in choice["delta"]["tool_calls"]]
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    (call,) = results["tools"]["whole"]["choices"][0]["message"]["tool_calls"]
    assert arguments == call["function"]["arguments"]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)


def test_log_probabilities_of_a_call_are_those_of_all_its_tokens(results: Results) -> None:
    whole = results["tools"]["whole"]
    assert len(whole["choices"][0]["logprobs"]["content"]) == whole["usage"]["completion_tokens"]


def test_a_calls_result_can_be_given_back(results: Results) -> None:
    first, second = results["tool_results"]
    assert (first[:5], second[:5]) == ("call_", "call_")
    assert first != second


def test_a_custom_tools_input_is_a_text_of_its_form_whole_and_streamed(results: Results) -> None:
    told = results["tool_custom"]
    whole, second = (told[name]["choices"][0]["message"]["tool_calls"][0] for name in ("whole", "second"))
    for called in (whole, second):
        assert (called["type"], called["custom"]["name"]) == ("custom", "note")
        assert re.fullmatch("(Paris|Rome), [CF]", called["custom"]["input"])
    assert whole["id"] != second["id"]
    parts = [
        part
        for chunk in told["chunks"]
        for choice in chunk["choices"]
        for part in choice["delta"]["tool_calls"] or []
    ]
    assert [part["id"] is None for part in parts] == [False, *[True] * (len(parts) - 1)]
    assert "".join(part["custom"]["input"] for part in parts) == whole["custom"]["input"]
    assert told["chunks"][-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_tool_that_is_not_there_is_refused(results: Results) -> None:
    refused = results["tool_not_found"]
    assert (refused["raised"], refused["message"]) == (
        "UnprocessableEntityError",
        "Error code: 422 - Tool error: Tool with name fly not found",
    )


def test_an_answer_has_the_form_of_a_class(results: Results) -> None:
    assert results["parsed"]["whole"].keys() == {"city", "unit", "sunny"}
    assert results["parsed"]["whole"] == results["parsed"]["streamed"]


def test_beside_tools_an_answer_is_calls_or_has_the_form_of_a_class(results: Results) -> None:
    told = results["parsed_beside_tools"]
    assert told["hidden"]["parsed"].keys() == {"city", "unit", "sunny"}
    assert told["called"]["parsed"] is None
    (call,) = told["called"]["tool_calls"]
    assert call["function"]["parsed_arguments"].keys() == {"city", "unit"}


def test_a_prompt_that_is_too_long_is_known_as_such(results: Results) -> None:
    refused = results["too_long"]
    assert (refused["raised"], refused["body"]["code"]) == (
        "BadRequestError",
        "context_length_exceeded",
    )
    assert "exceeds the context window" in refused["message"]


def test_three_answers_are_told_apart_whole_and_streamed(results: Results) -> None:
    whole = results["choices"]["whole"]
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    streamed = ["", "", ""]
    *chunks, last = results["choices"]["chunks"]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["delta"]["content"]
    assert streamed == texts
    assert len(set(texts)) > 1
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert results["choices"]["gathered"] == texts


def test_answers_whose_calls_begin_in_another_order_are_told_apart(ask: Ask, stepping_server: str) -> None:
    whole, gathered = ask(CLIENT, stepping_server, "choices_that_call")["choices_that_call"]
    assert [index for index, _ in whole] == list(range(8))
    assert gathered == whole


def test_a_biased_token_is_chosen(results: Results) -> None:
    assert len(results["biased"]) == 4
    assert len(set(results["biased"])) == 1


def test_one_prompt_gives_one_choice(results: Results) -> None:
    (choice,) = results["completion"]["choices"]
    assert choice["index"] == 0
    assert choice["text"] != ""


def test_four_prompts_give_four_choices_whole_and_streamed(results: Results) -> None:
    whole = results["completion_prompts"]["whole"]["choices"]
    assert [choice["index"] for choice in whole] == [0, 1, 2, 3]
    streamed = ["", "", "", ""]
    for chunk in results["completion_prompts"]["chunks"]:
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == [choice["text"] for choice in whole]


def test_models_are_listed_and_found(results: Results) -> None:
    assert results["models"]["listed"] == [results["models"]["found"]]
    assert results["unknown_model"]["raised"] == "NotFoundError"


@pytest.mark.parametrize("case", ["validation_error", "validation_error_streamed"])
def test_bad_input_has_the_clients_type(results: Results, case: str) -> None:
    assert (results[case]["raised"], results[case]["status_code"]) == ("UnprocessableEntityError", 422)
    said = "Input validation error: `top_p` must be > 0.0 and < 1.0"
    assert results[case]["message"] == f"Error code: 422 - {said}"
    assert results[case]["body"] == {
        "message": said,
        "type": "invalid_request_error",
        "param": "top_p",
        "code": "validation",
    }


def test_images_are_seen_whole_streamed_and_in_earlier_turns(ask: Ask, seeing_server: str) -> None:
    told = ask(CLIENT, seeing_server, "images", "bad_image")
    red, blue = (answer["choices"][0]["message"]["content"] for answer in told["images"]["answers"])
    assert red != blue
    assert content_of(told["images"]["chunks"]) == red
    assert (
        told["images"]["later"]["usage"]["prompt_tokens"]
        > told["images"]["answers"][0]["usage"]["prompt_tokens"]
    )
    assert told["bad_image"]["raised"] == "UnprocessableEntityError"
    assert "`messages[0].content[0].image_url.url`: Could not fetch image: " in told["bad_image"]["message"]


def test_keys_overload_and_failure_have_the_clients_types(ask: Ask, narrow_server: str) -> None:
    results = ask(CLIENT, narrow_server, "wrong_key", "overloaded", "generation_error_in_a_stream")
    assert (results["wrong_key"]["raised"], results["wrong_key"]["status_code"]) == (
        "AuthenticationError",
        401,
    )
    assert results["overloaded"] == {"refused": "RateLimitError", "after": "length"}
    failed = results["generation_error_in_a_stream"]
    assert (failed["raised"], failed["body"]["type"]) == ("APIError", "server_error")
    assert (failed["body"]["code"], failed["body"]["param"]) == ("generation", None)
    assert "injected failure" in failed["message"]
