"""What requests share: the prefix cache by their salts, the engine's turns by their bearer tokens."""

from __future__ import annotations

from typing import Any

import pytest

from inference.types import CoreRequest
from tests.contract.serving import Served, events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

LONG = "Tell me all that there is to be known of the prefix cache of this server. " * 4
CHAT = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"prompt": LONG, "max_tokens": 2}),
]
EVERY_ROUTE: list[tuple[str, dict[str, Any]]] = [
    *ROUTES,
    ("/v1/chat/completions", {**CHAT, "stream": True}),
    ("/v1/completions", {"prompt": ["Hi", "Ho"], "max_tokens": 2, "stream": True}),
    ("/generate", {"inputs": "Hi"}),
    ("/generate_stream", {"inputs": "Hi"}),
    ("/", {"inputs": "Hi"}),
    ("/invocations", {"inputs": "Hi"}),
    ("/vertex", {"instances": [{"inputs": "Hi"}, CHAT]}),
    ("/v2/models/m/infer", {"inputs": [{"data": ["Hi"]}]}),
]
KEY = "s3cret"
ALLOWED = {"authorization": f"Bearer {KEY}"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def cached(usage: dict[str, Any]) -> int:
    """Return how many of the prompt's tokens were found."""
    count: int = usage["prompt_tokens_details"]["cached_tokens"]
    return count


def seen_by(server: Served, monkeypatch: pytest.MonkeyPatch) -> list[CoreRequest]:
    """Return a list that every request will be in as the engine gets it."""
    core, seen = server.service.engine._core, []
    submit = core.submit

    def noting(request: CoreRequest) -> None:
        seen.append(request)
        submit(request)

    monkeypatch.setattr(core, "submit", noting)
    return seen


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_usage_tells_how_much_of_a_prompt_was_found(path: str, body: dict[str, Any]) -> None:
    async with served() as server:
        first, second = [(await server.post(path, body)).json()["usage"] for _ in range(2)]
        streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
        *_, last, _ = events_of(await server.post(path, streaming))
        hits = server.metric("parley_prefix_cache_hit_tokens")
        asked = server.metric("parley_prefix_cache_query_tokens")
    assert cached(first) == 0
    assert 0 < cached(second) == cached(last["usage"]) < second["prompt_tokens"]
    assert hits == 2 * cached(second)
    assert asked == 3 * second["prompt_tokens"]


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_only_requests_with_the_same_salt_share_the_cache(path: str, body: dict[str, Any]) -> None:
    salts = [None, "a", "b", "a", None]
    async with served() as server:
        answers = [await server.post(path, {**body, "cache_salt": salt}) for salt in salts]
    found = [cached(answer.json()["usage"]) > 0 for answer in answers]
    assert found == [False, False, False, True, True]
    assert all("x-ignored-parameters" not in answer.headers for answer in answers)


@pytest.mark.parametrize(
    ("path", "body"),
    [(path, {**body, "cache_salt": ""}) for path, body in ROUTES]
    + [("/generate", {"inputs": "Hi", "parameters": {"cache_salt": ""}})],
)
async def test_an_empty_salt_is_refused(path: str, body: dict[str, Any]) -> None:
    async with served() as server:
        refused = await server.post(path, body)
    assert refused.status_code == 422
    expected = {"error": "Input validation error: `cache_salt` cannot be empty", "error_type": "validation"}
    assert error_of(refused) == expected


@pytest.mark.parametrize(("path", "body"), EVERY_ROUTE)
async def test_requests_belong_to_whoever_has_their_token(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = [{}, {"authorization": "Bearer one"}, {"authorization": "Bearer two"}, {"authorization": "x"}]
    async with served() as server:
        seen = seen_by(server, monkeypatch)
        owners = []
        for given in headers:
            answer = await server.http.post(path, json=body, headers=given)
            assert answer.status_code == 200
            owners.append({request.owner for request in seen})
            seen.clear()
    assert [len(found) for found in owners] == [1, 1, 1, 1]
    nobody, one, two, no_bearer = (found.pop() for found in owners)
    assert nobody == no_bearer == ""
    assert len({nobody, one, two}) == 3


async def test_an_owner_is_no_key_and_the_schemes_case_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served(api_key=KEY) as server:
        seen = seen_by(server, monkeypatch)
        for given in (ALLOWED, {"authorization": f"bEARER  {KEY}"}):
            answer = await server.http.post("/generate", json={"inputs": "Hi"}, headers=given)
            assert answer.status_code == 200
    first, second = seen
    assert first.owner == second.owner
    assert KEY not in first.owner


async def test_an_owner_is_the_key_that_was_found_whatever_stands_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    beside = [{}, {"authorization": "Bearer 1"}, {"authorization": "Bearer 2"}]
    async with served(api_key=KEY) as server:
        seen = seen_by(server, monkeypatch)
        for given in [*({"x-api-key": KEY, **wrong} for wrong in beside), {**ALLOWED, "x-api-key": "3"}]:
            answer = await server.http.post("/v1/messages", json=body, headers=given)
            assert answer.status_code == 200
    assert len(seen) == 4
    assert len({request.owner for request in seen}) == 1
