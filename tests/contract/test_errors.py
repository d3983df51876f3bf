"""The table of errors: every error of the engine and of HTTP, as the client sees it."""

from __future__ import annotations

import inspect
import json
from typing import Any
from unittest.mock import ANY

import pytest
from starlette.exceptions import HTTPException

import openapi
from handlers.http.errors import TABLE, Dialect, Failure, Refused, describe
from inference import errors
from inference.errors import (
    ContextExceeded,
    GenerationFailed,
    GrammarRefused,
    IncompleteGeneration,
    InferenceError,
    InvalidInput,
    ModelUnavailable,
    NotReady,
    Overloaded,
    TemplateFailed,
    ToolRefused,
)

TGI_SCOPE = {"path": "/v1/chat/completions", "headers": [(b"user-agent", b"curl")]}
OPENAI_SCOPE = {"path": "/v1/chat/completions", "headers": [(b"x-stainless-lang", b"python")]}
AI_SDK = b"ai/6.0.326 ai-sdk/provider-utils/4.0.65 runtime/node.js/v20"

ROWS = [
    (InvalidInput("`x` is bad"), 422, "validation", "Input validation error: `x` is bad"),
    (GrammarRefused("`a` is deep"), 422, "validation", "Input validation error: `a` is deep"),
    (TemplateFailed("template not found"), 422, "template_error", "Template error: template not found"),
    (ToolRefused("Tool with name f not found"), 422, "tool_error", "Tool error: Tool with name f not found"),
    (Overloaded(3.2), 429, "overloaded", "Model is overloaded"),
    (NotReady("The model is loading", 1), 503, "not_ready", "The model is loading"),
    (GenerationFailed("boom"), 424, "generation", "Request failed during generation: boom"),
    (IncompleteGeneration("detail"), 500, "incomplete_generation", "Incomplete generation"),
    (Refused("as it stands"), 422, "validation", "as it stands"),
    (
        Refused("too many", status=422, error_type="batch size exceeded"),
        422,
        "batch size exceeded",
        "too many",
    ),
]


@pytest.mark.parametrize(
    ("error", "status", "error_type", "message"), ROWS, ids=lambda value: str(value)[:20]
)
def test_an_error_has_its_status_type_and_message(
    error: Exception, status: int, error_type: str, message: str
) -> None:
    failure = describe(error, "id")
    assert (failure.status, failure.error_type, failure.error) == (status, error_type, message)
    assert not failure.unexpected
    assert failure.body() == {"error": message, "error_type": error_type, "request_id": "id"}
    assert json.loads(bytes(failure.reply(TGI_SCOPE).body)) == failure.body()


@pytest.mark.parametrize(
    ("error", "status", "error_type", "message"), ROWS, ids=lambda value: str(value)[:20]
)
def test_inside_of_an_openai_stream_the_status_is_told(
    error: Exception, status: int, error_type: str, message: str
) -> None:
    failure = describe(error, "id")
    body = failure.body(Dialect.OPENAI)
    told = {"message": message, "http_status_code": status, "error_type": error_type, "request_id": "id"}
    assert body == {"error": {**told, "type": ANY, "param": None, "code": error_type}}
    before: Any = failure.detailed()["error"]
    assert body["error"] == {**before, **told}


def test_every_error_of_the_engine_is_in_the_table() -> None:
    kinds = {
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, InferenceError)
    }
    assert {kind for kind in kinds if kind.__base__ is InferenceError} <= set(TABLE) <= kinds


def test_a_new_kind_of_an_error_is_answered_like_its_parent() -> None:
    class Special(InvalidInput):
        """A special case."""

    assert describe(Special("x"), "id").status == 422


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.1, "2"), (59.5, "60")]
)
def test_retry_after_is_whole_seconds_and_at_least_one(seconds: float, header: str) -> None:
    assert describe(Overloaded(seconds), "id").headers == {"retry-after": header}
    assert describe(NotReady("x", seconds), "id").headers == {"retry-after": header}


def test_an_unavailable_model_is_503_with_retry_after() -> None:
    failure = describe(ModelUnavailable("/root/models/x: no such file"), "id")
    assert (failure.status, failure.error_type) == (503, "not_ready")
    assert "/root" not in failure.error
    assert "retry-after" in failure.headers


