"""Vertex AI's predictions, as a client sees them."""

from __future__ import annotations

from typing import Any

import pytest

import openapi
from handlers.routes import cloud
from tests.contract.serving import served
from tests.support import error_of

pytestmark = pytest.mark.anyio

REPLIES = {"replies": {"weather": " It is sunny. Bye", "name": " Ada"}}
PATH = "/vertex"
NAME = [{"role": "user", "content": "your name?"}]
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}}
WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": PROPERTIES}}
GREEDY: dict[str, Any] = {"do_sample": False}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_prompts_and_chats_are_answered_by_their_texts_in_their_order() -> None:
    instances = [
        {"inputs": "the weather", "parameters": {"max_new_tokens": 100}},
        {"messages": NAME, "max_tokens": 100},
        {"inputs": "a name", "parameters": None},
        {"inputs": "the weather", "parameters": {"return_full_text": True, "stop": ["sunny."]}},
    ]
    async with served(fake=REPLIES) as server:
        response = await server.post(PATH, {"instances": instances})
    assert response.json() == {
        "predictions": [" It is sunny. Bye", " Ada", " Ada", "the weather It is sunny."]
    }
    assert not [name for name in response.headers if name.startswith("x-compute")]


async def test_sampling_is_on_unless_told_otherwise() -> None:
    async def predict(*parameters: dict[str, Any]) -> list[str]:
        body = {"instances": [{"inputs": "x", "parameters": each} for each in parameters]}
        predictions: list[str] = (await server.post(PATH, body)).json()["predictions"]
        return predictions

    async with served() as server:
        sampled = await predict(*[{"max_new_tokens": 8, "min_new_tokens": 8}] * 4)
        seeded = await predict({"seed": 1}, {"seed": 1}, {"seed": 2, "min_new_tokens": 9})
        greedy = await predict(GREEDY, GREEDY)
        generate = await server.post("/generate", {"inputs": "x", "parameters": GREEDY})
    assert len(set(sampled)) > 1
    assert seeded[0] == seeded[1] != seeded[2]
    assert greedy == [generate.json()["generated_text"]] * 2


async def test_all_parameters_count() -> None:
    async with served() as server:
        (token,) = (await server.post("/tokenize", {"inputs": "x", "add_special_tokens": False})).json()
        parameters = {"logit_bias": {str(token["id"]): 100}, "max_new_tokens": 3}
        response = await server.post(PATH, {"instances": [{"inputs": "y", "parameters": parameters}]})
    assert response.json() == {"predictions": ["xxx"]}


async def test_what_a_prediction_has_no_place_for_is_named() -> None:
    instances = [
        {"inputs": "a name", "parameters": {"details": True, "top_n_tokens": 2, **GREEDY}},
        {"messages": NAME, "stream": True, "n": 2, "logprobs": True, "top_logprobs": 2},
        {"messages": NAME, "chat_template_kwargs": {"mood": "good"}},
    ]
    async with served(fake=REPLIES) as server:
        response = await server.post(PATH, {"instances": instances, "parameters": {"x": 1}})
    assert response.json() == {"predictions": [" Ada"] * 3}
    named = response.headers["x-ignored-parameters"].split(",")
    expected = {"stream", "n", "logprobs", "parameters.details", "chat_template_kwargs.mood"}
    assert {"parameters", *(f"instances[].{name}" for name in expected)} <= set(named)


@pytest.mark.parametrize(
    ("body", "error", "error_type"),
    [
        (
            {"instances": []},
            "Input validation error: `instances` is empty: send at least one",
            "Input validation error",
        ),
        (
            {"instances": [{"inputs": "x"}, {"inputs": "x", "parameters": {"top_k": 0}}]},
            "Input validation error: instances[1]: `top_k` must be strictly positive",
            "validation",
        ),
        (
            {"instances": [{"inputs": ""}]},
            "Input validation error: `inputs` cannot be empty",
            "validation",
        ),
        (
            {"instances": [{"messages": NAME, "max_tokens": 0}, {"inputs": "x"}]},
            "Input validation error: instances[0]: `max_new_tokens` must be strictly positive",
            "validation",
        ),
        (
            {"instances": [{"inputs": "x"}, {"inputs": 5}]},
            "Failed to deserialize the JSON body into the target type: "
            "instances[1].inputs: expected a string, got 5",
            "validation",
        ),
        (
            {"instances": [{"prompt": "x"}]},
            "Failed to deserialize the JSON body into the target type: "
            "instances[0]: missing field `inputs` or `messages`, got an object with `prompt`",
            "validation",
        ),
    ],
)
async def test_a_bad_instance_is_refused_by_its_place(
    body: dict[str, Any], error: str, error_type: str
) -> None:
    async with served() as server:
        response = await server.post(PATH, body)
        assert server.metric("tgi_request_count") == ("Failed" not in error)
    assert (response.status_code, error_of(response)) == (422, {"error": error, "error_type": error_type})


