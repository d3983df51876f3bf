"""The tokens of an input of Responses, counted without an answer: those that an answer's usage tells."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.contract.seeing import answered, data_url
from tests.contract.serving import served
from tests.image_server import RED, ImageServer
from tests.support import error_of, message_of

PATH, RESPONSES = "/v1/responses/input_tokens", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
TOOL = {"type": "function", "name": "get_weather", "description": "The weather", "parameters": SCHEMA}
CALL = {"type": "function_call", "call_id": "1", "name": "get_weather", "arguments": '{"location": "Paris"}'}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "18 degrees"}
QUESTION = {"role": "user", "content": "What is the weather?"}
GENERATING = {"max_output_tokens": 2, "temperature": 0}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "asked",
    [
        {"input": "Hi"},
        {"input": "Grüße, 世界 😀", "instructions": "Be short."},
        {"input": [QUESTION, CALL, RESULT], "tools": [TOOL]},
        {"input": [QUESTION], "tools": [{**TOOL, "strict": True}], "tool_choice": "required"},
        {"input": [QUESTION], "tools": [TOOL], "tool_choice": "none"},
        {"input": [QUESTION], "tools": [TOOL], "tool_prompt": "Use them, please.\n"},
        {"input": [QUESTION, {"role": "assistant", "content": "It"}], "continue_final_message": True},
        {"input": [QUESTION], "reasoning": {"effort": "low"}},
        {"input": [QUESTION], "chat_template_kwargs": {"enable_thinking": False}},
    ],
    ids=str,
)
async def test_the_count_is_that_of_an_answers_usage(asked: dict[str, Any]) -> None:
    async with served() as server:
        counted = await server.post(PATH, asked)
        whole = (await server.post(RESPONSES, {**asked, **GENERATING})).json()
    assert counted.status_code == 200, counted.text
    assert counted.json() == {
        "object": "response.input_tokens",
        "input_tokens": whole["usage"]["input_tokens"],
    }
    assert counted.json()["input_tokens"] > 0


@pytest.mark.anyio
async def test_an_input_longer_than_the_model_takes_is_counted() -> None:
    asked = {"input": "word " * 20_000}
    async with served() as server:
        counted = await server.post(PATH, asked)
        refused = await server.post(RESPONSES, asked)
        most = (await server.http.get("/info")).json()["max_input_tokens"]
    assert counted.json()["input_tokens"] > most
    assert refused.status_code == 400


@pytest.mark.anyio
async def test_what_steers_an_answer_is_named_and_nothing_is_generated() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    async with served() as server:
        counted = await server.post(PATH, {"input": [reasoning, QUESTION], "model": "m", "temperature": 0.5})
        plain = await server.post(PATH, {"input": [QUESTION]})
        generated = server.metric("tgi_request_generated_tokens_count")
    assert counted.json() == plain.json()
    assert set(counted.headers["x-ignored-parameters"].split(",")) == {
        "input[].reasoning",
        "model",
        "temperature",
    }
    assert "x-ignored-parameters" not in plain.headers
    assert generated == 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"input": "Hi", "previous_response_id": "resp_1"}, 422, "answers are not stored"),
        ({"input": "Hi", "conversation": "conv_1"}, 422, "conversations are not stored"),
        ({"input": "Hi", "tools": [{"type": "functoin"}]}, 422, "functoin"),
        ({"input": "Hi", "tools": [TOOL, TOOL]}, 422, "get_weather"),
        ({"input": [{**RESULT, "call_id": "9"}]}, 422, "`input[0]"),
        ({"messages": [QUESTION]}, 422, "`input`"),
    ],
    ids=str,
)
async def test_what_an_answer_would_be_refused_for_is_refused_in_openais_form(
    body: dict[str, Any], status: int, words: str
) -> None:
    async with served() as server:
        response = await server.post(PATH, body)
    error = error_of(response)
    assert response.status_code == status
    assert isinstance(error["error"], dict)
    assert words in message_of(error)


def test_an_images_tokens_are_counted(seeing: httpx.Client, images: ImageServer) -> None:
    for url in (data_url(RED), images.url("/red.png")):
        parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": url}]
        asked = {"input": [{"role": "user", "content": parts}]}
        whole = answered(seeing, RESPONSES, {**asked, **GENERATING})
        assert answered(seeing, PATH, asked)["input_tokens"] == whole["usage"]["input_tokens"]
    broken = {"type": "input_image", "image_url": images.url("/missing.png")}
    response = seeing.post(PATH, json={"input": [{"role": "user", "content": [broken]}]})
    assert response.status_code == 422
    assert "`input[0].content[0].image_url`" in message_of(error_of(response))
