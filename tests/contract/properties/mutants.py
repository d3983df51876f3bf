"""Defects, each planted where it could be made: in handlers, in the wire's translations, in the application.

A mutant names the generated test that is to catch it: the operation's module, and the function in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from connexion.exceptions import OAuthProblem
from starlette.responses import Response
from starlette.types import Scope

from handlers.http import auth, contract, errors, middleware, sse, validation
from handlers.http.errors import Failure
from handlers.http.support import SupportRules
from handlers.routes import generate, single_answer
from handlers.wire import chat_answer, parameters, response_answer, tgi
from tests.contract.properties.forgotten import FORGOTTEN
from tests.contract.properties.mutant import CASES, KEY, NO_JSON, OPEN, RANGES, UNKNOWN, Mutant
from tests.contract.properties.tampering import (
    Plant,
    body,
    document,
    events,
    reply,
    request,
    result,
    value,
)


def _with(key: str, wrong: Any) -> Any:
    return lambda given: {**given, key: wrong}


def _without(*keys: str) -> Any:
    return lambda given: {key: given[key] for key in given if key not in keys}


def _status(status: int) -> Any:
    def changed(given: Response) -> Response:
        given.status_code = status
        return given

    return changed


def _media_type(name: str) -> Any:
    def changed(given: Response) -> Response:
        given.headers["content-type"] = name
        return given

    return changed


def _crash(given: Any) -> None:
    if (given.get("parameters") or {}).get("seed") == 2**64 - 1:
        raise ZeroDivisionError


def _schema(name: str) -> Any:
    return lambda changed: changed["components"]["schemas"][name]


def _edit(name: str, member: str, **changes: Any) -> Plant:
    return document(lambda changed: _schema(name)(changed)["properties"][member].update(changes))


def _require(name: str, member: str) -> Plant:
    return document(lambda changed: _schema(name)(changed)["required"].append(member))


def _let_in(self: Any, request: Any) -> dict[str, Any]:
    return {"sub": "anybody"}


def _any_key(self: Any, request: Any) -> dict[str, Any]:
    if not any(name == b"authorization" for name, _ in request.scope["headers"]):
        raise OAuthProblem
    return {"sub": "anybody"}


def _closed(changed: Any) -> None:
    del changed["paths"]["/ping"]["get"]["security"]


def _in_first_choice(**changes: Any) -> Any:
    def changed(answer: Any) -> Any:
        first, *others = answer["choices"]
        return {**answer, "choices": [{**first, **changes}, *others]}

    return changed


def _no_complaints(*args: Any) -> Iterator[str]:
    return iter(())


def _failure(**changes: Any) -> Any:
    """Return a reply of errors with another body."""

    def wrong(self: Failure, scope: Scope) -> Response:
        headers = dict(self.headers)
        return Response(
            changes.get("content", b'{"detail": "no"}'),
            changes.get("status", self.status),
            headers,
            media_type=changes.get("media_type", "application/json"),
        )

    return wrong


def _tgi_body(self: Failure, dialect: Any = None) -> dict[str, object]:
    return {"error": self.error, "error_type": self.error_type}


def _forget_limit(given: Any) -> Any:
    return replace(given, max_new_tokens=None)


def _always_done(self: Any, scope: Any, failure: Exception | None) -> bytes:
    return sse.DONE


MUTANTS = (
    # what is answered
    Mutant("202 for 200", "tokenize", CASES, reply("tokenize", _status(202))),
    Mutant("a missing member", "generate", CASES, result(tgi, "to_body", _without("generated_text"))),
    Mutant(
        "null where none may be", "generate", CASES, result(tgi, "to_body", _with("generated_text", None))
    ),
    Mutant("a number as a text", "generate_stream", CASES, result(tgi, "to_token", _with("id", "7"))),
    Mutant("a number below its minimum", "generate", CASES, result(tgi, "to_token", _with("id", -1))),
    Mutant(
        "a finish_reason of the other dialect",
        "generate_stream",
        CASES,
        result(tgi, "to_details", _with("finish_reason", "stop")),
    ),
    Mutant(
        "a finish_reason outside the enum",
        "completions",
        CASES,
        reply("completions", body(_in_first_choice(finish_reason="end"))),
    ),
    Mutant(
        "an undeclared member",
        "tokenize",
        CASES,
        reply("tokenize", body(lambda ids: [{**each, "debug": 1} for each in ids])),
    ),
    Mutant(
        "an object for an array", "compat_generate", CASES, reply("compat_generate", body(lambda all: all[0]))
    ),
    Mutant("another media type", "get_model_info", CASES, reply("get_model_info", _media_type("text/plain"))),
    Mutant(
        "a prediction too many",
        "vertex_compatibility",
        CASES,
        reply("vertex_compatibility", body(lambda said: {"predictions": [*said["predictions"], ""]})),
    ),
    Mutant(
        "a model's list without its object",
        "openai_get_model_info",
        CASES,
        reply("openai_get_model_info", body(_without("object"))),
    ),
    Mutant(
        "404 where nothing is missing",
        "kserve_model_metadata",
        CASES,
        reply("kserve_model_metadata", _status(404)),
    ),
    Mutant(
        "a body where none belongs",
        "health",
        CASES,
        reply("health", lambda given: Response(b"ok", media_type="text/plain")),
    ),
    # what is asked
    Mutant("max_new_tokens is ignored", "generate", CASES, result(tgi, "_parameters", _forget_limit)),
    Mutant(
        "details are ignored",
        "generate",
        CASES,
        request("generate", lambda asked: (asked.get("parameters") or {}).pop("details", None)),
    ),
    Mutant(
        "n is ignored",
        "chat_completions",
        CASES,
        request("chat_completions", lambda asked: asked.pop("n", None)),
    ),
    Mutant(
        "stream is ignored",
        "compat_generate",
        CASES,
        request("compat_generate", lambda asked: asked.pop("stream", None)),
    ),
    Mutant(
        "include_usage is ignored",
        "chat_completions",
        "a_stream_of_messages_has_one_end",
        request("chat_completions", lambda asked: asked.pop("stream_options", None)),
    ),
    Mutant("500 for an edge value", "generate", CASES, request("generate", _crash)),
    Mutant(
        "a value out of its range passes", "generate", RANGES, value(parameters, "_problems", _no_complaints)
    ),
    Mutant(
        "unknown members aren't named", "tokenize", UNKNOWN, value(SupportRules, "check", lambda self, _: ())
    ),
    Mutant("any shape passes", "tokenize", CASES, value(validation.RequestCheck, "__call__", lambda *_: ())),
    Mutant("a required member more", "generate", CASES, _require("GenerateRequest", "parameters")),
    Mutant("a bound too narrow", "generate", CASES, _edit("GenerateParameters", "top_k", maximum=100)),
    Mutant("a bound too wide", "generate", CASES, _edit("GenerateParameters", "top_k", maximum=2**40)),
    Mutant("null is refused", "generate", CASES, _edit("GenerateParameters", "seed", nullable=False)),
    # how streams go
    Mutant(
        "two last events", "generate_stream", CASES, events("generate_stream", lambda all: [*all, all[-1]])
    ),
    Mutant("no last event", "generate_stream", CASES, events("generate_stream", lambda all: all[:-1])),
    Mutant(
        "[DONE] twice",
        "chat_completions",
        "a_stream_of_messages_has_one_end",
        value(sse, "DONE", sse.DONE * 2),
    ),
    Mutant("no [DONE]", "completions", "a_stream_of_prompt_has_one_end", value(sse, "DONE", b"")),
    Mutant("[DONE] in TGI's stream", "generate_stream", CASES, value(sse.EventStream, "_tail", _always_done)),
    Mutant(
        "an event of the wrong shape", "compat_generate", CASES, result(tgi, "to_event", _without("token"))
    ),
    Mutant(
        "a chunk without its id",
        "chat_completions",
        "a_stream_of_messages_has_one_end",
        result(chat_answer.ChatAnswer, "chunks", lambda chunks: [_without("id")(each) for each in chunks]),
    ),
    Mutant(
        "events without their empty line",
        "generate_stream",
        CASES,
        events("generate_stream", lambda all: [each.replace(b"\n\n", b"\n") for each in all]),
    ),
    Mutant(
        "an error event of the other dialect",
        "chat_completions",
        "a_stream_of_messages_fails_in_an_event",
        value(Failure, "body", _tgi_body),
    ),
    Mutant(
        "an event without its name",
        "create_response",
        "a_stream_of_input_has_one_end",
        value(single_answer, "named_event", sse.event),
    ),
    Mutant(
        "an event too few",
        "create_response",
        "a_stream_of_input_has_one_end",
        result(response_answer.ResponseAnswer, "events", lambda told: told[:1] + told[2:]),
    ),
    Mutant(
        "a failure without its event",
        "create_response",
        "a_stream_of_input_fails_in_an_event",
        value(single_answer, "_failed", lambda form, answer, failure: b""),
    ),
    # errors, keys, headers
    Mutant("another body of errors", "generate", NO_JSON, value(Failure, "reply", _failure())),
    Mutant("errors as HTML", "tokenize", NO_JSON, value(Failure, "reply", _failure(media_type="text/html"))),
    Mutant(
        "an unknown error_type",
        "tokenize",
        CASES,
        result(errors.Failure, "body", _with("error_type", "oops")),
    ),
    Mutant("nobody is asked for a key", "generate", KEY, value(auth.KeyHandler, "_verify", _let_in)),
    Mutant("any key will do", "tokenize", KEY, value(auth.KeyHandler, "_verify", _any_key)),
    Mutant("401 with a body", "generate", KEY, value(Failure, "reply", _failure())),
    Mutant("a probe needs the key", "ping", OPEN, document(_closed)),
    Mutant(
        "a lost header", "generate", CASES, result(generate, "answer_headers", _without("x-prompt-tokens"))
    ),
    Mutant(
        "an error of another request",
        "tokenize",
        CASES,
        result(errors.Failure, "body", _with("request_id", "id-0")),
    ),
    Mutant("a lost request id", "ping", CASES, value(middleware, "_mark", lambda *_: None)),
    Mutant(
        "broken JSON passes", "tokenize", NO_JSON, value(contract, "parse_json", lambda raw: {"inputs": "Hi"})
    ),
    Mutant("any media type passes", "tokenize", NO_JSON, value(contract, "require_json", lambda scope: None)),
    Mutant("405 without Allow", "ping", CASES, result(contract.Routing, "_allowed", lambda allowed: set())),
    *FORGOTTEN,
)