async def test_a_call_of_a_tool_is_the_json_text_that_tgis_grammar_has() -> None:
    call = (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2]}}\n</tool_call>'
    )
    bare = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    replies = {"two": f"{call}\n{bare}", "first": f"I look. {call}", "talk": "Hello {there}.", "time": bare}
    tools = [
        {"type": "function", "function": {"name": "get_time"}},
        {"type": "function", "function": WEATHER},
    ]

    def asking(content: str, **members: Any) -> dict[str, Any]:
        return {
            "messages": [{"role": "user", "content": content}],
            "tools": tools,
            "temperature": 0,
            **members,
        }

    instances = [asking("two"), asking("first"), asking("talk"), asking("time"), asking("talk", tools=None)]
    instances += [asking("two", parallel_tool_calls=True), asking("two", max_tokens=24)]
    async with served(fake={"replies": replies}) as server:
        weather, said, words, time, plain, both, cut = (
            await server.post(PATH, {"instances": instances})
        ).json()["predictions"]
    assert weather == said == '{"function":{"_name":"get_weather","city":"Paris","days":[1,2]}}'
    assert (words, plain, time) == ("Hello {there}.", "Hello {there}.", '{"function":{"_name":"get_time"}}')
    assert both == f"[{weather},{time}]"
    assert cut.startswith('{"function":{"_name":"get_weather","c')
    assert weather.startswith(cut)
    assert cut != weather


async def test_one_failing_instance_fails_all_with_its_own_status() -> None:
    async with served(fake={"fail_prompts": ["bad"], "fails_after": 1}) as server:
        response = await server.post(PATH, {"instances": [{"inputs": "good"}, {"inputs": "bad"}]})
        assert server.metric('tgi_request_failure{err="generation"}') == 1
        again = await server.post(PATH, {"instances": [{"inputs": "good"}]})
    assert (response.status_code, response.json()["error_type"]) == (424, "generation")
    assert again.status_code == 200


async def test_each_instance_and_each_candidate_takes_a_place() -> None:
    best = {"inputs": "x", "parameters": {"best_of": 2, "max_new_tokens": 1}}
    async with served(max_concurrent_requests=3) as server:
        with server.service.engine.admit():
            full = await server.post(PATH, {"instances": [best, {"messages": NAME}]})
        fits = await server.post(PATH, {"instances": [best, {"messages": NAME}]})
        never = await server.post(PATH, {"instances": [best, best]})
    assert (full.status_code, fits.status_code, never.status_code) == (429, 200, 422)
    assert "`max_concurrent_requests`" in never.json()["error"]


async def test_the_addresses_that_vertex_chose_answer_behind_the_key() -> None:
    settings: dict[str, Any] = {
        "aip_predict_route": "/v1/endpoints/1:predict",
        "aip_health_route": "/v1/endpoints/1",
    }
    body = {"instances": [{"inputs": "a name"}]}
    async with served(fake=REPLIES, api_key="secret", **settings) as server:
        closed = [(await server.post(path, body)).status_code for path in (PATH, "/v1/endpoints/1:predict")]
        key = {"authorization": "Bearer secret"}
        answer = await server.http.post("/v1/endpoints/1:predict", json=body, headers=key)
        wrong = await server.http.post("/v1/endpoints/1:predict", json={}, headers=key)
        alive = await server.http.get("/v1/endpoints/1")
        shown = (await server.http.get("/openapi.json")).json()["paths"]
    assert closed == [401, 401]
    assert answer.json() == {"predictions": [" Ada"]}
    assert (wrong.status_code, alive.status_code) == (422, 200)
    assert {"/v1/endpoints/1:predict", "/v1/endpoints/1"} <= shown.keys()


async def test_the_addresses_that_vertex_chose_may_be_those_of_a_model() -> None:
    settings: dict[str, Any] = {"aip_predict_route": "/v2/models/m/infer", "aip_health_route": "/v1/models/m"}
    body = {"instances": [{"inputs": "a name"}]}
    async with served(fake=REPLIES, **settings) as server:
        answer = await server.post("/v2/models/m/infer", body)
        alive = await server.http.get("/v1/models/m")
        others = [await server.http.get(path) for path in ("/v1/models/n", "/v2/models/m")]
        wrong = await server.http.delete("/v1/models/m")
    assert answer.json() == {"predictions": [" Ada"]}
    assert (alive.status_code, alive.content) == (200, b"")
    assert [other.status_code for other in others] == [404, 200]
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")


async def test_no_request_waits_until_the_document_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first body would that could be of two kinds, and everybody's streams with it."""
    monkeypatch.setattr(cloud, "_verdicts", {})  # of other tests' applications
    async with served() as server:
        monkeypatch.setattr(openapi, "load", None)
        both = {"inputs": 5, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        chat = await server.post("/invocations", both)
        instance = {"inputs": "Hi", "messages": [{"role": "user", "content": "Hi"}]}
        prediction = await server.post(PATH, {"instances": [instance]})
    assert (chat.status_code, prediction.status_code) == (200, 200)
    assert chat.json()["object"] == "chat.completion"
