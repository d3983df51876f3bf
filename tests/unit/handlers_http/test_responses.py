"""The check of responses has teeth: each kind of a broken answer is found, and becomes a 500 in time."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.responses import Response, StreamingResponse

from handlers.app import create_app
from handlers.http.call import Call
from handlers.http.replies import Dialect, EventStream, event, json_reply
from handlers.http.responses import ContractViolation, raise_violation
from handlers.http.sse import DONE
from handlers.routes.operations import OPERATIONS
from handlers.service import Service
from tests.support import error_of, make_service, serving

TOKEN = {"id": 1, "text": "a", "logprob": -0.5, "special": False}
EVENT = {"index": 1, "token": TOKEN, "generated_text": None, "details": None}
ERROR = {"error": "x", "error_type": "generation"}
GOOD = event(EVENT)


async def events(*frames: bytes) -> Any:
    """Give frames."""
    for frame in frames:
        yield frame


def stream(*frames: bytes) -> Response:
    """Return a stream that isn't helped by EventStream."""
    return StreamingResponse(events(*frames), media_type="text/event-stream")


def answered(operation: str, path: str, body: Any, reply: Any, report: Any) -> httpx.Response:
    """Serve one request whose operation replies with what `reply` returns."""

    async def function(service: Service, call: Call[None]) -> Response:
        response: Response = reply()
        return response

    async def ask() -> httpx.Response:
        service = make_service()
        app = create_app(service, operations={**OPERATIONS, operation: function}, report=report)
        async with serving(app, service) as client:
            return await client.post(path, json=body)

    return asyncio.run(ask())


BROKEN = {
    "wrong member": (lambda: json_reply({"generated_text": 5}), "generated_text: expected a string, got 5"),
    "missing member": (lambda: json_reply({}), "missing field `generated_text`"),
    "not JSON": (lambda: Response(b"{", media_type="application/json"), "not JSON"),
    "media type": (lambda: Response("x", media_type="text/plain"), "the media type is 'text/plain'"),
    "status": (lambda: json_reply({"generated_text": "x"}, status=202), "doesn't have this status"),
    "error's body": (lambda: json_reply({"detail": "x"}, status=422), "missing field `error`"),
    "stream": (lambda: EventStream(events(GOOD)), "the media type is 'text/event-stream'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_becomes_500_and_is_reported(name: str) -> None:
    reply, reason = BROKEN[name]
    reports: list[ContractViolation] = []
    answer = answered("generate", "/generate", {"inputs": "Hi"}, reply, reports.append)
    assert answer.status_code == 500
    assert error_of(answer)["error_type"] == "internal"
    assert len(reports) == 1
    assert str(reports[0]).startswith("generate: ")
    assert reason in str(reports[0])


BROKEN_STREAMS = {
    "wrong event": ([event({"index": "1"})], "an event doesn't fit"),
    "done": ([GOOD, DONE], "an event doesn't fit"),
    "event after an error": ([GOOD, event(ERROR), GOOD], "an event after the error"),
    "no space": ([GOOD.replace(b"data: ", b"data:")], "not one line of data"),
    "two lines": ([b"event: x\n" + GOOD], "the name of an event isn't its own"),
    "two lines of data": ([b"data: {}\n" + GOOD], "not one line of data"),
    "cut off": ([GOOD, GOOD[:-1]], "ends within an event"),
}


@pytest.mark.parametrize("name", BROKEN_STREAMS)
def test_a_broken_stream_is_reported(name: str) -> None:
    frames, reason = BROKEN_STREAMS[name]
    reports: list[ContractViolation] = []
    answer = answered(
        "generate_stream", "/generate_stream", {"inputs": "Hi"}, lambda: stream(*frames), reports.append
    )
    assert reason in str(reports[0])
    assert answer.status_code == (200 if frames[0] == GOOD else 500)


def test_an_openai_stream_without_its_end_is_reported() -> None:
    reports: list[ContractViolation] = []
    body = {"inputs": "Hi", "messages": 5}
    answered(
        "sagemaker_compatibility", "/invocations", body, lambda: stream(event({"error": 1})), reports.append
    )
    assert reports


@pytest.mark.parametrize("frames", [[GOOD, b":\n\n", GOOD], [GOOD, event(ERROR)], [event(ERROR)], []])
def test_a_good_stream_passes(frames: list[bytes]) -> None:
    reports: list[ContractViolation] = []
    answer = answered(
        "generate_stream", "/generate_stream", {"inputs": "Hi"}, lambda: stream(*frames), reports.append
    )
    assert answer.content == b"".join(frames)
    assert reports == []


def test_a_good_openai_stream_passes() -> None:
    reports: list[ContractViolation] = []
    stamp = {"created": 1, "id": "x", "model": "m", "object": "text_completion", "system_fingerprint": "x"}
    frame = event({**stamp, "choices": []})
    answer = answered(
        "completions",
        "/v1/completions",
        {"prompt": "Hi"},
        lambda: EventStream(events(frame), dialect=Dialect.OPENAI),
        reports.append,
    )
    assert answer.content == frame + DONE
    assert reports == []


def test_events_may_be_cut_anywhere_between_sends() -> None:
    reports: list[ContractViolation] = []
    frames = [bytes([byte]) for byte in GOOD + GOOD]
    answer = answered(
        "generate_stream", "/generate_stream", {"inputs": "Hi"}, lambda: stream(*frames), reports.append
    )
    assert answer.content == GOOD + GOOD
    assert reports == []


def test_the_strict_report_raises() -> None:
    with pytest.raises(ContractViolation, match="generate: the media type"):
        answered("generate", "/generate", {"inputs": "Hi"}, lambda: Response("x"), raise_violation)
