"""TGI's own Python client, with the assertions of its own tests."""

from __future__ import annotations

import pytest

from tests.clients.interpreters import Ask, Results, ask_any

CLIENT = "text_generation"


@pytest.fixture(params=["fake_server", "embedded_server"])
def results(request: pytest.FixtureRequest, ask: Ask) -> Results:
    return ask_any(CLIENT, request, ask, *ON_ANY_SERVER)


ON_ANY_SERVER = (
    *("generate", "generate_best_of", "generate_not_found", "generate_validation_error"),
    *("generate_stream", "generate_stream_not_found", "generate_stream_validation_error"),
    *("async_generate", "async_generate_stream", "async_validation_error"),
    *("all_parameters", "streamed_and_whole", "load", "chat"),
)


@pytest.mark.parametrize("case", ["generate", "async_generate"])
def test_one_token_comes_with_its_details(results: Results, case: str) -> None:
    details = results[case]["details"]
    assert results[case]["generated_text"] == details["tokens"][0]["text"]
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == ("length", 1, None)
    assert details["prefill"] == []
    assert len(details["tokens"]) == 1
    assert not details["tokens"][0]["special"]


def test_best_of_tells_both_seeds(results: Results) -> None:
    details = results["generate_best_of"]["details"]
    assert details["seed"] is not None
    (loser,) = details["best_of_sequences"]
    assert loser["seed"] is not None
    assert loser["seed"] != details["seed"]


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("generate_not_found", "NotFoundError"),
        ("generate_stream_not_found", "NotFoundError"),
        ("generate_validation_error", "ValidationError"),
        ("generate_stream_validation_error", "ValidationError"),
        ("async_validation_error", "ValidationError"),
    ],
)
def test_errors_have_the_clients_types(results: Results, case: str, error: str) -> None:
    assert results[case]["raised"] == error, results[case]


@pytest.mark.parametrize("case", ["generate_stream", "async_generate_stream"])
def test_a_stream_of_one_token_has_all_in_one_event(results: Results, case: str) -> None:
    (event,) = results[case]
    assert event["generated_text"] == event["token"]["text"]
    assert event["details"]["finish_reason"] == "length"
    assert event["details"]["generated_tokens"] == 1
    assert event["details"]["seed"] is None


def test_all_parameters_at_once_are_accepted(results: Results) -> None:
    answer = results["all_parameters"]
    assert answer["generated_text"].startswith("Hello, how are")
    assert answer["details"]["seed"] == 0
    assert answer["details"]["generated_tokens"] <= 10


def test_the_stream_and_the_answer_are_the_same(results: Results) -> None:
    events, whole = results["streamed_and_whole"]["events"], results["streamed_and_whole"]["whole"]
    assert [event["token"] for event in events] == whole["details"]["tokens"]
    assert [event["top_tokens"] for event in events] == whole["details"]["top_tokens"]
    assert all(len(event["top_tokens"]) >= 3 for event in events)
    assert events[-1]["generated_text"] == whole["generated_text"]


def test_four_equal_requests_at_a_time_get_equal_texts(results: Results) -> None:
    assert len(results["load"]) == 4
    assert len(set(results["load"])) == 1


def test_a_chat_is_answered(results: Results) -> None:
    (choice,) = results["chat"]["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["logprobs"]["content"]) == results["chat"]["usage"]["completion_tokens"] <= 8


def test_overload_and_failure_have_the_clients_types(ask: Ask, narrow_server: str) -> None:
    results = ask(CLIENT, narrow_server, "overloaded", "generation_error")
    assert results["overloaded"]["refused"] == "OverloadedError", results
    assert results["overloaded"]["after"] != ""
    assert results["generation_error"]["raised"] == "GenerationError"
