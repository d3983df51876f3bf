"""Changes of the contract, and what the gate says of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Edit = Callable[[Any], object]


def schema(document: Any, name: str) -> Any:
    return document["components"]["schemas"][name]


def member(document: Any, name: str, key: str) -> Any:
    return schema(document, name)["properties"][key]


def answer(document: Any, path: str, status: str = "200") -> Any:
    operation = document["paths"][path]
    return (operation.get("post") or operation["get"])["responses"][status]


def stream(document: Any, path: str) -> Any:
    return answer(document, path)["content"]["text/event-stream"]


def rename(contents: Any, name: str) -> None:
    """Give the only media type another name."""
    contents[name] = contents.popitem()[1]


# what is edited, the key of the change, and what it weighs
BREAKING: list[tuple[Edit, str]] = [
    # operations
    (lambda d: d["paths"].pop("/ping"), "operation-removed GET /ping"),
    (lambda d: d["paths"]["/"].pop("get"), "operation-removed GET /"),
    (
        lambda d: d["paths"]["/ping"]["get"].update(operationId="pong"),
        "operation-renamed GET /ping",
    ),
    (lambda d: d["paths"]["/info"]["get"].pop("security"), "security-changed GET /info"),
    (
        lambda d: d["components"]["securitySchemes"]["bearerAuth"].update(scheme="basic"),
        "security-changed POST /generate",
    ),
    (lambda d: d.update(servers=[{"url": "/api"}]), "servers-changed the document"),
    # parameters and bodies
    (
        lambda d: d["paths"]["/v2/models/{name}"]["get"]["parameters"][0]["schema"].update(maxLength=9),
        "narrower request GET /v2/models/{name}/path name maxLength",
    ),
    (
        lambda d: d["paths"]["/v2/models/{name}"]["get"]["parameters"][0].pop("x-echoed"),
        "parameter-narrowed GET /v2/models/{name}/path name",
    ),
    (
        lambda d: d["paths"]["/info"]["get"].update(
            parameters=[{"in": "query", "name": "q", "required": True, "schema": {"type": "string"}}]
        ),
        "parameter-added GET /info/query q",
    ),
    (
        lambda d: rename(d["paths"]["/tokenize"]["post"]["requestBody"]["content"], "a/b"),
        "media-type-removed POST /tokenize application/json",
    ),
    # members of requests
    (
        lambda d: schema(d, "GenerateParameters")["properties"].pop("top_k"),
        "member-removed request GenerateParameters/top_k",
    ),
    (
        lambda d: schema(d, "ChatRequest")["required"].append("model"),
        "member-required request ChatRequest/model",
    ),
    (
        lambda d: (
            schema(d, "GenerateRequest")["properties"].update(new={"type": "string"}),
            schema(d, "GenerateRequest")["required"].append("new"),
        ),
        "member-required request GenerateRequest/new",
    ),
    (
        lambda d: schema(d, "GenerateParameters")["properties"].update(new={"x-support": "refused"}),
        "member-refused request GenerateParameters/new",
    ),
    # what they take
    (
        lambda d: member(d, "ChatRequest", "seed").pop("nullable"),
        "type-removed request ChatRequest/seed null",
    ),
    (
        lambda d: member(d, "GenerateParameters", "temperature").update(type="integer"),
        "narrower request GenerateParameters/temperature whole",
    ),
    (
        lambda d: member(d, "GenerateParameters", "best_of").update(maximum=8),
        "narrower request GenerateParameters/best_of maximum",
    ),
    (
        lambda d: member(d, "GenerateParameters", "best_of").update(exclusiveMinimum=True),
        "narrower request GenerateParameters/best_of minimum",
    ),
    (
        lambda d: member(d, "GenerateRequest", "inputs").update(pattern="^a"),
        "narrower request GenerateRequest/inputs pattern",
    ),
    (
        lambda d: member(d, "GenerateRequest", "inputs").update(enum=["a"]),
        "narrower request GenerateRequest/inputs values",
    ),
    (
        lambda d: schema(d, "GenerateParameters").update(additionalProperties=False),
        "narrower request GenerateParameters rest",
    ),
    (
        lambda d: schema(d, "MessageContent")["anyOf"].pop(0),
        "type-removed request Message/content string",
    ),
    # their marks
    (
        lambda d: member(d, "GenerateParameters", "top_k").update({"x-support": "later"}),
        "support-withdrawn request GenerateParameters/top_k",
    ),
    (
        lambda d: member(d, "GenerateParameters", "top_k").update({"x-support": "reported"}),
        "support-withdrawn request GenerateParameters/top_k",
    ),
    (
        lambda d: member(d, "GenerateParameters", "best_of").update({"x-default": 2}),
        "default-changed request GenerateParameters/best_of",
    ),
    (
        lambda d: member(d, "GenerateParameters", "best_of").update({"x-range": "1"}),
        "range-changed request GenerateParameters/best_of",
    ),
    (
        lambda d: member(d, "ChatRequest", "messages").update({"x-most": 100}),
        "most-lowered request ChatRequest/messages",
    ),
    (
        lambda d: member(d, "ChatRequest", "metadata").update({"x-most": 100}),
        "most-lowered request ChatRequest/metadata",
    ),
    (
        lambda d: schema(d, "LogitBias")["anyOf"][0].update({"x-most": 100}),
        "most-lowered request LogitBias",
    ),
    (
        lambda d: schema(d, "LogitBias")["anyOf"][1].update({"x-most": 100}),
        "most-lowered request LogitBias",
    ),
    (
        lambda d: schema(d, "MessageContent")["anyOf"][1].update({"x-most": 100}),
        "most-lowered request MessageContent",
    ),
    (
        lambda d: member(d, "GenerateRequest", "stream").update({"x-neutral": []}),
        "neutral-removed request GenerateRequest/stream false",
    ),
    (
        lambda d: member(d, "ChatRequest", "response_format").pop("x-neutral"),
        'neutral-removed request ChatRequest/response_format {"type": "text"}',
    ),
    (
        lambda d: member(d, "ChatRequest", "seed").update({"x-excludes": {"n": {}}}),
        "exclusion-added request ChatRequest/seed n",
    ),
    (
        lambda d: member(d, "ChatRequest", "response_format").pop("x-excludes-unless"),
        "lifting-removed request ChatRequest/response_format response_format_with_tools",
    ),
    (
        lambda d: member(d, "KserveInferRequest", "parameters")["x-without-effect"].append("seed"),
        'effect-removed request KserveInferRequest/parameters "seed"',
    ),
    # members of answers
    (
        lambda d: schema(d, "Info")["properties"].pop("quantize"),
        "member-removed response Info/quantize",
    ),
    (
        lambda d: schema(d, "ErrorResponse")["required"].remove("error_type"),
        "member-optional response ErrorResponse/error_type",
    ),
    (
        lambda d: member(d, "TextMessage", "content").update(nullable=True),
        "type-added response TextMessage/content null",
    ),
    (
        lambda d: schema(d, "FinishReason")["enum"].append("cancelled"),
        'value-added response FinishReason "cancelled"',
    ),
    (
        lambda d: member(d, "StreamErrorBody", "http_status_code").update(maximum=699),
        "wider response StreamErrorBody/http_status_code maximum",
    ),
    (
        lambda d: schema(d, "OutputMessage")["anyOf"].append({"type": "string"}),
        "type-added response ChatCompletionComplete/message string",
    ),
    (
        lambda d: schema(d, "OutputMessage")["anyOf"].append(
            {"type": "object", "required": ["audio"], "properties": {"audio": {"type": "object"}}}
        ),
        "form-added response ChatCompletionComplete/message OutputMessage",
    ),
    (
        lambda d: member(d, "ErrorResponse", "error_type")["x-extensible-enum"].remove("utf8"),
        "known-word-removed response ErrorResponse/error_type utf8",
    ),
    # answers
    (
        lambda d: d["paths"]["/generate"]["post"]["responses"].pop("429"),
        "status-removed response POST /generate 429",
    ),
    (
        lambda d: d["paths"]["/tokenize"]["post"]["responses"].update({"202": {"description": ""}}),
        "status-added response POST /tokenize 202",
    ),
    (
        lambda d: rename(answer(d, "/metrics")["content"], "a/b"),
        "media-type-removed response GET /metrics 200 text/plain",
    ),
    (
        lambda d: d["components"]["responses"]["Overloaded"]["headers"].pop("retry-after"),
        "header-removed response responses/Overloaded retry-after",
    ),
    (
        lambda d: answer(d, "/generate")["headers"].pop("x-total-time"),
        "header-removed response POST /generate 200 x-total-time",
    ),
    (
        lambda d: d["components"]["headers"]["x-total-time"].update(schema={"type": "string"}),
        "type-added response POST /generate 200/header x-total-time string",
    ),
    # streams
    (
        lambda d: stream(d, "/v1/chat/completions")["x-sse"][0].update(terminator=None),
        "terminator-changed response POST /v1/chat/completions 200 ChatCompletionChunk",
    ),
    (
        lambda d: stream(d, "/invocations")["x-sse"].pop(0),
        "events-removed response POST /invocations 200 StreamResponse",
    ),
    (
        lambda d: stream(d, "/generate_stream")["x-sse"].append(
            {"event": "Chunk", "error": "StreamError", "terminator": "[DONE]"}
        ),
        "events-added response POST /generate_stream 200 Chunk",
    ),
    (
        lambda d: schema(d, "StreamResponse")["required"].remove("generated_text"),
        "member-optional response StreamResponse/generated_text",
    ),
    (
        lambda d: stream(d, "/generate_stream")["x-sse"][0].update(error="StreamError"),
        "member-removed response ErrorResponse/error_type at POST /generate_stream 200",
    ),
]

COMPATIBLE: list[tuple[Edit, str, str]] = [
    (
        lambda d: d["paths"].update({"/new": d["paths"]["/info"]}),
        "operation-added GET /new",
        "MINOR",
    ),
    (lambda d: d["paths"]["/ping"]["get"].update(deprecated=True), "deprecated GET /ping", "MINOR"),
    (
        lambda d: d["paths"]["/tokenize"]["post"].update(security=[]),
        "security-removed POST /tokenize",
        "MINOR",
    ),
    (
        lambda d: d["paths"]["/tokenize"]["post"]["responses"].update({"409": {"description": ""}}),
        "status-added response POST /tokenize 409",
        "MINOR",
    ),
    (
        lambda d: schema(d, "GenerateParameters")["properties"].update(new={"type": "string"}),
        "member-added request GenerateParameters/new",
        "MINOR",
    ),
    (
        lambda d: member(d, "GenerateRequest", "inputs").update(nullable=True),
        "type-added request GenerateRequest/inputs null",
        "MINOR",
    ),
    (
        lambda d: member(d, "ChatRequest", "messages").update({"x-most": 10_000}),
        "most-raised request ChatRequest/messages",
        "MINOR",
    ),
    (
        lambda d: schema(d, "LogitBias")["anyOf"][0].pop("x-most"),
        "most-raised request LogitBias",
        "MINOR",
    ),
    (
        lambda d: schema(d, "GenerateRequest")["required"].remove("inputs"),
        "member-optional request GenerateRequest/inputs",
        "MINOR",
    ),
    (
        lambda d: member(d, "MessageChunk", "file").update({"x-support": "honoured"}),
        "support-added request MessageChunk/file",
        "MINOR",
    ),
    (
        lambda d: schema(d, "GenerateRequest")["properties"].pop("stream"),
        "member-removed request GenerateRequest/stream",
        "PATCH",
    ),
    (
        lambda d: d["components"]["headers"]["retry-after"].update(required=True),
        "header-always response responses/Overloaded retry-after",
        "MINOR",
    ),
    (
        lambda d: schema(d, "Info")["properties"].update(new={"type": "string"}),
        "member-added response Info/new",
        "MINOR",
    ),
    (
        lambda d: member(d, "Info", "model_sha").pop("nullable"),
        "type-removed response Info/model_sha null",
        "PATCH",
    ),
    (
        lambda d: schema(d, "FinishReason")["enum"].remove("length"),
        'value-removed response FinishReason "length"',
        "PATCH",
    ),
    (
        lambda d: member(d, "ErrorResponse", "error_type")["x-extensible-enum"].append("new"),
        "known-word-added response ErrorResponse/error_type new",
        "MINOR",
    ),
]
