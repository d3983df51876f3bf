"""Errors as Anthropic's clients read them: their words and statuses, on the routes of its Messages."""

from __future__ import annotations

from typing import Any

MESSAGES = "/v1/messages"
OVERLOADED = 529  # Anthropic's status of a server that is full, whoever asks
STATUSES = {422: 400, 424: 500}  # ours, and Anthropic's in their place
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    OVERLOADED: "overloaded_error",
}
HOW = ": send the key as `x-api-key`, or as `Authorization: Bearer`"


def speaks_messages(path: str) -> bool:
    """Return whether a path is one of those whose errors are Anthropic's."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def status_of(status: int, *, everybodys: bool) -> int:
    """Return Anthropic's status for one of ours; `everybodys`: it isn't about the caller."""
    if status == 429 and everybodys:
        return OVERLOADED
    return STATUSES.get(status, status)


def kind_of(status: int) -> str:
    """Return Anthropic's word for the kind of error that has one of its statuses."""
    return KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")


def message_body(
    status: int, message: str, error_type: str, *, param: str | None, request_id: str
) -> dict[str, Any]:
    """Return the body of an error with one of Anthropic's statuses; in a stream it is the last event."""
    told = message + HOW if status == 401 else message
    body = {
        "type": "error",
        "error": {"type": kind_of(status), "message": told, "param": param},
        "error_type": error_type,
    }
    return {**body, "request_id": request_id} if request_id else body
