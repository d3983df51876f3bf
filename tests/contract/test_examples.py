"""Every example of the contract, executed through the socket: the answers have the documented form.

That they follow their schemas is held by the server itself, whose responses are all checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from jsonschema import Draft4Validator

from codegen.document import EVENTS, JSON, Document
from codegen.examples import read_transcript
from codegen.exchanges import FAILURE, Exchange, exchanges
from inference.fakes.core import fake_client
from inference.fakes.vision import FAKE_VISION
from tests.adapter_files import write_adapter
from tests.contract.conftest import FAILING
from tests.contract.executing import address, asking, refusing, send
from tests.contract.likeness import differences, sequences, stream_differences
from tests.support import LiveServer, live_server, make_service

DOCUMENT = Document.load()
EXCHANGES = list(exchanges(DOCUMENT))
STREAMING = [
    operation
    for operation in DOCUMENT.operations()
    if EVENTS in DOCUMENT.resolve(operation.node["responses"]["200"]).get("content", {})
]


def call(location: str) -> str:
    """Return a call of a tool as the embedded model writes it."""
    return call_of("get_weather", location=location)


def call_of(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


# What a model says where an example is about that, or about its end; everywhere else any text will do
REPLIES = {
    "You are a helpful assistant": "Deep learning is a kind of machine learning.",
    "18 degrees, sunny": "It is sunny in Paris, and 18 degrees warm.",
    "in Paris and in Rome": f"I look it up.\n{call('Paris')}\n{call('Rome')}",
    "the weather in Paris?": call("Paris"),
    "When does the train leave?": call_of("note_time", input="07:45"),
    "Write down the time.": call_of("notes__note_time", input="It is 7:45."),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Serve a fake engine that says what the examples are about, and may load the adapter that they name."""
    directory = tmp_path_factory.mktemp("adapters")
    write_adapter(directory / "sql-v2")
    service = make_service(lora_directory=str(directory))
    engine = fake_client(service.settings.engine_config(), replies=REPLIES)
    with live_server(make_service(service.settings, engine)) as live:
        yield live


@pytest.fixture(scope="module")
def asked(model: LiveServer) -> Iterator[httpx.Client]:
    with model.client() as client:
        yield client


@pytest.fixture(scope="module")
def seeing() -> Iterator[httpx.Client]:
    """Serve a fake engine that sees."""
    service = make_service()
    engine = fake_client(vision=FAKE_VISION)
    with live_server(make_service(service.settings, engine)) as live, live.client() as client:
        yield client


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda each: f"{each.operation.id}-{each.name}")
def test_an_example_is_answered_as_it_shows(exchange: Exchange, asked: httpx.Client) -> None:
    if exchange.operation.id == "unload_lora_adapter":
        asked.post("/v1/load_lora_adapter", json={"lora_name": "sql", "lora_path": "sql-v2"})
    response = send(asked, exchange.operation, exchange.body)
    if exchange.operation.id == "load_lora_adapter":
        asked.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})
    if exchange.needs:
        assert response.status_code == refusing(exchange.operation), (
            f"the server has {exchange.needs}: take x-needs away"
        )
        return
    assert f"{response.status_code}" == exchange.status, response.text
    assert response.headers.get("content-type", "").partition(";")[0] == exchange.media_type
    assert unlike(exchange, response) == []


@pytest.mark.parametrize(
    "exchange",
    [each for each in EXCHANGES if each.name == "image"],
    ids=lambda each: f"{each.operation.id}-{each.name}",
)
def test_an_example_with_an_image_is_answered_by_a_model_that_sees(
    exchange: Exchange, seeing: httpx.Client
) -> None:
    response = send(seeing, exchange.operation, exchange.body)
    assert f"{response.status_code}" == exchange.status, response.text
    assert unlike(exchange, response) == []


def unlike(exchange: Exchange, response: httpx.Response) -> list[str]:
    """Return how an answer differs from its example."""
    if exchange.media_type == EVENTS:
        return list(stream_differences(exchange.answer, response.text))
    if exchange.media_type == JSON:
        return (
            list(differences(exchange.answer, response.json()))
            if exchange.body
            else untold(exchange, response)
        )
    wanted, found = (
        {line.rpartition(" ")[0] for line in text.splitlines()}
        for text in (exchange.answer or "", response.text)
    )
    return sorted(wanted - found)


