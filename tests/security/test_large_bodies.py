"""Bodies within the limit of bytes that are still a lot of work: refused by length, or read on a thread.

What holds up the event loop holds up everybody's stream. No test measures time: they look at which thread
the work is done on, and at who is answered while it is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import orjson
import pytest

import handlers.http.contract
import handlers.routes.cloud
import handlers.routes.tokenize
import handlers.routes.vertex
import handlers.wire.chat
import handlers.wire.completions
import handlers.wire.kserve
import handlers.wire.responses
import handlers.wire.tgi
import inference.text.lanes
from handlers.http.body import parse_json
from handlers.http.message_errors import speaks_messages
from handlers.http.validation import RequestCheck
from handlers.routes.tokenize import SLICE_TOKENS
from tests.security.raw import connected, head, wait_until
from tests.support import LiveServer, live_server, message_of

MESSAGE = {"role": "user", "content": "Hi"}
PARTS = [{"type": "text", "text": "a"}]


def tools(count: int, properties: int = 1) -> list[dict[str, Any]]:
    """Return tools whose arguments have so many properties."""
    schema = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(properties)}}
    return [{"type": "function", "function": {"name": f"f{at}", "parameters": schema}} for at in range(count)]


TOO_MANY: list[tuple[str, Any, str]] = [
    (
        "/v1/chat/completions",
        {"messages": [MESSAGE] * 50_000},
        "`messages` must have at most 8192 items. Given: 50000",
    ),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": PARTS * 3_000}]},
        "`messages[0].content` must have at most 2048 items. Given: 3000",
    ),
    ("/v1/responses", {"input": [MESSAGE] * 8_193}, "`input` must have at most 8192 items. Given: 8193"),
    (
        "/v1/responses",
        {"input": [{"type": "function_call_output", "output": PARTS * 3_000}]},
        "`input[0].output` must have at most 2048 items. Given: 3000",
    ),
    (
        "/v1/responses",
        {"input": "Hi", "metadata": {str(at): "" for at in range(17)}},
        "`metadata` must have at most 16 members. Given: 17",
    ),
    (
        "/chat_tokenize",
        {"messages": [MESSAGE] * 8_193},
        "`messages` must have at most 8192 items. Given: 8193",
    ),
    (
        "/v1/chat/completions",
        {"messages": [MESSAGE, {"role": "user", "content": PARTS * 60_000}]},
        "`messages[1].content` must have at most 2048 items. Given: 60000",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "0", "type": "function"}] * 30_000}]},
        "`messages[0].tool_calls` must have at most 1024 items. Given: 30000",
    ),
    (
        "/v1/chat/completions",
        {"messages": [MESSAGE], "tools": tools(12_000)},
        "`tools` must have at most 128 items. Given: 12000",
    ),
    (
        "/v1/chat/completions",
        {"messages": [MESSAGE], "tools": tools(129)},
        "`tools` must have at most 128 items. Given: 129",
    ),
    *(
        (
            path,
            {**body, "logit_bias": {str(at): 1 for at in range(100_000)}},
            "`logit_bias` must have at most 32768 members. Given: 100000",
        )
        for path, body in (
            ("/v1/chat/completions", {"messages": [MESSAGE]}),
            ("/v1/completions", {"prompt": "Hi"}),
        )
    ),
    (
        "/generate",
        {"inputs": "Hi", "parameters": {"logit_bias": [0] * 600_000}},
        "`parameters.logit_bias` must have at most 524288 items. Given: 600000",
    ),
    (
        "/generate",
        {"inputs": "Hi", "parameters": {"logit_bias": [1] * 40_000}},
        "`logit_bias` must have at most 32768 biases other than 0. Given: 40000",
    ),
    (
        "/vertex",
        {"instances": [{"inputs": "Hi"}] * 60_000},
        "`instances` must have at most 4096 items. Given: 60000",
    ),
    (
        "/vertex",
        {"instances": [{"messages": [MESSAGE] * 9_000}]},
        "`instances[0].messages` must have at most 8192 items. Given: 9000",
    ),
    (
        "/v2/models/m/infer",
        {"inputs": [{"data": ["a"]}] * 60_000},
        "`inputs` must have at most 4096 items. Given: 60000",
    ),
    (
        "/v2/models/m/infer",
        {"inputs": [{"data": ["a"], "shape": [1] * 65}]},
        "`inputs[0].shape` must have at most 64 items. Given: 65",
    ),
]


@pytest.mark.parametrize(("path", "body", "words"), TOO_MANY, ids=[words for _, _, words in TOO_MANY])
def test_too_many_of_something_is_refused_in_words(
    path: str, body: Any, words: str, client: httpx.Client
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == (400 if speaks_messages(path) else 422), answer.text
    assert message_of(answer.json()) == f"Input validation error: {words}. Send fewer"


GRAMMAR = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(3_000)}}
LARGE: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {"messages": [MESSAGE] * 1_000}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": PARTS * 2_000}]}),
    ("/v1/chat/completions", {"messages": [MESSAGE], "tools": tools(128, 10)}),
    ("/v1/chat/completions", {"messages": [MESSAGE], "logit_bias": {str(at): 1 for at in range(2_000)}}),
    (
        "/v1/chat/completions",
        {
            "messages": [MESSAGE],
            "response_format": {"type": "json_schema", "json_schema": {"schema": GRAMMAR}},
        },
    ),
    ("/v1/chat/completions", {"messages": "x" * 70_000}),
    ("/v1/responses", {"input": [MESSAGE] * 1_000}),
    ("/v1/messages", {"messages": [MESSAGE] * 1_000}),
    ("/v1/responses", {"input": "a, " * 2_000}),
    ("/v1/responses", {"input": "Hi", "text": {"format": {"type": "json_schema", "schema": GRAMMAR}}}),
    ("/v1/completions", {"prompt": [5] * 2_000}),
    ("/v1/completions", {"prompt": "a " * 40_000}),
    ("/generate", {"inputs": "a " * 40_000}),
    ("/generate", {"inputs": "Hi", "parameters": {"logit_bias": [0.5] * 2_000}}),
    ("/generate", {"inputs": "Hi", "parameters": {"grammar": {"type": "json", "value": GRAMMAR}}}),
    ("/", {"inputs": "Hi", **{f"unknown{at}": at for at in range(2_000)}}),
    ("/invocations", {"inputs": "Hi", "messages": [MESSAGE] * 1_000}),
    ("/tokenize", {"inputs": "a, " * 2_000}),
    ("/chat_tokenize", {"messages": [MESSAGE] * 1_000}),
    ("/vertex", {"instances": [{"inputs": "Hi", "messages": [MESSAGE] * 1_000}]}),
    ("/vertex", {"instances": [{"messages": [MESSAGE] * 1_000}] * 2}),
    ("/v2/models/m/infer", {"inputs": [{"data": [97] * 2_000}]}),
    ("/v2/models/m/infer", {"inputs": [{"data": ["a"] * 2_000}]}),
]


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Note on which thread bodies are parsed, checked, and understood."""
    notes: list[tuple[str, int]] = []

    def note(owner: Any, name: str) -> None:
        does = getattr(owner, name)

        def noting(*args: Any, **named: Any) -> Any:
            notes.append((name, threading.get_ident()))
            return does(*args, **named)

        monkeypatch.setattr(owner, name, noting)

    note(handlers.http.contract, "parse_json")
    note(RequestCheck, "__call__")
    note(handlers.wire.chat, "to_chat")
    note(handlers.wire.completions, "to_asked")
    note(handlers.wire.responses, "to_asked")
    note(handlers.wire.completions, "to_completion")
    note(handlers.wire.tgi, "to_meaning")
    note(handlers.wire.kserve, "to_tensors")
    note(handlers.routes.tokenize, "to_conversation")
    note(handlers.routes.vertex, "_places")
    note(handlers.routes.cloud, "operation_of")
    return notes


