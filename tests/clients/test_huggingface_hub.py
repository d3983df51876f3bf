"""huggingface_hub's InferenceClient."""

from __future__ import annotations

import pytest

from tests.clients.interpreters import Ask, Results, ask_any

CLIENT = "huggingface_hub"
PROMPT = "Hello, how are"
ON_ANY_SERVER = (
    *("text", "details", "best_of", "streamed", "chat", "chat_stream_with_usage", "endpoint_info", "health"),
    *("validation_error", "validation_error_streamed"),
)


@pytest.fixture(params=["fake_server", "embedded_server"])
def results(request: pytest.FixtureRequest, ask: Ask) -> Results:
    return ask_any(CLIENT, request, ask, *ON_ANY_SERVER)


def test_a_text_is_generated(results: Results) -> None:
    assert results["text"] == results["details"]["generated_text"] != ""


def test_details_have_the_tokens_and_their_alternatives(results: Results) -> None:
    details = results["details"]["details"]
    assert details["generated_tokens"] == len(details["tokens"]) == len(details["top_tokens"])
    assert details["prefill"] == []
    assert all(len(top) >= 2 for top in details["top_tokens"])


def test_best_of_shows_the_other(results: Results) -> None:
    details = results["best_of"]["details"]
    (loser,) = details["best_of_sequences"]
    assert loser["seed"] != details["seed"]


def test_a_stream_says_what_the_answer_says(results: Results) -> None:
    events = results["streamed"]["events"]
    assert events[-1]["generated_text"] == results["text"]
    assert events[-1]["details"]["generated_tokens"] == len(events)
    visible = "".join(event["token"]["text"] for event in events if not event["token"]["special"])
    assert visible == "".join(results["streamed"]["plain"])
    assert PROMPT + visible == results["text"]  # a model without a pipeline tag, or one that continues texts


def test_a_chat_is_answered(results: Results) -> None:
    assert results["chat"]["choices"][0]["message"]["content"] != ""


def test_usage_is_streamed_once_at_the_end(results: Results) -> None:
    *chunks, last = results["chat_stream_with_usage"]
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == results["chat"]["usage"]["total_tokens"]


def test_the_endpoint_describes_itself(results: Results) -> None:
    assert results["health"] is True
    assert results["endpoint_info"]["max_total_tokens"] == 512
    assert results["endpoint_info"]["router"] == "text-generation-router"


@pytest.mark.parametrize("case", ["validation_error", "validation_error_streamed"])
def test_bad_input_has_the_clients_type(results: Results, case: str) -> None:
    assert results[case]["raised"] == "ValidationError", results[case]


def test_overload_and_failure_have_the_clients_types(ask: Ask, narrow_server: str) -> None:
    results = ask(CLIENT, narrow_server, "overloaded", "generation_error")
    assert results["overloaded"]["raised"] == "OverloadedError"
    assert results["generation_error"]["raised"] == "GenerationError"


def test_images_are_seen_in_chats_and_in_prompts(ask: Ask, seeing_server: str) -> None:
    told = ask(CLIENT, seeing_server, "images")["images"]
    red, blue = (answer["choices"][0]["message"]["content"] for answer in told["chats"])
    assert red != blue
    assert len(set(told["texts"])) == 2
