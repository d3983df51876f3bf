"""Every error as the client sees it: one table from exception to status, error_type, message and headers.

The same rows serve a reply (before the first byte) and the error event of a stream (after it), in TGI's
dialect and in OpenAI's. The vocabulary is TGI's; an error that isn't in the table is a bug of ours: it's
logged, and the client is told nothing but the request id to quote.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from handlers.http.message_errors import OVERLOADED, message_body, speaks_messages, status_of
from handlers.http.sender import ROUTES, speaks_openai
from handlers.wire.names import OPENAI, Names
from inference.errors import (
    AdapterRefused,
    ContextExceeded,
    GenerationFailed,
    ImagesOverloaded,
    IncompleteGeneration,
    InferenceError,
    InvalidInput,
    ModelUnavailable,
    NotReady,
    Overloaded,
    OwnerOverloaded,
    TemplateFailed,
    TextsOverloaded,
    ToolRefused,
)

RETRY_AFTER = 5.0  # seconds; where the error doesn't know better
RESPONSES = "/v1/responses"
TOO_LONG = "context_length_exceeded"  # OpenAI's code; agents that read it shorten their prompt
BAD_KEY = "invalid_api_key"  # OpenAI's code
WINDOW = ". That exceeds the context window: this model's maximum context length is {limit} tokens"
TOO_MANY = "prompt is too long: {given} tokens > {limit} maximum. "
TOO_MUCH = (  # Anthropic's agents read the numbers, and ask for less
    "input length and `max_tokens` exceed context limit: {given} + {wanted} > {limit}, decrease input length "
    "or `max_tokens` and try again. "
)
STATUSES_OF_DETAILS = {424: 500}  # ours, and OpenAI's in their place, by which its clients try again
HOW = ": send a valid key as `Authorization: Bearer`"
OPENAI_TYPES = {424: "server_error", 429: "rate_limit_error"}  # where the status' class doesn't say it

logger = logging.getLogger("parley.errors")


class Dialect(StrEnum):
    """Whose stream it is: how an error looks inside, and whether `[DONE]` ends it."""

    TGI = "tgi"
    OPENAI = "openai"
    RESPONSES = "responses"  # OpenAI's newer one, whose events have names
    MESSAGES = "messages"  # Anthropic's


class Refused(Exception):
    """A request that is refused by the HTTP side; the message is sent as it stands.

    With `to_the_letter` the body is TGI's and nothing else: somebody may compare it whole.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 422,
        error_type: str = "validation",
        headers: Mapping[str, str] | None = None,
        to_the_letter: bool = False,
        param: str = "",
    ) -> None:
        super().__init__(message)
        self.to_the_letter = to_the_letter
        self.param = param  # the path of the member that it is about; "" for none
        self.status = status
        self.error_type = error_type
        self.headers = dict(headers or {})


