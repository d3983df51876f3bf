"""What a server tells of its requests: lines of the log, metrics, and nothing that was asked."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from handlers.serving.logs import configure
from inference.core import Life
from inference.fakes.vision import FAKE_VISION
from tests.contract.late import loading
from tests.contract.serving import Served, served
from tests.support import error_of, logging_kept, message_of

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


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate_stream", {"inputs": "fail", "parameters": {"max_new_tokens": 9}}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "fail"}], "stream": True}),
        ("/v1/responses", {"input": "fail", "stream": True}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "fail"}], "stream": True}),
    ],
)
async def test_a_stream_that_fails_after_it_began_counts_as_a_fault_once(
    path: str, body: dict[str, Any]
) -> None:
    async with served(fake={"fail_prompts": ["fail"], "fails_after": 2}) as server:
        answer = await server.post(path, body)
        counts = [
            server.metric(series)
            for series in (
                'parley_http_requests{status="200"}',
                'parley_http_failures{error_type="generation"}',
                'tgi_request_failure{err="generation"}',
                "parley_http_faults",
            )
        ]
    assert (200, [1, 1, 1, 1]) == (answer.status_code, counts)


async def test_what_a_rate_refuses_counts_as_a_request_and_as_a_failure_of_the_callers(
    log: io.StringIO,
) -> None:
    async with served(requests_per_minute=1) as server:
        headers = {"authorization": "Bearer some-token"}
        for path in ("/generate", "/generate", "/tokenize"):
            await server.http.post(path, json=GENERATE, headers=headers)
        assert 2 == server.metric("tgi_request_count")
        assert 1 == server.metric('tgi_request_failure{err="rate_limited"}')
        assert 2 == server.metric('parley_http_failures{error_type="rate_limited"}')
        assert 0 == server.metric("parley_http_faults")
    told = lines(log)
    assert [200, 429, 429] == [line["status"] for line in told]
    assert {told[0]["key"]} == {line["key"] for line in told}


async def test_a_request_that_comes_while_there_is_no_engine_is_none_of_its_callers_minute() -> None:
    async with served(requests_per_minute=1) as server:
        engine = server.service.engine
        engine._on_life(Life.DOWN, None)
        early = [await server.post("/generate", GENERATE) for _ in range(2)]
        engine._on_life(Life.UP, engine.model)
        later = [await server.post("/generate", GENERATE) for _ in range(2)]
    assert [message["error_type"] for message in map(error_of, early)] == ["not_ready"] * 2
    assert [answer.status_code for answer in later] == [200, 429]


async def test_a_request_for_which_there_is_no_room_is_none_of_its_callers_minute() -> None:
    async with served(requests_per_minute=1, max_concurrent_requests=1) as server:
        with server.service.engine.admit():
            full = [await server.post("/generate", GENERATE) for _ in range(2)]
        later = [await server.post("/generate", GENERATE) for _ in range(2)]
    assert [message["error_type"] for message in map(error_of, full)] == ["overloaded"] * 2
    assert [answer.status_code for answer in later] == [200, 429]
    assert error_of(later[1])["error_type"] == "rate_limited"


async def test_a_body_for_which_there_is_no_room_counts_as_overload(log: io.StringIO) -> None:
    seeing = {"vision": FAKE_VISION}
    async with served(fake=seeing, payload_limit=2_000, max_image_memory=5_000) as server:
        with server.service.image_memory.hold(3_000):
            answer = await server.post("/generate", {"inputs": "x" * 4_000})
        counted = server.metric("tgi_request_count"), server.metric('tgi_request_failure{err="overloaded"}')
    assert (429, (1, 1)) == (answer.status_code, counted)


async def test_bytes_are_those_of_the_body_that_were_read_and_sent(log: io.StringIO) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b'{"inp'
        await asyncio.sleep(60)

    async with served(body_timeout=1) as server:
        await server.http.head("/info")
        headers = {"content-type": "application/json"}
        await server.http.post("/generate", content=slow(), headers=headers)
        await server.http.post("/generate", content=b"{}", headers={"content-type": "text/plain"})
    told = [(line["status"], line["received_bytes"], line["sent_bytes"] > 0) for line in lines(log)]
    assert [(200, 0, False), (408, 5, True), (415, 0, True)] == told


@pytest.mark.parametrize(
    ("token", "rest", "status"),
    [
        ("k", {"content": b"{}", "headers": {"content-type": "text/plain"}}, 415),
        ("k", {"content": b" " * 2_000_001, "headers": {"content-type": "application/json"}}, 413),
        ("k", {"json": {}}, 422),
        ("wrong", {"json": GENERATE}, 401),
    ],
)
async def test_a_line_names_the_key_of_whatever_was_let_in(
    log: io.StringIO, token: str, rest: dict[str, Any], status: int
) -> None:
    async with served(api_key="k") as server:
        headers = {**rest.get("headers", {}), "authorization": f"Bearer {token}"}
        await server.http.post("/generate", **{**rest, "headers": headers})
    (line,) = lines(log)
    assert (status, token == "k") == (line["status"], "key" in line)


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


async def test_each_prompt_of_several_is_logged_in_the_order_of_their_texts(log: io.StringIO) -> None:
    fake = {"replies": {"first": "one", "second": "two"}}
    async with served(log_prompts=True, fake=fake) as server:
        await server.post("/v1/completions", {"prompt": ["first", "second"], "max_tokens": 9})
        await server.post("/v1/completions", {"prompt": "first", "n": 2, "max_tokens": 9})
    several, one = lines(log)
    assert (several["prompt"], several["generated_text"]) == (["first", "second"], ["one", "two"])
    assert (one["prompt"], one["generated_text"]) == ("first", ["one", "one"])


async def test_why_a_request_failed_is_logged_if_prompts_are(log: io.StringIO) -> None:
    wrong = {"inputs": "x", "parameters": {"temperature": -1}}
    failing = {"inputs": "fail", "parameters": {"max_new_tokens": 9}}
    for prompts in (False, True):
        async with served(log_prompts=prompts, fake={"fail_prompts": ["fail"], "fails_after": 2}) as server:
            told = [message_of((await server.post("/generate", wrong)).json())]
            await server.post("/generate_stream", failing)
    *untold, refused, failed = lines(log)
    assert all("error" not in line for line in untold)
    assert [refused["error"]] == told
    assert failed["error"].startswith("Request failed during generation: ")


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
    ("/chat_tokenize", CHAT | {"tool_choice": {"custom": {"name": "f"}}}),
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


@pytest.mark.parametrize("path", ["/", "/generate"])
def test_a_request_counts_while_there_is_no_model_yet(path: str) -> None:
    with loading() as client:
        assert client.post(path, json={"inputs": "Hi"}).status_code == 503
        told = client.get("/metrics").text
    assert re.search(r"^tgi_request_count(_total)? 1", told, re.MULTILINE)
    assert re.search(r'^tgi_request_failure(_total)?\{err="overloaded"\} 1', told, re.MULTILINE)
