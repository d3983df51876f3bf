"""Whom the server takes for a client of OpenAI's, by headers or by a setting, and what that one is told."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Scope

import openapi
from handlers.account import Account
from tests.contract.serving import events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
OPENAI = {"x-stainless-lang": "python"}
TGI = {"user-agent": "text-generation/0.7"}
FAILING: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "please fail"}]},
    COMPLETIONS: {"prompt": "please fail"},
    RESPONSES: {"input": "please fail"},
    "/generate": {"inputs": "please fail"},
}
FAKE = {"fail_prompts": ["please fail"]}


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio, as the server does."""
    return "asyncio"


@pytest.mark.parametrize(
    ("dialect", "path", "headers", "theirs"),
    [
        ("auto", CHAT, OPENAI, True),
        ("auto", CHAT, TGI, False),
        ("auto", COMPLETIONS, OPENAI, True),
        ("auto", COMPLETIONS, TGI, False),
        ("always", CHAT, TGI, True),
        ("always", COMPLETIONS, {}, True),
        ("always", "/generate", TGI, False),
        ("never", CHAT, OPENAI, False),
        ("never", COMPLETIONS, OPENAI, False),
        *((dialect, RESPONSES, TGI, True) for dialect in ("auto", "always", "never")),
    ],
)
async def test_a_failed_generation_is_500_to_openais_clients_who_try_again_and_else_tgis_424(
    dialect: str, path: str, headers: dict[str, str], theirs: bool
) -> None:
    async with served(fake=FAKE, openai_dialect=dialect) as server:
        answer = await server.http.post(path, json=FAILING[path], headers=headers)
        failures = server.metric('tgi_request_failure{err="generation"}')
    error, body = "Request failed during generation: injected failure: please fail", error_of(answer)
    assert (answer.status_code, body["error_type"], failures) == (500 if theirs else 424, "generation", 1)
    details = {"message": error, "type": "server_error", "param": None, "code": "generation"}
    assert body["error"] == (details if theirs else error)


@pytest.mark.parametrize(
    ("dialect", "path", "headers", "theirs"),
    [
        ("auto", CHAT, OPENAI, True),
        ("auto", CHAT, TGI, False),
        ("auto", "/generate", OPENAI, False),
        ("auto", RESPONSES, TGI, True),
        ("auto", f"{RESPONSES}/input_tokens", TGI, True),
        ("always", COMPLETIONS, TGI, True),
        ("never", COMPLETIONS, OPENAI, False),
    ],
)
async def test_a_wrong_key_is_told_openais_clients_in_their_form(
    dialect: str, path: str, headers: dict[str, str], theirs: bool
) -> None:
    async with served(api_key="right", openai_dialect=dialect) as server:
        wrong = {**headers, "authorization": "Bearer wrong"}
        answer = await server.http.post(path, json={}, headers=wrong)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    if not theirs:
        assert answer.content == b""
        return
    documented = openapi.load()["components"]["responses"]
    for name in ("OpenAIUnauthorized", "ResponsesUnauthorized"):
        example = documented[name]["content"]["application/json"]["examples"]["key"]["value"]
        assert {**answer.json(), "request_id": example["request_id"]} == example
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("dialect", "headers", "end"), [("always", TGI, None), ("never", OPENAI, ""), ("auto", OPENAI, None)]
)
async def test_the_setting_says_what_stands_before_a_completions_end(
    dialect: str, headers: dict[str, str], end: str | None
) -> None:
    async with served(openai_dialect=dialect) as server:
        body = {"prompt": "Hi", "stream": True, "max_tokens": 3}
        *chunks, _ = events_of(await server.http.post(COMPLETIONS, json=body, headers=headers))
    assert len(chunks) > 1
    assert {chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]} == {end}


class Recorder:
    """Notes what the log, the metrics and traces hear of the end of each request."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str]] = []

    def began(self, scope: Scope, account: Account) -> None:
        """Wait for its end."""

    def ended(self, scope: Scope, account: Account) -> None:
        """Note its end."""
        self.told.append((account.status, account.error_type))


async def test_the_log_and_the_metrics_have_the_status_that_was_sent() -> None:
    recorder = Recorder()
    async with served(fake=FAKE, observers=[recorder]) as server:
        await server.http.post(CHAT, json=FAILING[CHAT], headers=OPENAI)
        await server.http.post(CHAT, json=FAILING[CHAT], headers=TGI)
        text = (await server.http.get("/metrics")).text
    assert recorder.told[:2] == [(500, "generation"), (424, "generation")]
    for status in (500, 424):
        assert f'parley_http_requests{{status="{status}"}} 1' in text
