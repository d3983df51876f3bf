"""LoRA adapters as clients name them: by `adapter_id` on TGI's routes, as `model` on OpenAI's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.serving import served
from tests.support import error_of

pytestmark = pytest.mark.anyio

LOADED: dict[str, Any] = {"model_id": "org/m", "lora_adapters": ("first=somewhere", "org/second@v1")}
MESSAGES = [{"role": "user", "content": "Hi"}]
BY_ID = [
    ("/generate", {"inputs": "Hi"}),
    ("/", {"inputs": "Hi"}),
    ("/generate_stream", {"inputs": "Hi"}),
    ("/invocations", {"inputs": "Hi"}),
    ("/vertex", {"instances": [{"inputs": "Hi"}]}),
    ("/v2/models/m/infer", {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["Hi"]}]}),
]
BY_MODEL: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES, "temperature": 0}),
    ("/v1/completions", {"prompt": "Hi", "temperature": 0}),
    ("/invocations", {"messages": MESSAGES, "temperature": 0}),
    ("/v1/responses", {"input": "Hi", "temperature": 0}),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def with_id(body: dict[str, Any], adapter: str | None) -> dict[str, Any]:
    if "instances" in body:
        return {"instances": [with_id(each, adapter) for each in body["instances"]]}
    return {**body, "parameters": {"adapter_id": adapter, "max_new_tokens": 20}}


@pytest.mark.parametrize(("path", "body"), BY_ID)
async def test_an_adapter_answers_that_is_named_by_its_id(path: str, body: dict[str, Any]) -> None:
    async with served(**LOADED) as server:
        answers = [await server.post(path, with_id(body, name)) for name in (None, "first", "org/second")]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({answer.text for answer in answers}) == 3


@pytest.mark.parametrize(("path", "body"), BY_ID)
async def test_one_that_is_not_loaded_is_refused_with_those_that_are(path: str, body: dict[str, Any]) -> None:
    async with served(**LOADED) as server:
        refused = await server.post(path, with_id(body, "third"))
    assert refused.status_code == 422
    words = "`adapter_id` must name a loaded adapter: loaded are `first`, `org/second`. Given: third"
    assert error_of(refused) == {"error": f"Input validation error: {words}", "error_type": "validation"}


async def test_where_none_is_loaded_it_is_said_how_they_are() -> None:
    async with served() as server:
        refused = await server.post("/generate", with_id({"inputs": "Hi"}, "x" * 200))
    assert error_of(refused)["error"].endswith(
        f"must name a loaded adapter: none are, --lora-adapters loads them. Given: {'x' * 100}..."
    )


@pytest.mark.parametrize(("path", "body"), BY_MODEL)
async def test_an_adapter_answers_that_is_named_as_the_model(path: str, body: dict[str, Any]) -> None:
    async with served(**LOADED) as server:
        answers = {
            name: await server.post(path, {**body, "model": name})
            for name in ("tgi", "org/m", "first", "org/second", "gpt-4o")
        }
    bodies = {name: answer.json() for name, answer in answers.items()}
    texts = {name: _text(body) for name, body in bodies.items()}
    assert texts["tgi"] == texts["org/m"] == texts["gpt-4o"]  # as in TGI, whatever is no adapter's name
    assert len({*texts.values()}) == 3
    assert [bodies[name]["model"] for name in ("tgi", "org/m", "first", "org/second")] == [
        *("org/m", "org/m", "first", "org/second")
    ]
    ignored = {name for name, answer in answers.items() if "x-ignored-parameters" in answer.headers}
    assert ignored == {"gpt-4o"}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_a_model_that_is_not_loaded_is_named_whether_messages_are_answered_or_counted(
    path: str,
) -> None:
    names = ("tgi", "org/m", "first", "claude")
    async with served(**LOADED) as server:
        answers = [await server.post(path, {"messages": MESSAGES, "model": name}) for name in names]
        refused = await server.post(path, {"messages": MESSAGES, "model": "m" * 2_000})
    told = [answer.headers.get("x-ignored-parameters") for answer in answers]
    assert told == [None, None, None, "model"]
    assert "`model` must have at most 1024 characters. Given: 2000" in refused.json()["error"]["message"]
    async with served(model_id="org/m") as server:
        answer = await server.post(path, {"messages": MESSAGES, "model": "claude"})
    assert "x-ignored-parameters" not in answer.headers


async def test_without_adapters_a_chats_model_may_be_called_anything() -> None:
    async with served(model_id="org/m") as server:
        answer = await server.post("/v1/chat/completions", {"messages": MESSAGES, "model": "gpt-4o"})
    assert answer.json()["model"] == "gpt-4o"
    assert "x-ignored-parameters" not in answer.headers


async def test_each_choice_of_a_body_is_the_adapters() -> None:
    body = {"prompt": ["Hi", "Ho"], "temperature": 0, "n": 2}
    async with served(**LOADED) as server:
        plain, adapted = [
            (await server.post("/v1/completions", {**body, "model": name})).json()["choices"]
            for name in ("tgi", "first")
        ]
    assert all(one["text"] != other["text"] for one, other in zip(plain, adapted, strict=True))


async def test_adapters_are_listed_beside_their_model() -> None:
    async with served(**LOADED) as server:
        listed = (await server.http.get("/v1/models")).json()
        second = (await server.http.get("/v1/models/org/second")).json()
        unknown = await server.http.get("/v1/models/third")
    model = {"id": "org/m", "object": "model", "created": 0, "owned_by": "org/m"}
    model |= {"input_modalities": ["text"], "type": "model", "lifecycle": "active"}
    model |= {"display_name": "org/m", "created_at": "1970-01-01T00:00:00Z"}
    adapters = [
        {**model, "id": name, "display_name": name, "parent": "org/m"} for name in ("first", "org/second")
    ]
    assert listed["data"] == [model, *adapters]
    assert (listed["id"], listed["last_id"]) == ("org/m", "org/second")
    assert second == adapters[1]
    assert unknown.status_code == 404
    words = "The model `third` is not served here; `org/m` and `first` and `org/second` are."
    assert error_of(unknown)["error"] == words


async def test_adapters_share_nothing_that_is_cached() -> None:
    body = {"prompt": "Hi " * 40, "temperature": 0}
    async with served(**LOADED) as server:
        found = [
            (await server.post("/v1/completions", {**body, "model": name})).json()["usage"][
                "prompt_tokens_details"
            ]["cached_tokens"]
            for name in ("tgi", "first", "org/second", "first", "tgi")
        ]
    assert [count > 0 for count in found] == [False, False, False, True, True]


def _text(body: dict[str, Any]) -> str:
    if "output" in body:
        told: str = body["output"][0]["content"][0]["text"]
        return told
    (choice,) = body["choices"]
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text