@pytest.mark.parametrize(("path", "body"), LARGE)
def test_a_large_body_is_worked_on_beside_the_event_loop(
    path: str, body: Any, client: httpx.Client, server: LiveServer, noted: list[tuple[str, int]]
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code in (200, 400, 422), answer.text  # 400: longer than the model reads
    assert {name for name, _ in noted} >= {"parse_json", "__call__"}
    loop = server.service.engine._loop_thread
    assert [name for name, thread in noted if thread == loop] == []


def test_a_small_body_is_worked_on_at_once(
    client: httpx.Client, server: LiveServer, noted: list[tuple[str, int]]
) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [MESSAGE], "max_tokens": 2}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 2}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 2}),
        ("/generate", {"inputs": "Hi"}),
        ("/chat_tokenize", {"messages": [MESSAGE]}),
        ("/vertex", {"instances": [{"inputs": "Hi"}]}),
        ("/v2/models/m/infer", {"inputs": [{"data": ["a"]}]}),
        ("/invocations", {"inputs": "Hi"}),
    ):
        assert client.post(path, json=body).status_code == 200
    assert len({name for name, _ in noted}) == 10
    assert {thread for _, thread in noted} == {server.service.engine._loop_thread}


class Held:
    """A server whose thread for large bodies the test holds."""

    def __init__(self, live: LiveServer) -> None:
        self.live = live
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.read: list[int] = []  # bytes of the large bodies that were parsed
        self._posting = ThreadPoolExecutor(8)

    def hold(self, parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """Return a parser that waits, of large bodies, until it may go on."""

        def holding(raw: bytes) -> Any:
            if len(raw) > 50_000:
                self.read.append(len(raw))
                self.begun.set()
                assert self.may_go_on.wait(60)
            return parse(raw)

        return holding

    def post(self, size: int) -> Future[httpx.Response]:
        """Send a large body; it is answered once the thread may go on."""
        return self._posting.submit(self.live.post, "/tokenize", {"inputs": "a" * size})

    def close(self) -> None:
        self.may_go_on.set()
        self._posting.shutdown()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Serve; the first large body keeps the thread until the test lets go."""
    with live_server() as live:
        holder = Held(live)
        monkeypatch.setattr(handlers.http.contract, "parse_json", holder.hold(parse_json))
        try:
            yield holder
        finally:
            holder.close()


def test_others_are_answered_while_a_large_body_is_read(held: Held) -> None:
    large = held.post(70_000)
    assert held.begun.wait(60)
    with held.live.client() as beside:
        assert beside.get("/health").status_code == 200
        chat = {"messages": [MESSAGE], "max_tokens": 3, "stream": True}
        assert beside.post("/v1/chat/completions", json=chat).text.endswith("data: [DONE]\n\n")
    assert not large.done()
    held.may_go_on.set()
    assert large.result().status_code == 200


def test_large_bodies_are_read_one_after_another_and_too_many_are_refused(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference.text.lanes, "WAITING_SIZE", 150_000)
    first = held.post(70_000)
    assert held.begun.wait(60)
    answers = [held.post(70_001 + at) for at in range(4)]  # of which two may wait
    wait_until(lambda: sum(answer.done() for answer in answers) == 2, "two are refused")
    refused = [answer.result() for answer in answers if answer.done()]
    assert [answer.status_code for answer in refused] == [429, 429]
    assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
    assert len(held.read) == 1
    held.may_go_on.set()
    assert sorted(answer.result().status_code for answer in (first, *answers)) == [200, 200, 200, 429, 429]


def test_a_large_body_whose_sender_has_left_is_not_read(held: Held) -> None:
    first = held.post(70_000)
    assert held.begun.wait(60)
    body = orjson.dumps({"inputs": "a" * 80_000})
    with connected(held.live) as sock:
        sock.sendall(head("POST", "/tokenize", length=len(body)) + body)
        wait_until(lambda: held.live.service.lane._waiting > 0, "the second waits")
    wait_until(lambda: held.live.service.lane._waiting == 0, "it waits no longer")
    held.may_go_on.set()
    assert first.result().status_code == 200
    assert held.post(70_001).result().status_code == 200
    assert len(held.read) == 2


def test_many_tokens_come_in_pieces_and_are_the_same(client: httpx.Client, server: LiveServer) -> None:
    text = "Ünïcödé 😀, " * 2_000
    answer = client.post("/tokenize", json={"inputs": text})
    assert "content-length" not in answer.headers
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    assert len(told) > SLICE_TOKENS
    assert (told[0]["start"], told[-1]["stop"]) == (0, len(text.encode()))
    assert all(before["stop"] >= after["start"] for before, after in pairwise(told))
    chat = client.post("/chat_tokenize", json={"messages": [{"role": "user", "content": text}]})
    assert text in chat.json()["templated_text"]
    assert len(chat.json()["tokenize_response"]) > len(told)
    short = client.post("/tokenize", json={"inputs": "Hi"})
    assert int(short.headers["content-length"]) == len(short.content)
    assert server.violations == []
