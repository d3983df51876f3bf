"""A stop sequence that the last token that is allowed completes, as each dialect tells of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.serving import events_of, served

pytestmark = pytest.mark.anyio

PARIS = " Paris"  # two tokens: " P" and "aris"
FAKE = {"replies": {"city": PARIS, "greeting": " there!"}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("stop", "later"),
    [("ari", "stop_sequence"), ("aris", "stop_sequence"), ("is", "stop_sequence"), ("isn", "eos_token")],
)
async def test_tgis_routes_do_not_look_for_it_and_the_text_is_whole(stop: str, later: str) -> None:
    parameters = {"do_sample": False, "max_new_tokens": 2, "details": True, "stop": [stop]}
    body: dict[str, Any] = {"inputs": "city", "parameters": parameters}
    async with served(fake=FAKE) as server:
        whole = (await server.post("/generate", body)).json()
        events = events_of(await server.post("/generate_stream", body))
        predicted = (await server.post("/vertex", {"instances": [body]})).json()
        parameters["max_new_tokens"] = 4
        with_room = (await server.post("/generate", body)).json()
    assert (whole["generated_text"], whole["details"]["finish_reason"]) == (PARIS, "length")
    assert "".join(event["token"]["text"] for event in events) == events[-1]["generated_text"] == PARIS
    assert events[-1]["details"]["finish_reason"] == "length"
    assert predicted == {"predictions": [PARIS]}
    assert with_room["details"]["finish_reason"] == later


@pytest.mark.parametrize(("stop", "text"), [("ari", " Pari"), (" P", " P"), ("Par", " Par"), ("aris", PARIS)])
async def test_on_tgis_routes_a_stop_within_a_token_cuts_that_token_too(stop: str, text: str) -> None:
    parameters = {"do_sample": False, "max_new_tokens": 9, "details": True, "stop": [stop]}
    body: dict[str, Any] = {"inputs": "city", "parameters": parameters}
    async with served(fake=FAKE) as server:
        whole = (await server.post("/generate", body)).json()
        events = events_of(await server.post("/generate_stream", body))
    assert (whole["generated_text"], whole["details"]["finish_reason"]) == (text, "stop_sequence")
    assert [token["text"] for token in whole["details"]["tokens"]] == [
        each["token"]["text"] for each in events
    ]
    assert "".join(event["token"]["text"] for event in events) == events[-1]["generated_text"] == text


@pytest.mark.parametrize(
    ("said", "stop", "text", "reason"),
    [
        ("greeting", "!", " there", "stop"),
        ("city", "ari", " P", "stop"),
        ("city", "is", " Par", "stop"),
        ("city", "isn", PARIS, "length"),
    ],
)
async def test_openais_routes_cut_it_off_and_say_stop_streamed_or_not(
    said: str, stop: str, text: str, reason: str
) -> None:
    asked = {"max_tokens": 2, "temperature": 0, "stop": [stop]}
    chat = {**asked, "messages": [{"role": "user", "content": said}], "logprobs": True}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {**chat, "tools": TOOLS}),
        ("/v1/completions", {**asked, "prompt": said, "logprobs": 1}),
    ]
    async with served(fake=FAKE) as server:
        for path, body in bodies:
            whole = (await server.post(path, body)).json()
            (choice,) = whole["choices"]
            *chunks, _ = events_of(await server.post(path, {**body, "stream": True}))
            pieces = [chunk["choices"][0] for chunk in chunks]
            assert (said_in(choice), choice["finish_reason"]) == (text, reason), path
            assert ("".join(map(said_in, pieces)), pieces[-1]["finish_reason"]) == (text, reason), path
            assert whole["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(("stop", "status"), [("ari", "completed"), ("isn", "incomplete")])
async def test_a_response_that_ends_at_it_is_complete(stop: str, status: str) -> None:
    body = {"input": "city", "max_output_tokens": 2, "temperature": 0, "stop": [stop]}
    async with served(fake=FAKE) as server:
        whole = (await server.post("/v1/responses", body)).json()
        *_, last = events_of(await server.post("/v1/responses", {**body, "stream": True}))
    for answer in (whole, last["response"]):
        (message,) = answer["output"]
        assert (answer["status"], message["status"]) == (status, status)
        assert message["content"][0]["text"] == (PARIS if status == "incomplete" else " P")


def said_in(choice: dict[str, Any]) -> str:
    """Return the text of a choice, whole or of a chunk, in either dialect."""
    text = choice.get("message", choice.get("delta", {})).get("content", choice.get("text"))
    assert isinstance(text, str)
    return text
