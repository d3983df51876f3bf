"""Exchanges held against the contract, beyond what a schema can say.

What is here is true of each request, whatever it asks for: statuses and bodies are those that the document
has, headers are there when they are promised, a stream comes exactly when it was asked for, what fits the
document isn't refused for its shape and what doesn't is, unknown members are named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isinf
from typing import Any

from codegen.document import EVENTS, JSON
from codegen.examples import read_frame
from codegen.property_contract import NOT_DECLARED, Answer, Promise
from codegen.property_relations import relation_problems
from codegen.property_streams import stream_problems

IGNORED = "x-ignored-parameters"
REQUEST_ID = "x-request-id"
RESPONSES = "/v1/responses"  # whose errors are OpenAI's whoever asks
WRONG_SHAPE = "Failed to deserialize the JSON body into the target type: "
SHAPE_STATUSES = (400, 413, 415)
TOO_LONG = "context_length_exceeded"
ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answer; header names are in lower case."""

    method: str
    sent: Mapping[str, str]
    body: Any  # as parsed JSON; ABSENT: there is none, or it isn't JSON
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def media_type(self) -> str:
        """Return the answer's media type without parameters, "" without one."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def answer(self) -> Any:
        """Return the answer's body if it is JSON, else ABSENT."""
        if self.media_type != JSON:
            return ABSENT
        try:
            return json.loads(self.content)
        except ValueError:
            return ABSENT


def problems(promise: Promise, exchange: Exchange) -> Iterator[str]:
    """Yield what is wrong with an answer."""
    yield from _header_problems(promise.answers.get(exchange.status), exchange)
    if exchange.method != promise.method:
        yield from _refusal_of_method(promise, exchange)
        return
    answer = promise.answers.get(exchange.status)
    if answer is None:
        yield from _undeclared_problems(promise, exchange)
        return
    misfits = list(_body_problems(promise, answer, exchange))
    yield from misfits
    if exchange.status >= 400:
        yield from _error_problems(promise, exchange)
    yield from _verdict_problems(promise, exchange)
    if exchange.status == 200:
        yield from _member_problems(promise, exchange)
    if exchange.status == 200 and not misfits:  # what has another shape can't be read on
        yield from relation_problems(promise, exchange.body, exchange.answer, events_of(exchange))


def parsed(media_type: str, body: str | bytes | None) -> Any:
    """Return a request's body as JSON, ABSENT if it isn't declared as that or isn't strict JSON in UTF-8."""
    if media_type.partition(";")[0].strip() != JSON or not body:
        return ABSENT
    try:
        value = json.loads(body, parse_constant=_refuse, parse_int=_integer, parse_float=_number)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate can't be written
    except ValueError:
        return ABSENT
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _integer(text: str) -> int:
    _number(text)
    return int(text)


def _number(text: str) -> float:
    """Return a number; what is beyond a double's range can't be read."""
    number = float(text)
    if isinf(number):
        raise ValueError(f"{text[:20]}... is too large")
    return number


def _header_problems(answer: Answer | None, exchange: Exchange) -> Iterator[str]:
    given = exchange.sent.get(REQUEST_ID)
    if given is not None and exchange.headers.get(REQUEST_ID) != given:
        yield f"`{REQUEST_ID}` was {given!r} and came back as {exchange.headers.get(REQUEST_ID)!r}"
    if exchange.status in (429, 503, 529) and not exchange.headers.get("retry-after", "").isdigit():
        yield f"{exchange.status} comes without `retry-after`"
    if answer is None:
        return
    for name, media_types in answer.headers.items():
        promised = "*/*" in media_types or exchange.media_type in media_types
        if promised and name not in exchange.headers:
            yield f"the header `{name}` is promised with {exchange.status} {exchange.media_type}"
        if not promised and name in exchange.headers:
            yield f"the header `{name}` isn't sent with {exchange.media_type}"


def _refusal_of_method(promise: Promise, exchange: Exchange) -> Iterator[str]:
    """Other methods are refused, or belong to another operation of the same path."""
    if exchange.status == 405:
        yield from _undeclared_problems(promise, exchange)
        allowed = {method.strip() for method in exchange.headers.get("allow", "").split(",")}
        if promise.method not in allowed:
            yield f"405 allows {sorted(allowed)}, and not {promise.method}"
    elif exchange.status >= 500:
        yield f"{exchange.method} is answered with {exchange.status}"


def _undeclared_problems(promise: Promise, exchange: Exchange) -> Iterator[str]:
    if exchange.status not in NOT_DECLARED:
        yield f"the document doesn't have {exchange.status}: {exchange.content[:200]!r}"
    elif exchange.method == "HEAD":
        return
    elif exchange.answer is ABSENT or not promise.error.fits(exchange.answer):
        yield f"{exchange.status} has another body than errors have: {exchange.content[:200]!r}"
    elif exchange.answer["error_type"] != NOT_DECLARED[exchange.status]:
        yield f"{exchange.status} is called {exchange.answer['error_type']!r}"