class ClientDisconnected(Exception):
    """The client closed the connection: nobody is left to reply to."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, ready to be sent."""

    status: int
    error: str
    error_type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    unexpected: bool = False  # not in the table: log it with its traceback
    request_id: str = ""  # "" for none: the body doesn't have it then
    to_the_letter: bool = False  # TGI's body has no id either
    code: str = ""  # OpenAI's, by which its clients know it; "" for none
    in_openais_words: str = ""  # what its clients look for in the message, behind what TGI says
    param: str | None = None  # the path of the member that it is about, for OpenAI's and Anthropic's clients
    everybodys: bool = False  # there is too much to do, whoever asks
    in_anthropics_words: str = ""  # what its clients look for in the message, before what TGI says

    def body(self, dialect: Dialect = Dialect.TGI) -> dict[str, object]:
        """Return the JSON body as TGI has it, or in another dialect the event of a stream."""
        told = {"error_type": self.error_type}
        if self.request_id and not self.to_the_letter:
            told["request_id"] = self.request_id
        if dialect is Dialect.TGI:
            return {"error": self.error, **told}
        if dialect is Dialect.RESPONSES:
            return self._event()
        if dialect is Dialect.MESSAGES:
            return self._message(status_of(self.status, everybodys=self.everybodys))
        return {"error": {**self._details(), "http_status_code": self.status, **told}}

    def _event(self) -> dict[str, object]:
        """Return OpenAI's event for an answer that isn't known any more."""
        told = {"request_id": self.request_id} if self.request_id else {}
        return {"type": "error", "code": self.error_type, "message": self.error, "param": None, **told}

    def _message(self, status: int) -> dict[str, object]:
        """Return Anthropic's body, or its event, of an error with one of its statuses."""
        message, id = self.in_anthropics_words + self.error, self.request_id
        return message_body(status, message, self.error_type, param=self.param, request_id=id)

    def detailed(self) -> dict[str, object]:
        """Return the JSON body for clients of OpenAI's API that find a message nowhere else."""
        return {**replace(self, to_the_letter=False).body(), "error": self._details()}

    def _details(self) -> dict[str, object]:
        """Return what OpenAI's clients read of an error."""
        kind = OPENAI_TYPES.get(
            self.status, "server_error" if self.status >= 500 else "invalid_request_error"
        )
        message, code = self.error + self.in_openais_words, self.code or self.error_type
        return {"message": message, "type": kind, "param": self.param, "code": code}

    def reply(self, scope: Scope) -> Response:
        """Return the response, in the form that the request's sender reads.

        401 has no body, as in TGI, but on OpenAI's routes for its clients.
        """
        if speaks_messages(scope["path"]):
            status = status_of(self.status, everybodys=self.everybodys)
            body = orjson.dumps(self._message(status))
            return Response(body, status, dict(self.headers), media_type="application/json")
        detailed = reads_details(scope)
        if self.status == 401 and not (detailed and scope["path"].startswith(ROUTES)):
            return Response(status_code=401, headers=dict(self.headers))
        content = orjson.dumps(self.detailed() if detailed else self.body())
        status = self._status_of_details if detailed else self.status
        return Response(content, status, dict(self.headers), media_type="application/json")

    @property
    def _status_of_details(self) -> int:
        """Return the status for clients of OpenAI's API, which act by it."""
        if self.code == TOO_LONG:  # with TGI's status their agents don't look at the code
            return 400
        return STATUSES_OF_DETAILS.get(self.status, self.status)


def reads_details(scope: Scope) -> bool:
    """Return whether errors are objects: to clients that read no texts, and on routes that TGI hasn't."""
    path = scope["path"]
    return path == RESPONSES or path.startswith(f"{RESPONSES}/") or speaks_openai(scope)


def is_fault(status: int) -> bool:
    """Return whether a status says that the server has failed, whatever was asked."""
    return status == 424 or (status >= 500 and status != OVERLOADED)


def has_failed(status: int, error_type: str) -> bool:
    """Return whether the server has failed a request; of a stream that had begun its error type says that."""
    return is_fault(status) or error_type in FAULTS


# What hasn't come whole, or hasn't ended, when the server has to end; in the words of whoever comes late
ENDING = Failure(503, "The server shuts down", "not_ready", {"retry-after": "10"})


@dataclass(frozen=True, slots=True)
class Row:
    """How one class of exception is answered; the message is `prefix` + the exception's text, or `fixed`."""

    status: int
    error_type: str
    prefix: str = ""
    fixed: str = ""
    everybodys: bool = False  # as of a `Failure`


TABLE: dict[type[Exception], Row] = {
    AdapterRefused: Row(400, "validation"),
    InvalidInput: Row(422, "validation", "Input validation error: "),
    ToolRefused: Row(422, "tool_error", "Tool error: "),
    TemplateFailed: Row(422, "template_error", "Template error: "),
    Overloaded: Row(429, "overloaded", fixed="Model is overloaded", everybodys=True),
    OwnerOverloaded: Row(429, "overloaded"),
    TextsOverloaded: Row(429, "overloaded", everybodys=True),
    ImagesOverloaded: Row(429, "overloaded", everybodys=True),
    NotReady: Row(503, "not_ready"),
    ModelUnavailable: Row(503, "not_ready", fixed="The model can't be loaded: see the server's log"),
    GenerationFailed: Row(424, "generation", "Request failed during generation: "),
    IncompleteGeneration: Row(500, "incomplete_generation", fixed="Incomplete generation"),
}

STREAMED: dict[type[Exception], Row] = {  # what TGI calls it inside of a stream
    IncompleteGeneration: Row(500, "incomplete_generation_stream", fixed="Incomplete generation stream"),
}

