"""What pages in a browser may call, and why one may not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

METHODS = ("GET", "POST")
EXPOSED = (
    *("x-request-id", "request-id", "x-ignored-parameters", "retry-after"),
    *("x-compute-type", "x-compute-time", "x-compute-characters", "x-total-time", "x-validation-time"),
    *("x-queue-time", "x-inference-time", "x-time-per-token", "x-prompt-tokens", "x-generated-tokens"),
)
SHOWN = 100  # characters of what a browser asks for


def cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let browsers from `origins` call the application."""
    guarded = Guard(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=("*",),  # OpenAI's client in a browser sends a dozen of its own
        expose_headers=EXPOSED,
    )
    if "*" not in origins:
        return guarded

    async def open_to_all(scope: Scope, receive: Receive, send: Send) -> None:
        browser = scope["type"] == "http" and any(name == b"origin" for name, _ in scope["headers"])
        await (guarded if browser else app)(scope, receive, send)

    return open_to_all


class Guard(CORSMiddleware):
    """Answers a browser's question whether a page may call, with the reason if it may not."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Return the answer to a question."""
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        headers = {name: value for name, value in answer.headers.items() if not name.startswith("content-")}
        told = f"Disallowed CORS request: {'; '.join(self._reasons(request_headers))}"
        return PlainTextResponse(told, answer.status_code, headers)

    def _reasons(self, asked: Headers) -> Iterator[str]:
        origin, method = asked["origin"], asked["access-control-request-method"]
        if not self.is_allowed_origin(origin):
            yield f"--cors-allow-origin names no origin {_quoted(origin)}: add it there"
        if method not in METHODS:
            yield f"the method must be one of {', '.join(METHODS)}. Given: {_quoted(method)}"
        if "access-control-request-private-network" in asked:
            yield "pages of public networks may not call a private one: serve the page from this network"


def _quoted(text: str) -> str:
    return repr(text[:SHOWN] + "…" if len(text) > SHOWN else text)
