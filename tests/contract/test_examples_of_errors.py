"""Every documented error of every operation, provoked through the socket: its status, its body, its headers.

An error's examples are those that the contract says how to get (`x-request`) and those that a server must be
brought to by what it is or by what happens to it; both are provoked, and none is left over.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from codegen.document import JSON, Document, Operation
from codegen.exchanges import Provocation, provocations, request_examples
from handlers.keys import GENERATE, SCOPES, TOKENIZE
from handlers.routes.operations import OPERATIONS
from handlers.service import Service
from inference.errors import GenerationFailed, IncompleteGeneration, Overloaded
from inference.fakes.core import FakeCore, fake_client
from inference.frontend.client import EngineClient
from inference.text.chat_template import ChatTemplate
from inference.text.pipeline import TextPipeline
from inference.text.stand_in import stand_in_text
from inference.types import EngineState, Request
from tests.contract.conftest import FAILING
from tests.contract.executing import address, asking, send
from tests.contract.late import fake_model, loading
from tests.contract.likeness import without_id, without_numbers
from tests.contract.test_later_adapters import ADAPTERS_BY_STATE
from tests.support import LiveServer, error_of, live_server, make_service, message_of

DOCUMENT = Document.load()
BY_ID = {operation.id: operation for operation in DOCUMENT.operations()}
PROVOCATIONS = list(provocations(DOCUMENT))
ERRORS = [
    (operation.id, status)
    for operation in BY_ID.values()
    for status in operation.node["responses"]
    if status != "200" and not operation.node.get("x-changes-server")
]
# No request brings these about by itself: a test here does, by the state of the server
BY_STATE = {
    ("Invalid", "length"),
    *(("InvalidChat", name) for name in ("template", "image")),
    ("NotFound", "model"),
    ("PayloadTooLarge", "large"),
    *(("UnsupportedMediaType", name) for name in ("text", "compressed")),
    *(("Forbidden", name) for name in ("scope", "tokens")),
    ("RequestTimeout", "slow"),
    ("Overloaded", "key"),
    ("Overloaded", "rate"),
    ("GenerationFailed", "failed"),
    ("Overloaded", "overloaded"),
    ("ServerError", "incomplete"),
    ("ServerError", "internal"),
    ("NotReady", "loading"),
    *ADAPTERS_BY_STATE,
    ("Unhealthy", "unhealthy"),
    *(("OpenAIUnauthorized", "key"), ("ResponsesUnauthorized", "key")),
    *(("MessageUnauthorized", "key"), ("MessageForbidden", "scope"), ("MessageTimeout", "slow")),
    *(("MessageTooLarge", "large"), ("MessageUnsupported", "text"), ("MessageRateLimited", "rate")),
    *(("MessageFailed", "failed"), ("MessageFailed", "internal")),
    *(("MessageNotReady", "loading"), ("MessageOverloaded", "overloaded")),
}

COUNTING = {"count_input_tokens", "count_message_tokens"}  # take a place, and compute, for images alone

Asked = Callable[[Operation], httpx.Response]


@pytest.fixture(scope="module")
def asked(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Asked]]:
    """Ask servers in the states that errors come from, by the status that each leads to."""
    with (
        server.client() as plain,
        locked() as closed,
        loading() as early,
        full() as busy,
        named(tmp_path_factory.mktemp("keys") / "keys") as scoped,
        limited() as spent,
        hurried() as hasty,
        failing() as failed,
        unseeing() as blind,
        unseeing(Overloaded(1.0)) as crowded,
        broken() as faulty,
        gone() as dead,
    ):
        yield {
            "400": lambda operation: send(plain, operation, "{"),
            "401": lambda operation: send(closed, operation, body_of(operation)),
            "403": lambda operation: send(
                scoped,
                operation,
                body_of(operation),
                headers={"authorization": f"Bearer {lacking(operation)}"},
            ),
            "408": lambda operation: send_in_part(hasty, operation),
            "404": lambda operation: plain.get("/v1/models/gpt-4"),
            "413": lambda operation: send(plain, operation, '"' + "x" * 200_000 + '"'),
            "415": lambda operation: plain.post(address(operation), content="{}"),
            "422": lambda operation: send(plain, operation, {}),
            "424": lambda operation: send(
                blind if operation.id in COUNTING else failed, operation, asking(operation.id, FAILING)
            ),
            "429": lambda operation: send(
                spent if calm(operation) else busy,
                operation,
                body_of(operation),
            ),
            "529": lambda operation: send(
                crowded if operation.id in COUNTING else busy, operation, body_of(operation)
            ),
            "500": lambda operation: send(faulty, operation, body_of(operation)),
            "503": lambda operation: send(
                dead if operation.id == "livez" else early, operation, body_of(operation)
            ),
        }


@pytest.mark.parametrize(("operation_id", "status"), ERRORS, ids=lambda each: str(each))
def test_an_error_is_answered_as_documented(operation_id: str, status: str, asked: dict[str, Asked]) -> None:
    operation = BY_ID[operation_id]
    documented = operation.node["responses"][status]
    response = asked[status](operation)
    assert f"{response.status_code}" == status, response.text
    node = DOCUMENT.resolve(documented)
    assert [name for name in node["headers"] if name not in response.headers] == []
    if "content" not in node or node.get("x-body-optional"):  # test_openai_dialect.py asks for that
        assert response.content == b""
    elif status != "422":  # what is wrong with a body is different for each
        examples = node["content"][JSON]["examples"].values()
        assert told(error_of(response)) in [told(example["value"]) for example in examples]


@pytest.mark.parametrize("provocation", PROVOCATIONS, ids=lambda each: f"{each.response}-{each.name}")
def test_an_example_of_an_error_is_answered_as_it_shows(
    provocation: Provocation, client: httpx.Client
) -> None:
    operation = BY_ID[provocation.operation]
    response = send(client, operation, provocation.body)
    (status,) = [
        status
        for status, node in operation.node["responses"].items()
        if node.get("$ref", "").endswith(f"/{provocation.response}")
    ]
    assert f"{response.status_code}" == status
    if status == "400":  # how a parser says it is its own
        assert told(response.json()) == told(provocation.answer)
    elif "request_id" in provocation.answer:
        assert error_of(response) == without_id(provocation.answer)
    else:
        assert response.json() == provocation.answer


def test_a_prompt_that_does_not_fit_is_refused_as_shown(client: httpx.Client) -> None:
    long = {"inputs": "a " * 2000, "parameters": {"max_new_tokens": 100}}
    response = send(client, BY_ID["generate"], long)
    assert response.status_code == 422
    assert told(response.json()) == told(example("Invalid", "length"))


def test_a_model_without_a_chat_template_refuses_as_shown() -> None:
    with client_of(make_service(engine=engine_without_a_template())) as client:
        response = send(client, BY_ID["chat_completions"], asking("chat_completions", "Hi"))
    assert (response.status_code, error_of(response)) == (422, example("InvalidChat", "template"))


def test_a_compressed_body_is_refused_as_shown(client: httpx.Client) -> None:
    response = client.post("/generate", json={"inputs": "Hi"}, headers={"content-encoding": "gzip"})
    assert (response.status_code, error_of(response)) == (415, example("UnsupportedMediaType", "compressed"))


def test_one_request_too_many_of_a_key_is_told_as_shown() -> None:
    with live_server(max_concurrent_requests_per_key=1) as live, live.service.engine.admit():
        response = live.post("/generate", {"inputs": "Hi"})
    assert (response.status_code, error_of(response)) == (429, example("Overloaded", "key"))


def test_a_generation_without_an_end_is_told_as_shown() -> None:
    with broken(IncompleteGeneration("there was no last token")) as client:
        response = send(client, BY_ID["generate"], {"inputs": "Hi"})
    assert (response.status_code, error_of(response)) == (500, example("ServerError", "incomplete"))


def test_every_example_of_an_error_is_provoked() -> None:
    shown = {
        (name, key)
        for name, node in DOCUMENT.components["responses"].items()
        for key in node.get("content", {}).get(JSON, {}).get("examples", {})
    }
    by_request = {(each.response, each.name) for each in PROVOCATIONS}
    assert by_request & BY_STATE == set()
    assert shown == by_request | BY_STATE


def test_every_documented_status_has_a_state_that_leads_to_it(asked: dict[str, Asked]) -> None:
    assert {status for _, status in ERRORS} == set(asked)


def calm(operation: Operation) -> bool:
    """Return whether 429 says that a caller asks too often, not that there is too much to do."""
    said = {"Tokens", "Anthropic"} & set(operation.node["tags"])
    return operation.id in COUNTING or bool(said)


def told(answer: Any) -> tuple[str, str]:
    """Return an error without what differs from server to server."""
    message = without_numbers(message_of(answer), "parley-embedded", "org/m").replace("0.0 s", "0 s")
    return re.split("(as JSON|request id|during generation)", message)[0], answer["error_type"]


def example(response: str, name: str) -> Any:
    content = DOCUMENT.components["responses"][response]["content"]
    return without_id(content[JSON]["examples"][name]["value"])


def body_of(operation: Operation) -> Any:
    """Return the first example of an operation's body; None if it takes none."""
    if "requestBody" not in operation.node:
        return None
    return next(iter(request_examples(DOCUMENT, operation).values()))["value"]