STATUSES: dict[int, Row] = {  # refusals of routing and security
    401: Row(401, "unauthorized", fixed="Unauthorized"),
    404: Row(404, "not_found", fixed="Not found: there is no such route; /docs lists them"),
    405: Row(405, "method_not_allowed", fixed="Method not allowed: the Allow header lists those that are"),
}

# error types that say: the server has failed, whatever was asked; in a stream nothing else says so
FAULTS = frozenset(
    {row.error_type for row in (*TABLE.values(), *STREAMED.values()) if is_fault(row.status)} | {"internal"}
)

ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
INTERNALS = re.compile(r"0x[0-9a-fA-F]{6,}|(?:/[\w.+-]+){2,}/?|[A-Za-z]:\\\S+")


def describe(
    error: Exception, request_id: str, *, streamed: bool = False, names: Names = OPENAI, body: object = None
) -> Failure:
    """Return how `error` is answered; `streamed` says that the response has begun.

    `names` are those that members have in `body`, the request's.
    """
    failure = _failure(error, request_id, streamed, names)
    return replace(failure, request_id=request_id, param=_param(error, names, body))


def settle(
    error: Exception, request_id: str, *, streamed: bool = False, names: Names = OPENAI, body: object = None
) -> Failure:
    """Return how `error` is answered, after logging it if it was unexpected."""
    failure = describe(error, request_id, streamed=streamed, names=names, body=body)
    if failure.unexpected:
        logger.error("request %s failed unexpectedly", request_id, exc_info=error)
    return failure


def _failure(error: Exception, request_id: str, streamed: bool, names: Names) -> Failure:
    if isinstance(error, Refused):
        return Failure(
            error.status, str(error), error.error_type, error.headers, to_the_letter=error.to_the_letter
        )
    if isinstance(error, HTTPException):
        return _refusal(error)
    row = _row(error, streamed)
    if row is None:
        message = f"Internal error: the server's log has the details under request id {request_id}"
        return Failure(500, message, "internal", unexpected=True)
    message, headers = _message(row, error, names), _headers(row, error)
    failure = Failure(row.status, message, row.error_type, headers, everybodys=row.everybodys)
    if isinstance(error, ContextExceeded):
        return replace(
            failure,
            code=TOO_LONG,
            in_openais_words=WINDOW.format(limit=error.limit),
            in_anthropics_words=_in_anthropics_words(error),
        )
    return failure


def _in_anthropics_words(error: ContextExceeded) -> str:
    if error.wanted:
        return TOO_MUCH.format(given=error.given, wanted=error.wanted, limit=error.limit)
    return TOO_MANY.format(given=error.given, limit=error.prompt_limit)


def _row(error: Exception, streamed: bool) -> Row | None:
    for kind in type(error).__mro__:
        row = (STREAMED.get(kind) if streamed else None) or TABLE.get(kind)
        if row is not None:
            return row
    return None


def _param(error: Exception, names: Names, body: object) -> str | None:
    """Return the path of the member that an error is about, as the request's body has it; None for none."""
    if isinstance(error, Refused):
        return error.param or None
    return names.param(error, body) if isinstance(error, InferenceError) else None


def _message(row: Row, error: Exception, names: Names) -> str:
    text = names.message(error) if isinstance(error, InferenceError) else str(error)
    if row.status >= 424:  # the engine's own words may quote its insides
        text = INTERNALS.sub("…", text)
    elif isinstance(error, TemplateFailed):  # Python's words about its objects
        text = ADDRESS.sub("…", text)
    return row.fixed or row.prefix + text


def _headers(row: Row, error: Exception) -> dict[str, str]:
    if row.status not in (429, 503):
        return {}
    seconds = float(getattr(error, "retry_after", RETRY_AFTER))
    return {"retry-after": str(max(1, math.ceil(seconds)))}


def _refusal(error: HTTPException) -> Failure:
    headers = dict(error.headers or {})
    if error.status_code == 401:
        headers["www-authenticate"] = "Bearer"
    row = STATUSES.get(error.status_code)
    if row is None:
        return Failure(error.status_code, str(error.detail), "http", headers)
    failure = Failure(row.status, row.fixed, row.error_type, headers)
    if row.status == 401:
        return replace(failure, code=BAD_KEY, in_openais_words=HOW)
    return failure
