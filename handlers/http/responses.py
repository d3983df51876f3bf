"""Responses held against the contract: status, media type, body, each event of a stream and its end.

For tests, and for a server that is doubted: everything that is sent is parsed again. Only what the
contract's operations send is checked; the pages beside it, 404 and 405 for paths it doesn't have, and CORS
are not.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from handlers.http.errors import Failure
from handlers.http.exchange import exchange_of, operation_id
from handlers.http.explain import explain
from handlers.http.operations import Document, OperationRow, operation_table
from handlers.http.validation import Verdict, available, compile_schema
from openapi.schema import to_draft4

EVENT_STREAM = "text/event-stream"
FRAME = re.compile(rb"(?:event: (?P<name>[^\r\n]+)\n)?data: (?P<data>[^\n]*)")
JSON = "application/json"
OPTIONAL = "x-body-optional"  # the document's mark of a response that has none for some senders
BEYOND = "number is infinity"  # orjson's word for a number beyond all floats, which JSON allows
LARGEST = sys.float_info.max
ORDINARY = 19  # characters of an integer that isn't read as a float
BROKEN = Failure(500, "Internal error: the answer broke the contract; the server's log says how", "internal")

logger = logging.getLogger("parley.contract")


class ContractViolation(AssertionError):
    """A response isn't what the document says."""

    def __init__(self, operation: str, problem: str) -> None:
        super().__init__(f"{operation}: {problem}")
        self.operation = operation


Report = Callable[[ContractViolation], None]


def log_violation(violation: ContractViolation) -> None:
    """Report a violation to the log, where what it quotes is told as an exception's message."""
    logger.error("%s: a response is not what the contract says", violation.operation, exc_info=violation)


def raise_violation(violation: ContractViolation) -> None:
    """Report a violation by an exception, for tests."""
    raise violation


@dataclass(frozen=True, slots=True)
class Json:
    """The schema of a JSON text."""

    schema: Mapping[str, Any]
    is_valid: Verdict

    def misfit(self, raw: bytes) -> str | None:
        """Return why the text isn't what it should be, or None."""
        try:
            value = _loaded(raw)
        except ValueError as error:
            return f"not JSON: {error}"
        return None if self.is_valid(value) else explain(self.schema, value)


@dataclass(frozen=True, slots=True)
class SseDialect:
    """One of the forms that a stream may have, as the document's `x-sse` lists them."""

    event: Json
    error: Json
    terminator: str | None
    named_by: str | None  # the member that the `event:` line of each event repeats; None: there is none

    def is_named(self, data: bytes, name: str | None) -> bool:
        """Return whether an event has the name that belongs to it."""
        return name == (None if self.named_by is None else orjson.loads(data)[self.named_by])


@dataclass(frozen=True, slots=True)
class Expected:
    """What the document says of one status of one operation."""

    bodies: Mapping[str, Json | None]  # by media type; None: anything of that type
    may_be_empty: bool  # for some senders
    dialects: tuple[SseDialect, ...]


Table = Mapping[str, Mapping[str, Expected]]  # operationId -> status -> what is expected


