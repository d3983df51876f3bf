"""What a server tells of its requests: lines of the log, metrics, and nothing that was asked."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from handlers.logs import configure
from tests.contract.serving import Served, served
from tests.support import logging_kept

pytestmark = pytest.mark.anyio

SECRET = "the-lighthouse-keeper"
GENERATE = {"inputs": SECRET, "parameters": {"max_new_tokens": 5, "do_sample": True, "seed": 7}}
CHAT = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 5, "stop": [SECRET]}
TIMES = (
    "total_time",
    "validation_time",
    "queue_time",
    "inference_time",
    "time_per_token",
    "time_to_first_token",
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Log everything as JSON lines, and give logging back as it was."""
    stream = io.StringIO()
    with logging_kept():
        configure("trace", json_output=True, stream=stream)
        yield stream


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    """Return the lines of requests."""
    every = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in every if line["target"] == "parley.access"]


async def ask_everything(server: Served) -> None:
    """Ask for texts in every way that can end, well or badly."""
    await server.post("/generate", GENERATE)
    await server.post("/generate_stream", GENERATE)
    await server.post("/v1/chat/completions", CHAT | {"stream": True, "n": 2})
    await server.post("/v1/completions", {"prompt": SECRET, "max_tokens": 2})
    await server.post("/tokenize", {"inputs": SECRET})
    await server.post("/generate", {"inputs": SECRET, "parameters": {"max_new_tokens": -1}})
    await server.post("/v1/chat/completions", CHAT | {"logit_bias": SECRET})
    await server.http.post("/generate", content=f'{{"inputs": "{SECRET}'.encode())
    await server.http.get(f"/v1/models/{SECRET[::-1]}")


async def test_a_request_is_one_line_with_its_id_sizes_times_and_tokens(log: io.StringIO) -> None:
    async with served() as server:
        headers = {"x-request-id": "id-1", "authorization": "Bearer some-token"}
        answer = await server.http.post("/generate", json=GENERATE, headers=headers)
    (line,) = lines(log)
    assert {"timestamp", "level", "message", "target", "span"} <= line.keys()
    assert {"name": "generate", "request_id": "id-1"} == line["span"]
    assert ("POST /generate", 200, "id-1") == (line["message"], line["status"], line["request_id"])
    assert len(answer.request.content) == line["received_bytes"]
    assert len(answer.content) == line["sent_bytes"]
    assert (5, 7, "length") == tuple(line[name] for name in ("generated_tokens", "seed", "finish_reason"))
    assert all(0 <= line[name] <= line["seconds"] for name in TIMES)
    assert line["key"]
    assert "some-token" not in log.getvalue()


async def test_several_choices_are_told_together(log: io.StringIO) -> None:
    async with served() as server:
        answer = await server.post("/v1/chat/completions", CHAT | {"n": 2, "stop": None})
    (line,) = lines(log)
    assert answer.json()["usage"]["completion_tokens"] == line["generated_tokens"]
    assert 2 == len(line["finish_reason"].split(","))


async def test_a_failure_is_told_with_its_type(log: io.StringIO) -> None:
    async with served() as server:
        await server.post("/generate", {"inputs": ""})
        await server.http.get("/nowhere")
    told = [(line["status"], line["error_type"]) for line in lines(log)]
    assert [(422, "validation"), (404, "not_found")] == told


async def test_every_error_has_the_requests_id_and_is_told_with_it(log: io.StringIO) -> None:
    async with served(api_key="k", fake={"fail_prompts": ["fail"], "fails_after": 2}) as server:
        key = {"authorization": "Bearer k"}
        failing = {"inputs": "fail", "parameters": {"max_new_tokens": 9}}
        sent: list[tuple[int, str, str, dict[str, Any]]] = [
            (401, "POST", "/generate", {"json": GENERATE}),
            (404, "GET", "/nowhere", {}),
            (405, "DELETE", "/generate", {}),
            (413, "POST", "/generate", {"content": b" " * 2_000_001, "headers": key}),
            (415, "POST", "/generate", {"content": b"{}", "headers": {**key, "content-type": "text/plain"}}),
            (422, "POST", "/generate", {"json": {}, "headers": key}),
            (424, "POST", "/generate", {"json": failing, "headers": key}),
            (200, "POST", "/generate_stream", {"json": failing, "headers": key}),  # fails after it began
            (431, "GET", "/health", {"headers": {"x-long": "a" * 100_000}}),
        ]
        for at, (status, method, path, rest) in enumerate(sent):
            headers = {**rest.pop("headers", {}), "x-request-id": f"id-{at}"}
            if "content" in rest:
                headers.setdefault("content-type", "application/json")
            answer = await server.http.request(method, path, headers=headers, **rest)
            assert (status, f"id-{at}") == (answer.status_code, answer.headers["x-request-id"])
    told = {line["request_id"]: line for line in lines(log)}
    assert [f"id-{at}" for at in range(len(sent))] == list(told)
    assert all(fields["error_type"] for fields in told.values())
    assert "generation" == told["id-7"]["error_type"]


