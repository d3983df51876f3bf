"""SageMaker's route, as a client sees it: three routes in one, and what each says of a mistake."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.serving import events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

REPLIES = {"replies": {"weather": " It is sunny. Bye"}}
WEATHER = "the weather"
MESSAGES = [{"role": "user", "content": WEATHER}]
PATH = "/invocations"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/", {"inputs": WEATHER, "parameters": {"details": True}}),
        ("/v1/chat/completions", {"messages": MESSAGES, "temperature": 0, "n": 2}),
        ("/v1/completions", {"prompt": [WEATHER, "x"], "temperature": 0, "echo": True}),
    ],
)
async def test_each_shape_is_answered_as_by_its_route(route: str, body: dict[str, Any]) -> None:
    async with served(fake=REPLIES) as server:
        answers = [(await server.post(path, body)) for path in (PATH, route)]
        streams = [events_of(await server.post(path, {**body, "stream": True})) for path in (PATH, route)]
    here, there = (_without_times(answer.json()) for answer in answers)
    assert here == there
    assert {name for name in answers[0].headers if name.startswith("x-")} == {
        name for name in answers[1].headers if name.startswith("x-")
    }
    assert [_without_times(event) for event in streams[0]] == [_without_times(event) for event in streams[1]]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"inputs": 5}, "inputs: expected a string, got 5"),
        (
            {"inputs": "x", "parameters": {"temperature": "hot"}},
            'parameters.temperature: expected a number or null, got "hot"',
        ),
        ({"inputs": "x", "stream": "yes"}, 'stream: expected a boolean, got "yes"'),
        ({"messages": 5}, "messages: expected an array, got 5"),
        ({"messages": MESSAGES, "temperature": "hot"}, 'temperature: expected a number or null, got "hot"'),
        ({"messages": [{"role": 5}]}, "messages[0].role: expected a string, got 5"),
        ({"prompt": 5}, "prompt: expected a string or an array, got 5"),
        ({"prompt": ["a", 1]}, "prompt[1]: expected a string, got 1"),
        ({"prompt": "a", "n": "2"}, 'n: expected an integer or null, got "2"'),
        ({}, "body: missing field `inputs`, `messages` or `prompt`, got an empty object"),
        ({"input": "a"}, "body: missing field `inputs`, `messages` or `prompt`, got an object with `input`"),
        ([], "body: expected an object, got an array of 0"),
    ],
)
async def test_a_mistake_is_told_of_the_shape_that_is_meant(body: Any, reason: str) -> None:
    async with served() as server:
        response = await server.post(PATH, body)
    assert response.status_code == 422
    assert error_of(response) == {
        "error": f"Failed to deserialize the JSON body into the target type: {reason}",
        "error_type": "validation",
    }


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"inputs": "x", "parameters": {"top_k": 0}}, "`top_k` must be strictly positive"),
        ({"messages": MESSAGES, "top_p": 0}, "`top_p` must be > 0.0 and < 1.0"),
        ({"prompt": "x", "best_of": 17}, "`best_of` must be > 0 and <= 16. Given: 17"),
    ],
)
async def test_a_value_out_of_range_is_refused_as_by_its_route(body: Any, error: str) -> None:
    async with served() as server:
        response = await server.post(PATH, body)
    assert error_of(response) == {"error": f"Input validation error: {error}", "error_type": "validation"}


async def test_it_is_behind_the_key() -> None:
    async with served(api_key="secret") as server:
        response = await server.post(PATH, {"inputs": "x"})
    assert (response.status_code, response.content) == (401, b"")


def _without_times(body: Any) -> Any:
    return (
        {name: value for name, value in body.items() if name not in ("id", "created")}
        if isinstance(body, dict)
        else body
    )