@pytest.mark.parametrize(
    "text",
    [
        "at 0x7f3a9c001234",
        "open /root/.cache/huggingface/x.bin",
        "in C:\\models\\x",
        "/usr/lib/python3/x.py line 3",
    ],
)
def test_the_engines_insides_are_not_told(text: str) -> None:
    told = describe(GenerationFailed(text), "id").error
    assert "…" in told
    assert not any(part in told for part in ("0x7f", "/root", "C:\\", "/usr"))


def test_an_error_that_nobody_expected_is_opaque() -> None:
    failure = describe(KeyError("/root/secret"), "id-7")
    assert (failure.status, failure.error_type, failure.unexpected) == (500, "internal", True)
    assert "id-7" in failure.error
    assert "secret" not in failure.error


def test_an_error_of_no_request_has_no_id() -> None:
    failure = Failure(503, "no", "overloaded")
    assert failure.body() == {"error": "no", "error_type": "overloaded"}


@pytest.mark.parametrize(
    "scope",
    [
        OPENAI_SCOPE,
        {"path": "/v1/responses", "headers": []},
        {"path": "/v1/chat/completions", "headers": [(b"user-agent", AI_SDK)]},
    ],
)
def test_openais_clients_find_the_message_where_they_look_for_it(scope: dict[str, object]) -> None:
    failure = describe(InvalidInput("`x` is bad"), "id")
    assert json.loads(bytes(failure.reply(scope).body)) == {
        "error": {
            "message": "Input validation error: `x` is bad",
            "type": "invalid_request_error",
            "param": None,
            "code": "validation",
        },
        "error_type": "validation",
        "request_id": "id",
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "invalid_request_error"),
        (422, "invalid_request_error"),
        (424, "server_error"),
        (429, "rate_limit_error"),
        (431, "invalid_request_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_openais_word_for_an_error_goes_by_its_status(status: int, kind: str) -> None:
    told = Failure(status, "no", "word").detailed()["error"]
    assert told == {"message": "no", "type": kind, "param": None, "code": "word"}


def test_a_prompt_that_is_too_long_is_known_by_openais_code_and_words() -> None:
    failure = describe(
        ContextExceeded("`inputs` must have less than 8 tokens. Given: 9", limit=8, given=9), "id"
    )
    refusal = failure.reply(OPENAI_SCOPE)
    details = json.loads(bytes(refusal.body))["error"]
    assert (refusal.status_code, details["code"]) == (400, "context_length_exceeded")
    assert failure.reply(TGI_SCOPE).status_code == 422
    assert "exceeds the context window: this model's maximum context length is 8 tokens" in details["message"]
    assert json.loads(bytes(failure.reply(TGI_SCOPE).body)) == {
        "error": "Input validation error: `inputs` must have less than 8 tokens. Given: 9",
        "error_type": "validation",
        "request_id": "id",
    }


def test_where_tgis_body_is_known_whole_the_id_is_for_openais_clients_alone() -> None:
    failure = describe(Refused("no", error_type="tool_error", to_the_letter=True), "id")
    assert json.loads(bytes(failure.reply(TGI_SCOPE).body)) == {"error": "no", "error_type": "tool_error"}
    assert json.loads(bytes(failure.reply(OPENAI_SCOPE).body))["request_id"] == "id"


def test_401_has_no_body_and_names_the_scheme() -> None:
    reply = describe(HTTPException(401, "no token"), "id").reply(TGI_SCOPE)
    assert (reply.status_code, reply.body) == (401, b"")
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("status", "error_type"), [(404, "not_found"), (405, "method_not_allowed")])
def test_refusals_of_the_router_have_the_one_form(status: int, error_type: str) -> None:
    failure = describe(HTTPException(status, headers={"allow": "POST"}), "id")
    assert (failure.status, failure.error_type) == (status, error_type)
    assert failure.headers == {"allow": "POST"}


def test_every_error_type_is_in_the_document() -> None:
    documented = openapi.load()["components"]["schemas"]["ErrorResponse"]["properties"]["error_type"]
    used = {row.error_type for row in TABLE.values()} | {
        "internal",
        "not_found",
        "method_not_allowed",
        "validation",
    }
    assert used <= set(documented["x-extensible-enum"])