def untold(exchange: Exchange, response: httpx.Response) -> list[str]:
    """Return how an answer differs from all examples: what is read depends on the model."""
    answer = response.json()
    examples = [each.answer for each in EXCHANGES if each.operation == exchange.operation]
    assert all(each.keys() == answer.keys() for each in examples)
    parts = [[{name: each[name]} for each in examples] for name in answer]
    found = (
        min((list(differences(example, {name: answer[name]})) for example in part), key=len)
        for name, part in zip(answer, parts, strict=True)
    )
    return [difference for differences_of_one in found for difference in differences_of_one]


def test_no_operation_is_without_an_example() -> None:
    assert {each.operation.id for each in EXCHANGES} == {each.id for each in DOCUMENT.operations()}


def test_each_way_to_ask_is_shown() -> None:
    bodies = [each.body for each in EXCHANGES if isinstance(each.body, dict)]
    asked_for = {name for body in bodies for name in (*body, *body.get("parameters", {}))}
    assert {"stream", "grammar", "tools", "logprobs", "response_format", "stop", "seed"} <= asked_for


@pytest.mark.parametrize("operation", STREAMING, ids=lambda each: each.id)
def test_a_stream_that_fails_ends_as_shown(
    operation: object, client: httpx.Client, server: LiveServer
) -> None:
    (node,) = [each for each in STREAMING if each is operation]
    content = DOCUMENT.resolve(node.node["responses"]["200"])["content"][EVENTS]
    response = send(client, node, {**asking(node.id, f"Please {FAILING}"), "stream": True})
    assert response.status_code == 200
    transcript = read_transcript(response.text)
    dialect = next(each for each in content["x-sse"] if each["terminator"] == transcript.terminator)
    error = Draft4Validator(DOCUMENT.draft4(DOCUMENT.schemas[dialect["error"]]))
    *told, last = (error.is_valid(event) for event in transcript.events)
    assert last
    assert len(told) >= 2
    assert not any(told)
    if FAILURE in content["x-sse-transcript"]:
        shown = sequences(read_transcript(content["x-sse-transcript"][FAILURE]))
        assert sequences(transcript)["request"][-1] == shown["request"][-1]


# --- the comparison notices --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("example", "answer", "where"),
    [
        ({"a": 1}, {}, ".a: missing"),
        ({}, {"a": 1}, ".a: not in the example"),
        ({"a": None}, {"a": 1}, ".a: number, where the example has null"),
        ({"a": [1]}, {"a": []}, ".a: 0 elements, where the example has 1"),
        ({"a": [{"b": 1}, {"c": 1}]}, {"a": [{"c": 1}, {"b": "x"}]}, ".a[1].b: string, where the example"),
        ({"a": True}, {"a": 1}, ".a: number, where the example has boolean"),
        ({"top_logprobs": [{"x": 1}]}, {"top_logprobs": [{"y": "z"}]}, ".top_logprobs[0][0]: string"),
    ],
)
def test_another_form_is_noticed(example: object, answer: object, where: str) -> None:
    (found,) = differences(example, answer)
    assert found.startswith(where)
    assert list(differences(example, example)) == []


def frames(*events: object, end: str = "") -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end


@pytest.mark.parametrize(
    "answer",
    [
        frames({"t": 1, "end": None}),
        frames({"t": 1, "end": "x"}, {"t": 1, "end": None}),
        frames({"t": 1, "end": None}, {"t": 1, "end": "x"}, {"t": 1, "end": "x"}, {"u": 1}),
        frames({"t": 1, "end": None}, {"t": 1, "end": "x"}, end="data: [DONE]\n\n"),
    ],
)
def test_another_stream_is_noticed(answer: str) -> None:
    example = frames({"t": 1, "end": None}, {"t": 2, "end": "x"})
    assert list(stream_differences(example, answer)) != []
    longer = frames({"t": 1, "end": None}, {"t": 3, "end": None}, {"t": 2, "end": "x"})
    assert list(stream_differences(example, longer)) == []


def test_addresses_have_the_documented_examples_in_them() -> None:
    paths = {operation.id: address(operation) for operation in DOCUMENT.operations()}
    assert paths["kserve_infer"] == "/v2/models/m/versions/1/infer"
    assert not any("{" in path for path in paths.values())