class ResponseCheck:
    """Checks what the contract's application sends; `report` gets what is wrong, and may raise.

    A response that is found wrong before its first byte becomes a 500.
    """

    def __init__(self, app: ASGIApp, document: Document, *, validator: str, report: Report) -> None:
        self._app = app
        self._report = report
        compiler = Compiler(document, available(validator))
        rows = operation_table(document)
        self._table: Table = {name: compiler.operation(row) for name, row in rows.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            send = CheckedResponse(self._table, scope, send, self._report)
        await self._app(scope, receive, send)


class Compiler:
    """Compiles what the document says of responses."""

    def __init__(self, document: Document, validator: str) -> None:
        self._components = document["components"]
        self._validator = validator

    def operation(self, row: OperationRow) -> dict[str, Expected]:
        """Return what an operation may answer, by status."""
        return {status: self._response(response) for status, response in row.responses.items()}

    def _response(self, response: Mapping[str, Any]) -> Expected:
        content = response.get("content", {})
        json = {kind: self._json(item["schema"]) if kind == JSON else None for kind, item in content.items()}
        forms = content.get(EVENT_STREAM, {}).get("x-sse", ())
        return Expected(json, response.get(OPTIONAL, False), tuple(self._dialect(form) for form in forms))

    def _dialect(self, form: Mapping[str, Any]) -> SseDialect:
        schemas = self._components["schemas"]
        event, error = self._json(schemas[form["event"]]), self._json(schemas[form["error"]])
        return SseDialect(event, error, form["terminator"], form.get("named_by"))

    def _json(self, schema: Mapping[str, Any]) -> Json:
        draft4 = to_draft4(schema, self._components)
        return Json(draft4, compile_schema(draft4, self._validator))


class CheckedResponse:
    """The `send` of one request: holds the response back until what it begins with was found right."""

    def __init__(self, table: Table, scope: Scope, forward: Send, report: Report) -> None:
        self._table = table
        self._scope = scope
        self._forward = forward
        self._report = report
        self._start: Message | None = None  # held back
        self._body = b""  # held back
        self._check: Callable[[bytes, bool], str | None] | None = None  # None: nothing to check
        self._streams = False
        self._replaced = False
        self._operation = ""

    async def __call__(self, message: Message) -> None:
        """Take one message of the response."""
        if message["type"] == "http.response.start":
            self._begin(message)
        elif not self._replaced:
            await self._continue(message.get("body", b""), not message.get("more_body", False))

    def _begin(self, message: Message) -> None:
        self._start = message
        self._operation = operation_id(self._scope)
        responses = self._table.get(self._operation)
        if responses is None:
            self._streams = True
            return
        headers = dict(message.get("headers", ()))
        media_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        expected = responses.get(str(message["status"]))
        if expected is None:
            self._check = lambda body, last: "the document doesn't have this status"
        elif media_type == EVENT_STREAM and expected.dialects:
            self._streams = True
            self._check = StreamCheck(expected.dialects)
        else:
            self._check = lambda body, last: _misfit(expected, media_type, body)

    async def _continue(self, body: bytes, last: bool) -> None:
        if not self._streams:
            body = self._body = self._body + body
            if not last:
                return
        problem = self._check(body, last) if self._check is not None else None
        if problem is not None:
            self._report(ContractViolation(self._operation, problem))
            if self._start is not None:
                self._replaced = True
                broken = replace(BROKEN, request_id=exchange_of(self._scope).request_id)
                await broken.reply(self._scope)(self._scope, _nothing, self._forward)
                return
        if self._start is not None:
            start, self._start = self._start, None
            await self._forward(start)
        await self._forward({"type": "http.response.body", "body": body, "more_body": not last})


class StreamCheck:
    """Follows one stream; of the dialects it may have, those remain that all of its events fit."""

    def __init__(self, dialects: tuple[SseDialect, ...]) -> None:
        self._dialects = dialects
        self._rest = b""
        self._failed = False  # an error event has come
        self._terminator: str | None = None

    def __call__(self, chunk: bytes, last: bool) -> str | None:
        """Return what is wrong with the events of a chunk, or with the end."""
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        problem = next((found for found in map(self._event, events) if found is not None), None)
        if problem is not None or not last:
            return problem
        if self._rest:
            return f"the stream ends within an event: {self._rest[:100]!r}"
        if all(dialect.terminator != self._terminator for dialect in self._dialects):
            return f"the stream ends with {self._terminator!r} and should not"
        return None

    def _event(self, event: bytes) -> str | None:
        if event == b":":
            return None
        found = FRAME.fullmatch(event)
        if found is None:
            return f"not one line of data: {event[:100]!r}"
        data, name = found["data"], None if found["name"] is None else found["name"].decode()
        if self._terminator is not None:
            return f"an event after the end: {data[:100]!r}"
        if any(dialect.terminator == data.decode() for dialect in self._dialects):
            self._terminator = data.decode()
            return None
        if self._failed:
            return f"an event after the error: {data[:100]!r}"
        return self._narrow(data, name)

    def _narrow(self, data: bytes, name: str | None) -> str | None:
        before = self._dialects
        self._dialects = tuple(dialect for dialect in before if dialect.event.misfit(data) is None)
        if not self._dialects:
            self._dialects = tuple(dialect for dialect in before if dialect.error.misfit(data) is None)
            self._failed = True
        if not self._dialects:
            self._dialects = before
            return f"an event doesn't fit: {before[0].event.misfit(data)}"
        if not all(dialect.is_named(data, name) for dialect in self._dialects):
            return f"the name of an event isn't its own: {name!r}"
        return None


def _loaded(raw: bytes) -> Any:
    """Return a JSON text's value; a number that is beyond all floats, as calls may have, is the largest."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if BEYOND not in str(error):
            raise
    return json.loads(raw, parse_int=_number, parse_float=_number)


def _number(written: str) -> int | float:
    if written.lstrip("-").isdecimal() and len(written) <= ORDINARY:
        return int(written)
    return max(-LARGEST, min(float(written), LARGEST))  # validators take no infinity


def _misfit(expected: Expected, media_type: str, body: bytes) -> str | None:
    if not expected.bodies:
        return f"the body should be empty: {body[:100]!r}" if body else None
    if expected.may_be_empty and not body and not media_type:
        return None
    if media_type not in expected.bodies:
        return f"the media type is {media_type!r}, not one of {', '.join(expected.bodies)}"
    json = expected.bodies[media_type]
    return None if json is None else json.misfit(body)


async def _nothing() -> Message:
    raise AssertionError("an error's reply reads nothing")
