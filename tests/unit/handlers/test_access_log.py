"""What the log's line of a request tells of its generations, beside what its answer and the metrics tell."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from handlers.access_log import access
from handlers.settings.table import Settings
from inference.fakes.core import fake_client
from tests.contract.serving import events_of, served
from tests.support import live_server, logging_kept, make_service

pytestmark = pytest.mark.anyio

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x y z"}]
SAMPLED: dict[str, Any] = {"max_tokens": 6, "min_tokens": 6}
BEST = {"best_of": 2, "do_sample": True, "max_new_tokens": 5, "min_new_tokens": 5}
INSTANCE = {"inputs": "x y z", "parameters": BEST}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
GENERATED = "tgi_request_generated_tokens_sum"


class Lines(logging.Handler):
    """Keeps the fields of every line."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.fields.append(vars(record))


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """Return what is logged of requests from now on."""
    kept = Lines()
    with logging_kept():
        access.setLevel(logging.INFO)
        access.addHandler(kept)
        yield kept.fields
        access.removeHandler(kept)


def usage_of(response: httpx.Response) -> dict[str, Any]:
    """Return the usage of an answer, or that of all at a stream's end."""
    streamed = response.headers["content-type"] == "text/event-stream"
    usage: dict[str, Any] = (events_of(response)[-2] if streamed else response.json())["usage"]
    return usage


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": ["x y z", "x"], **SAMPLED}),
        (COMPLETIONS, {"prompt": ["x y", "x y"], "n": 2, **SAMPLED}),
        (COMPLETIONS, {"prompt": [[5, 6, 7], [5]], "n": 1, "best_of": 3, **SAMPLED}),
        (COMPLETIONS, {"prompt": ["x y z", "x"], "n": 2, **SAMPLED, **STREAMED}),
        (COMPLETIONS, {"prompt": ["x y z", "x"], "n": 2, "max_tokens": 0, "echo": True}),
        (COMPLETIONS, {"prompt": ["x y z", "x"], "max_tokens": 0, "echo": True, **STREAMED}),
        (CHAT, {"messages": MESSAGES, "n": 3, **SAMPLED}),
        (CHAT, {"messages": MESSAGES, "n": 3, **SAMPLED, **STREAMED}),
    ],
)
async def test_the_log_counts_as_the_usage_does(
    path: str, body: dict[str, Any], lines: list[dict[str, Any]]
) -> None:
    async with served() as server:
        for _ in range(2):  # the second time prompts are cached
            response = await server.post(path, body)
    for line in lines:
        assert line["generated_tokens"] == usage_of(response)["completion_tokens"]
        assert line["prompt_tokens"] == usage_of(response)["prompt_tokens"]
    assert lines[1]["cached_tokens"] == usage_of(response)["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "prompts", "generations"),
    [
        ("/generate", INSTANCE, 1, 2),
        ("/", INSTANCE, 1, 2),
        ("/vertex", {"instances": [INSTANCE, INSTANCE]}, 2, 4),
        (
            "/vertex",
            {"instances": [INSTANCE, {"messages": MESSAGES, "max_tokens": 5, "min_tokens": 5}]},
            0,
            3,
        ),
        ("/v2/models/m/infer", {"inputs": [{"data": ["x y z"] * 3}], "parameters": BEST}, 3, 6),
    ],
)
async def test_what_best_of_leaves_out_is_logged_and_counted(
    path: str, body: dict[str, Any], prompts: int, generations: int, lines: list[dict[str, Any]]
) -> None:
    async with served() as server:
        tokens = len((await server.post("/tokenize", {"inputs": "x y z"})).json())
        await server.post(path, body)
        counted = [server.metric(name) for name in ("tgi_request_success", GENERATED)]
    line = lines[-1]
    assert [generations, 5 * generations] == counted
    assert 5 * generations == line["generated_tokens"]
    assert generations == len(line["finish_reason"].split(","))
    if prompts:  # a chat's has more tokens
        assert prompts * tokens == line["prompt_tokens"]