async def test_no_prompt_and_no_answer_is_logged_unless_asked_for(log: io.StringIO) -> None:
    async with served(fake={"replies": {SECRET: "an-answer"}}) as server:
        await ask_everything(server)
    assert 9 == len(lines(log))
    assert SECRET not in log.getvalue()
    assert "an-answer" not in log.getvalue()


async def test_prompts_and_answers_are_logged_if_asked_for(log: io.StringIO) -> None:
    async with served(log_prompts=True) as server:
        answer = await server.post("/generate", GENERATE)
    (line,) = lines(log)
    assert SECRET == line["prompt"]
    assert [answer.json()["generated_text"]] == line["generated_text"]


async def test_every_request_is_counted_by_its_status(log: io.StringIO) -> None:
    async with served() as server:
        await ask_everything(server)
        statuses = [line["status"] for line in lines(log)]
        for status in (200, 400, 404, 422):
            assert statuses.count(status) == server.metric(f'parley_http_requests{{status="{status}"}}')
        assert 9 == server.metric('parley_worker_requests{worker="0"}')
        assert 0 == server.metric('parley_worker_in_flight{worker="0"}')
        assert 9 == server.metric("parley_http_duration_count")
        assert 2 <= server.metric('parley_http_failures{error_type="validation"}')
        assert 1 == server.metric("parley_engine_up")


FORMED = {"tools": [], "response_format": {"type": "json_object"}}
REFUSED = [
    ("/v1/completions", {"prompt": "x", "suffix": "y"}),
    ("/v1/completions", {"prompt": "x" * 100_000, "suffix": "y"}),  # looked through on a thread
    ("/v1/completions", {"prompt": ["x"] * 100}),
    ("/v1/chat/completions", CHAT | FORMED),
    ("/v1/chat/completions", CHAT | FORMED | {"stream": True}),
    ("/v1/chat/completions", CHAT | {"functions": [{"name": "f"}]}),
    ("/v1/chat/completions", CHAT | {"max_tokens": 0}),
    ("/v1/responses", {"input": "x", "previous_response_id": "resp_1"}),
    ("/chat_tokenize", CHAT | {"tool_choice": {"allowed_tools": {"mode": "auto"}}}),
    ("/invocations", {"prompt": "x", "suffix": "y"}),
    ("/vertex", {"instances": [CHAT | FORMED]}),
    ("/predict", {"instances": [CHAT | FORMED]}),
]
NOT_UNDERSTOOD = [
    ("/v1/completions", {"prompt": 5}),
    ("/v1/chat/completions", CHAT | {"max_tokens": "many"}),
    ("/vertex", {"instances": [{"prompt": "x"}]}),
    ("/tokenize", {"inputs": 5}),
]


@pytest.mark.parametrize(("path", "body"), REFUSED)
async def test_a_refusal_counts_as_a_request_and_as_a_failure_whoever_refuses(
    path: str, body: dict[str, Any]
) -> None:
    async with served(aip_predict_route="/predict") as server:
        response = await server.post(path, body)
        counted = server.metric("tgi_request_count"), server.metric('tgi_request_failure{err="validation"}')
    assert (response.status_code, counted) == (422, (1, 1))


@pytest.mark.parametrize(("path", "body"), NOT_UNDERSTOOD)
async def test_a_body_of_a_wrong_shape_is_not_counted_as_in_tgi(path: str, body: dict[str, Any]) -> None:
    async with served() as server:
        response = await server.post(path, body)
        counted = server.metric("tgi_request_count"), server.metric('tgi_request_failure{err="validation"}')
    assert (response.status_code, counted) == (422, (0, 0))