def _body_problems(promise: Promise, answer: Answer, exchange: Exchange) -> Iterator[str]:
    if not answer.bodies:
        if exchange.content:
            yield f"{exchange.status} has no body, not {exchange.content[:80]!r}"
        return
    if answer.may_be_empty and not exchange.content:
        return
    if exchange.media_type not in answer.bodies:
        yield f"the media type is {exchange.media_type!r}, not one of {', '.join(answer.bodies)}"
    elif exchange.media_type == EVENTS:
        yield from stream_problems(promise, exchange.content.decode())
    else:
        shape = answer.bodies[exchange.media_type]
        if shape is None:
            return
        if exchange.answer is ABSENT:
            yield f"the body of {exchange.status} is no JSON: {exchange.content[:80]!r}"
        elif not shape.fits(exchange.answer):
            yield f"the body of {exchange.status} doesn't fit: {shape.explain(exchange.answer)}"


def _error_problems(promise: Promise, exchange: Exchange) -> Iterator[str]:
    if exchange.answer is ABSENT or not promise.error.fits(exchange.answer):
        return  # 401 may have no body; what doesn't fit has been told
    error = exchange.answer
    if error["error_type"] not in promise.error_types:
        yield f"the document doesn't know the error type {error['error_type']!r}"
    if not _text(error["error"]):
        yield "an error without a message"
    if isinstance(error["error"], str) == (promise.as_anthropic or promise.path.startswith(RESPONSES)):
        yield f"an error in the form of other routes: {error['error']!r}"
    whole = isinstance(error["error"], str) and (error["error"], error["error_type"]) in promise.whole_errors
    expected = None if whole else exchange.headers.get(REQUEST_ID)
    if error.get("request_id") != expected:
        yield f"an error's request_id is {error.get('request_id')!r}, not {expected!r}"


def _verdict_problems(promise: Promise, exchange: Exchange) -> Iterator[str]:
    """What fits isn't refused for its shape, what doesn't is refused with 422; without JSON, 400 or 415."""
    if promise.body is None or exchange.status in (401, 429, 503, 529):
        return
    if exchange.body is ABSENT:
        if exchange.status not in SHAPE_STATUSES:
            yield f"a body that isn't JSON is answered with {exchange.status}"
        return
    if promise.changes_server and exchange.status == 400 and promise.body.fits(exchange.body):
        return
    wrong_shape = exchange.status == promise.invalid and _message(exchange).startswith(WRONG_SHAPE)
    if promise.body.fits(exchange.body):
        for_shape = exchange.status in SHAPE_STATUSES and exchange.status != promise.invalid
        if wrong_shape or (for_shape and not _is_too_long(exchange)):
            yield f"a body that fits is refused with {exchange.status}: {_message(exchange)[:300]}"
    elif not wrong_shape:
        told, said = promise.body.explain(exchange.body), _message(exchange)[:200]
        yield f"a body that doesn't fit ({told}) is answered with {exchange.status} {said}"


def _member_problems(promise: Promise, exchange: Exchange) -> Iterator[str]:
    """Members that the document doesn't know are named, and only where there are some."""
    if promise.body is None or not isinstance(exchange.body, dict):
        return
    named = exchange.headers.get(IGNORED, "").split(",")
    for name in exchange.body.keys() - promise.known:
        if "..." not in named and _printable(name) not in named:
            yield f"`{name}` isn't known to the document, and not named in `{IGNORED}`: {named}"


def _is_too_long(exchange: Exchange) -> bool:
    """Return whether a prompt is refused for its tokens: to OpenAI's clients with 400, as by OpenAI."""
    error = exchange.answer.get("error") if isinstance(exchange.answer, dict) else None
    return isinstance(error, dict) and error.get("code") == TOO_LONG


def _printable(name: str) -> str:
    return "".join(letter if "!" <= letter <= "~" and letter != "," else "?" for letter in name)


def _message(exchange: Exchange) -> str:
    answer = exchange.answer
    return _text(answer.get("error", "")) if isinstance(answer, dict) else ""


def _text(error: object) -> str:
    """Return what an error says: on OpenAI's newest route it is an object."""
    return str(error["message"] if isinstance(error, dict) and "message" in error else error)


def events_of(exchange: Exchange) -> list[Any] | None:
    """Return the events of a stream, None if it isn't one or can't be read."""
    if exchange.media_type != EVENTS:
        return None
    events = []
    for frame in exchange.content.decode().split("\n\n"):
        try:
            events.append(json.loads(read_frame(frame)[1]))
        except ValueError:
            continue
    return events
