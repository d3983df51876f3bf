"""KServe's routes, as a client sees them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.serving import served
from tests.support import error_of

pytestmark = pytest.mark.anyio

REPLIES = {"replies": {"weather": " It is sunny. Bye", "name": " Ada"}}
INFER = ["/v2/models/m/infer", "/v2/models/m/versions/7/infer"]
GREEDY: dict[str, Any] = {"max_new_tokens": 100}
OPEN = [
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/m",
    "/v2/models/m/ready",
    "/v2/models/m/versions/7",
    "/v2/models/m/versions/7/ready",
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def tensor(*texts: str, **members: Any) -> dict[str, Any]:
    return {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)} | members


def in_bytes(text: str) -> dict[str, Any]:
    return {"name": "input", "shape": [1], "datatype": "BYTES", "data": list(text.encode())}


async def test_tgis_form_bytes_for_bytes() -> None:
    body = {
        "id": "42",
        "inputs": [in_bytes("the weather"), in_bytes("a name")],
        "outputs": [{"name": "first"}, {"name": "second"}],
        "parameters": GREEDY,
    }
    async with served(fake=REPLIES, model_id="org/m") as server:
        response = await server.post(INFER[1], body)
    texts = [" It is sunny. Bye", " Ada"]
    assert response.json() == {
        "model_name": "org/m",
        "model_version": "7",
        "id": "42",
        "outputs": [
            {"name": name, "shape": [1, len(text)], "datatype": "BYTES", "data": list(text.encode())}
            for name, text in zip(["first", "second"], texts, strict=True)
        ],
    }
    assert not [name for name in response.headers if name.startswith("x-compute")]


async def test_the_protocols_own_form_texts_for_texts() -> None:
    body = {"inputs": [tensor("the weather", "a name"), tensor("a name", name="n")], "parameters": GREEDY}
    async with served(fake=REPLIES, model_id="org/m") as server:
        response = await server.post(INFER[0], body)
    assert response.json() == {
        "model_name": "org/m",
        "outputs": [
            {"name": "text", "shape": [2], "datatype": "BYTES", "data": [" It is sunny. Bye", " Ada"]},
            {"name": "n", "shape": [1], "datatype": "BYTES", "data": [" Ada"]},
        ],
    }


async def test_without_parameters_texts_are_sampled_and_all_parameters_count() -> None:
    async with served() as server:
        same = {"inputs": [tensor(*["x"] * 4)]}
        sampled = (await server.post(INFER[0], same)).json()["outputs"][0]["data"]
        greedy = (await server.post(INFER[0], {**same, "parameters": {}})).json()["outputs"][0]["data"]
        parameters = {"details": True, "seed": 5, "do_sample": True, "max_new_tokens": 2, "min_new_tokens": 2}
        told = (await server.post(INFER[0], {"inputs": [tensor("x")], "parameters": parameters})).json()
    assert len(set(sampled)) > 1
    assert len(set(greedy)) == 1
    assert told["outputs"][0]["parameters"] == {
        "details": [{"finish_reason": "length", "generated_tokens": 2, "seed": 5, "input_length": 1}]
    }


@pytest.mark.parametrize("path", INFER)
@pytest.mark.parametrize(
    ("body", "error", "error_type"),
    [
        ({"inputs": []}, "Input validation error: `inputs` cannot be empty", "validation"),
        ({"inputs": [tensor("")]}, "Input validation error: `inputs` cannot be empty", "validation"),
        (
            {"inputs": [tensor("a")], "outputs": []},
            "Inputs and outputs length mismatch",
            "length mismatch",
        ),
        (
            {"inputs": [tensor("a", shape=[2])]},
            "Input validation error: `inputs[0].shape` must hold as many elements as `inputs[0].data`, "
            "which are 1",
            "validation",
        ),
        (
            {"inputs": [tensor("a"), tensor("a", "")]},
            "Input validation error: inputs[1]: data[1]: `inputs` cannot be empty",
            "validation",
        ),
        (
            {"inputs": [{"data": [195]}]},
            "`inputs[0].data` is not UTF-8: 'utf-8' codec can't decode byte 0xc3 in position 0: "
            "unexpected end of data",
            "utf8",
        ),
        (
            {"inputs": [tensor("a")], "parameters": {"temperature": 0}},
            "Input validation error: `temperature` must be strictly positive",
            "validation",
        ),
        (
            {"inputs": [tensor("a")], "parameters": {"best_of": 3}},
            "Input validation error: `best_of` must be > 0 and <= 2. Given: 3",
            "validation",
        ),
    ],
)
async def test_bad_inputs_are_refused(path: str, body: dict[str, Any], error: str, error_type: str) -> None:
    async with served() as server:
        response = await server.post(path, body)
        assert server.metric('tgi_request_failure{err="validation"}') == 1
    assert (response.status_code, error_of(response)) == (422, {"error": error, "error_type": error_type})


async def test_one_failing_input_fails_all_with_its_own_status() -> None:
    async with served(fake={"fail_prompts": ["bad"]}) as server:
        response = await server.post(INFER[0], {"inputs": [tensor("good", "bad"), tensor("good")]})
    assert (response.status_code, response.json()["error_type"]) == (424, "generation")


async def test_each_text_and_each_candidate_takes_a_place() -> None:
    body = {"inputs": [tensor("a", "b")], "parameters": {"best_of": 2, "do_sample": True}}
    async with served(max_concurrent_requests=4) as server:
        with server.service.engine.admit():
            full = await server.post(INFER[0], body)
        fits = await server.post(INFER[0], body)
    assert (full.status_code, fits.status_code) == (429, 200)


async def test_what_is_not_looked_at_is_named() -> None:
    inputs = [tensor("a", datatype="FP32", parameters={"content_type": "str"})]
    async with served() as server:
        response = await server.post(INFER[0], {"inputs": inputs, "parameters": {"top_n_tokens": 1}})
        plain = await server.post(INFER[0], {"inputs": [tensor("a", datatype="UINT8")]})
    named = response.headers["x-ignored-parameters"].split(",")
    assert named == ["inputs[].datatype", "inputs[].parameters", "parameters.top_n_tokens"]
    assert "x-ignored-parameters" not in plain.headers


async def test_who_serves_what() -> None:
    async with served() as server:
        about = (await server.http.get("/v2")).json()
        model = (await server.http.get("/v2/models/any%20name")).json()
        version = (await server.http.get("/v2/models/m/versions/7")).json()
    assert (about["name"], about["extensions"]) == (
        "text-generation-inference",
        ["health", "models", "metrics"],
    )
    assert (model["name"], model["extensions"]) == ("any name", ["infer", "ready"])
    assert (version["name"], version["version"], version["versions"]) == ("m", "7", ["7"])
    assert model["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert not {"version", "versions"} & model.keys()


async def test_ready_is_said_truthfully() -> None:
    async with served() as server:
        ready = [(await server.http.get(path)).json() for path in OPEN if path.endswith("ready")]
        await server.service.engine.drain(0)
        gone = [await server.http.get(path) for path in OPEN if path.endswith("ready")]
        live = await server.http.get("/v2/health/live")
    assert all(answer["live"] is answer["ready"] is True for answer in ready)
    assert [answer.get("name") for answer in ready] == [None, "m", "m"]
    assert [response.status_code for response in gone] == [503] * 3
    assert error_of(gone[0]) == {"error": "unhealthy", "error_type": "healthcheck"}
    assert live.json() == {"live": True}


async def test_only_inference_is_behind_the_key() -> None:
    async with served(api_key="secret") as server:
        opened = [(await server.http.get(path)).status_code for path in OPEN]
        closed = [(await server.post(path, {"inputs": [tensor("a")]})).status_code for path in INFER]
        key = {"authorization": "Bearer secret"}
        answered = await server.http.post(INFER[0], json={"inputs": [tensor("a")]}, headers=key)
    assert opened == [200] * len(OPEN)
    assert closed == [401, 401]
    assert answered.status_code == 200
