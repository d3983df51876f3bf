"""What the server says of itself, texts as tokens, and the cloud platforms' addresses."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from handlers.app import create_app
from handlers.version import TGI_VERSION
from inference.core import Life
from inference.frontend.client import Generation
from inference.types import LogprobsMode, Request
from tests.contract.serving import events_of, served
from tests.support import error_of, make_service, serving

pytestmark = pytest.mark.anyio

REPLIES = {"replies": {"weather": " It is sunny."}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_tokens_have_their_bytes_places_in_the_text() -> None:
    async with served() as server:
        reply = (await server.post("/tokenize", {"inputs": "Hé"})).json()
        bare = (await server.post("/tokenize", {"inputs": "Hé", "add_special_tokens": False})).json()
        null = (await server.post("/tokenize", {"inputs": "Hé", "add_special_tokens": None})).json()
        empty = await server.post("/tokenize", {"inputs": ""})
    assert null == reply
    assert bare == [token for token in reply if not token["special"]]
    raw = "Hé".encode()
    assert b"".join(raw[token["start"] : token["stop"]] for token in bare) == raw
    assert empty.status_code == 200


async def test_info_tells_the_members_of_all_tgi_versions() -> None:
    async with served(model_id="org/m", max_total_tokens=128, docker_label="sha-1") as server:
        info = (await server.http.get("/info")).json()
    members = ["model_id", "model_sha", "model_pipeline_tag", "max_concurrent_requests", "max_best_of"]
    members += ["max_stop_sequences", "max_input_tokens", "max_total_tokens", "validation_workers"]
    members += ["max_client_batch_size", "router", "version", "sha", "docker_label"]
    assert list(info)[:14] == members
    assert (info["model_id"], info["router"]) == ("org/m", "text-generation-router")
    assert (info["version"], info["docker_label"]) == (TGI_VERSION, "sha-1")
    assert (info["max_input_tokens"], info["max_input_length"], info["max_total_tokens"]) == (127, 127, 128)
    assert (info["model_dtype"], info["model_device_type"]) == ("torch.float32", "cpu")


@pytest.mark.parametrize("quantize", [None, "int8"])
async def test_info_tells_how_the_model_is_computed(quantize: str | None) -> None:
    async with served(quantize=quantize) as server:
        info = (await server.http.get("/info")).json()
        model = server.service.engine.model
    assert (info["quantize"], info["execution"]) == (quantize, model.level)
    assert info["quantization"] is None  # as nothing was before
    assert info["deterministic"] is model.deterministic


async def test_models_are_a_list_and_each_can_be_asked_for() -> None:
    own = {"id": "org/m", "created": 0, "owned_by": "org/m"}
    anthropics = {"type": "model", "display_name": "org/m", "created_at": "1970-01-01T00:00:00Z"}
    flat = {**own, **anthropics, "object": "model", "lifecycle": "active", "input_modalities": ["text"]}
    page = {"has_more": False, "first_id": "org/m", "last_id": "org/m"}
    async with served(model_id="org/m") as server:
        listed = (await server.http.get("/v1/models")).json()
        found = [(await server.http.get(f"/v1/models/{name}")).json() for name in ("org/m", "tgi")]
        unknown = await server.http.get("/v1/models/gpt-4")
        nameless = await server.http.get("/v1/models/")
    assert listed == {"object": "list", "data": [flat], **own, **page}
    assert found == [flat, flat]
    assert unknown.status_code == 404
    assert error_of(unknown) == {
        "error": "The model `gpt-4` is not served here; `org/m` is.",
        "error_type": "not_found",
    }
    assert (nameless.status_code, nameless.json()["error"]) == (
        404,
        "Not found: the models are listed at `/v1/models`, without a slash behind it",
    )


async def test_health_is_an_empty_200_at_three_addresses() -> None:
    async with served() as server:
        answers = [await server.http.get(path) for path in ("/health", "/ping", "/")]
    assert [(answer.status_code, answer.content) for answer in answers] == [(200, b"")] * 3


async def test_health_is_503_after_the_engine_died() -> None:
    async with served() as server:
        core: Any = server.service.engine._core
        core.crash()
        answer = await server.http.get("/health")
    assert answer.status_code == 503
    assert error_of(answer) == {"error": "unhealthy", "error_type": "healthcheck"}
    assert answer.headers["retry-after"] == "1"


async def test_probes_of_kubernetes_say_whether_requests_are_taken_and_whether_a_restart_would_help() -> None:
    async with served() as server:
        engine = server.service.engine

        async def say() -> list[tuple[int, bytes]]:
            answers = [await server.http.get(path) for path in ("/livez", "/readyz")]
            return [(answer.status_code, answer.content) for answer in answers]

        assert await say() == [(200, b""), (200, b"")]
        engine._on_life(Life.DOWN, None)
        alive, (status, why) = await say()
        assert (alive, status) == ((200, b""), 503)
        assert b"The engine is being started again" in why
        engine._on_life(Life.UP, engine.model)
        assert await say() == [(200, b""), (200, b"")]
        engine._on_life(Life.GONE, None)
        dead, (status, why) = await say()
        assert (dead[0], status) == (503, 503)
        assert b"The engine has failed" in why


@pytest.mark.parametrize("path", ["/health", "/ping", "/", "/readyz"])
async def test_probes_say_no_before_all_processes_behind_the_port_have_been_ready(path: str) -> None:
    complete = threading.Event()
    service = replace(make_service(), complete=complete.is_set)
    async with serving(create_app(service), service) as client:
        early = await client.get(path)
        complete.set()
        late = await client.get(path)
    assert (early.status_code, early.headers["retry-after"], late.status_code) == (503, "1", 200)


async def test_a_failed_generation_does_not_make_a_working_engine_unhealthy() -> None:
    async with served(fake={"fail_prompts": ["bad"]}) as server:
        failed = await server.post("/generate", {"inputs": "bad"})
        health = await server.http.get("/health")
    assert (failed.status_code, health.status_code) == (424, 200)


async def test_while_the_model_loads_everything_that_needs_it_is_503() -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    posts: list[tuple[str, dict[str, Any]]] = [
        ("/", {"inputs": "x"}),
        ("/generate", {"inputs": "x"}),
        ("/generate_stream", {"inputs": "x"}),
        ("/v1/chat/completions", {**chat, "stream": True}),
        ("/v1/completions", {"prompt": "x"}),
        ("/tokenize", {"inputs": "x"}),
        ("/chat_tokenize", chat),
    ]
    async with served(fake={"unavailable": "no such model"}) as server:
        answers = [await server.post(path, body) for path, body in posts]
        answers += [await server.http.get(path) for path in ("/info", "/v1/models")]
        health = await server.http.get("/health")
        metrics = await server.http.get("/metrics")
    assert {(answer.status_code, answer.json()["error_type"]) for answer in answers} == {(503, "not_ready")}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
    assert health.status_code == 503
    assert metrics.status_code == 200


async def test_invocations_answer_as_the_route_that_the_body_belongs_to() -> None:
    greedy = {"temperature": 0}
    generate = {"inputs": "the weather", "parameters": {"max_new_tokens": 50}}
    chat = {"messages": [{"role": "user", "content": "the weather"}], **greedy}
    completion = {"prompt": ["the weather"], **greedy}
    async with served(fake=REPLIES) as server:
        generated = await server.post("/invocations", generate)
        streamed = events_of(await server.post("/invocations", {**generate, "stream": True}))
        chatted = await server.post("/invocations", chat)
        completed = await server.post("/invocations", completion)
        all_three = await server.post("/invocations", {**completion, **chat, **generate})
        nothing = await server.post("/invocations", {"input": "the weather"})
    assert generated.json() == all_three.json() == [{"generated_text": "the weather It is sunny."}]
    assert "x-compute-time" in generated.headers
    assert streamed[-1]["generated_text"] == "the weather It is sunny."
    assert chatted.json()["choices"][0]["message"]["content"] == " It is sunny."
    assert completed.json()["choices"][0]["text"] == " It is sunny."
    assert (nothing.status_code, nothing.json()["error_type"]) == (422, "validation")


@pytest.mark.parametrize(
    ("mode", "native", "openai"),
    [
        ("auto", LogprobsMode.PROCESSED, LogprobsMode.RAW),
        ("raw", LogprobsMode.RAW, LogprobsMode.RAW),
        ("processed", LogprobsMode.PROCESSED, LogprobsMode.PROCESSED),
    ],
)
async def test_each_dialect_has_its_logprobs_unless_the_setting_says_otherwise(
    mode: str, native: LogprobsMode, openai: LogprobsMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(logprobs_mode=mode) as server:
        engine, seen = server.service.engine, []
        submit = engine.submit

        async def noting(request: Request) -> Generation:
            seen.append(request.logprobs)
            return await submit(request)

        monkeypatch.setattr(engine, "submit", noting)
        for path in ("/generate", "/generate_stream", "/"):
            await server.post(path, {"inputs": "x", "parameters": {"details": True}})
        chat = {"messages": [{"role": "user", "content": "x"}]}
        await server.post("/v1/chat/completions", {**chat, "logprobs": True})
        await server.post("/v1/chat/completions", chat)
        await server.post("/generate", {"inputs": "x"})
    assert seen == [native, native, native, openai, LogprobsMode.NONE, LogprobsMode.NONE]