# --- servers in a state -------------------------------------------------------------------------


@contextmanager
def client_of(service: Service) -> Iterator[httpx.Client]:
    """Serve, and give a client."""
    with live_server(service) as live, live.client() as client:
        yield client


@contextmanager
def locked() -> Iterator[httpx.Client]:
    """Serve with a key that the client doesn't have."""
    with live_server(api_key="secret") as live, live.client() as client:
        yield client


@contextmanager
def unseeing(error: Exception | None = None) -> Iterator[httpx.Client]:
    """Serve with an engine that fails on images, which it looks at to count their tokens."""
    service = make_service()

    async def count(_: Request) -> int:
        raise error or GenerationFailed("Server error: out of memory")

    with pytest.MonkeyPatch.context() as patch, client_of(service) as client:
        patch.setattr(service.engine, "count", count)
        yield client


@contextmanager
def gone() -> Iterator[httpx.Client]:
    """Serve after the engine has gone for good."""
    service = make_service(engine=fake_client(unavailable="there is none"))
    with live_server(service, wait=False) as live, live.client() as client:
        while service.engine.state is not EngineState.FAILED:
            time.sleep(0.01)
        yield client


@contextmanager
def full() -> Iterator[httpx.Client]:
    """Serve while as many requests are in flight as may be."""
    with live_server(max_concurrent_requests=1) as live, live.client() as client:
        permit = live.service.engine.admit()
        try:
            yield client
        finally:
            permit.release()