async def test_the_seed_of_best_of_is_the_chosen_texts(lines: list[dict[str, Any]]) -> None:
    async with served() as server:
        body = {"inputs": "x", "parameters": {**BEST, "details": True}}
        answers = [(await server.post("/generate", body)).json() for _ in range(8)]
    seeds = [answer["details"]["seed"] for answer in answers]
    assert seeds == [line["seed"] for line in lines]


async def test_the_adapter_that_answers_is_named(lines: list[dict[str, Any]]) -> None:
    async with served(lora_adapters=("one=x", "other=y")) as server:
        for name in (None, "one"):
            await server.post("/generate", {"inputs": "x", "parameters": {"adapter_id": name}})
        both = [{"inputs": "x", "parameters": {"adapter_id": name}} for name in ("other", "one", "other")]
        await server.post("/vertex", {"instances": both})
    assert [line.get("adapter") for line in lines[:2]] == [None, "one"]
    assert set(lines[2]["adapter"].split(",")) == {"one", "other"}


async def test_a_prompt_that_is_only_scored_has_no_generated_token(lines: list[dict[str, Any]]) -> None:
    async with served() as server:
        response = await server.post(COMPLETIONS, {"prompt": "hi", "max_tokens": 0, "echo": True})
        counted = server.metric(GENERATED)
    (line,) = lines
    assert usage_of(response)["completion_tokens"] == int(response.headers["x-generated-tokens"]) == 0
    assert (line["generated_tokens"], line["finish_reason"], counted) == (0, "length", 0)


@pytest.mark.parametrize(
    ("path", "body", "generations"),
    [
        ("/generate", {"inputs": "x y z"}, 1),
        ("/generate_stream", {"inputs": "x y z"}, 1),
        (COMPLETIONS, {"prompt": "x y z", "n": 2, "max_tokens": 9}, 2),
        (COMPLETIONS, {"prompt": "x y z", "n": 2, "max_tokens": 9, "stream": True}, 2),
    ],
)
async def test_what_failed_is_logged_with_what_was_read_and_generated(
    path: str, body: dict[str, Any], generations: int, lines: list[dict[str, Any]]
) -> None:
    async with served(fake={"fail_prompts": ["y"], "fails_after": 2}) as server:
        tokens = len((await server.post("/tokenize", {"inputs": "x y z"})).json())
        await server.post(path, body)
    line = lines[-1]
    assert "generation" == line["error_type"]
    assert (tokens, 2 * generations) == (line["prompt_tokens"], line["generated_tokens"])
    assert "finish_reason" not in line


async def test_a_text_that_ended_beside_one_that_failed_is_logged_with_it(
    lines: list[dict[str, Any]],
) -> None:
    fake = {"fail_prompts": ["y"], "fails_after": 5, "replies": {"x": "a"}}
    async with served(fake=fake) as server:
        lengths = [len((await server.post("/tokenize", {"inputs": text})).json()) for text in ("x", "y y")]
        await server.post(COMPLETIONS, {"prompt": ["x", "y y"], "max_tokens": 9, "stream": True})
    line = lines[-1]
    assert ("generation", "eos_token") == (line["error_type"], line["finish_reason"])
    assert (sum(lengths), 2 + 5) == (line["prompt_tokens"], line["generated_tokens"])


def test_what_a_client_left_is_logged_with_what_was_generated(lines: list[dict[str, Any]]) -> None:
    settings = Settings()
    engine = fake_client(settings.engine_config(), step_seconds=0.01)
    body = {"inputs": "x y z", "parameters": {"max_new_tokens": 500, "min_new_tokens": 500}}
    with live_server(make_service(settings, engine)) as live, live.client() as client:
        tokens = len(client.post("/tokenize", json={"inputs": "x y z"}).json())
        with client.stream("POST", "/generate_stream", json=body) as response:
            for _, _ in zip(response.iter_lines(), range(5), strict=False):
                pass
    line = lines[-1]
    assert (499, tokens) == (line["status"], line["prompt_tokens"])
    assert 2 <= line["generated_tokens"] < 500