@contextmanager
def named(file: Path) -> Iterator[httpx.Client]:
    """Serve two keys, each with one of the scopes for its name."""
    file.write_text("".join(f"{scope} {sha256(scope.encode()).hexdigest()} {scope}\n" for scope in SCOPES))
    with live_server(api_keys_file=str(file)) as live, live.client() as client:
        yield client


def lacking(operation: Operation) -> str:
    """Return the key that hasn't the scope that an operation needs."""
    return GENERATE if "Tokens" in operation.node["tags"] else TOKENIZE


@contextmanager
def limited() -> Iterator[httpx.Client]:
    """Serve when everyone has used up the minute."""
    with live_server(requests_per_minute=1) as live, live.client() as client:
        live.service.quotas.take(None)
        yield client


@contextmanager
def hurried() -> Iterator[httpx.Client]:
    """Serve whoever sends fast."""
    with live_server(body_timeout=0.1) as live, live.client() as client:
        yield client


def send_in_part(client: httpx.Client, operation: Operation) -> httpx.Response:
    """Send a body but for its end."""
    headers = {"content-type": JSON, "content-length": "100"}

    def dripping() -> Iterator[bytes]:
        yield b"{"
        time.sleep(0.2)
        yield b" " * 99

    return client.post(address(operation), content=dripping(), headers=headers)


@contextmanager
def failing() -> Iterator[httpx.Client]:
    """Serve a model that fails before its first token."""
    config = make_service().settings.engine_config()
    with client_of(make_service(engine=fake_client(config, fail_prompts=[FAILING]))) as client:
        yield client


@contextmanager
def broken(error: Exception | None = None) -> Iterator[httpx.Client]:
    """Serve operations that all raise."""

    async def fail(*_: object) -> Response:
        raise error or RuntimeError("seeded")

    failing: dict[str, Callable[..., Awaitable[Response]]] = dict.fromkeys(OPERATIONS, fail)
    with live_server(operations=failing) as live, live.client() as client:
        yield client


def engine_without_a_template() -> EngineClient:
    """Return an engine whose model has no chat template."""
    tokenizer, _, _ = stand_in_text()
    config = replace(make_service().settings).engine_config()
    return EngineClient(
        FakeCore(fake_model()), config, lambda: TextPipeline(tokenizer, ChatTemplate({}, {}), workers=1)
    )
