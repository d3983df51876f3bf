"""What the contract promises of one operation, compiled so that exchanges can be held against it.

Nothing of the server's own validation is used here: these are the eyes that look at it from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jsonschema_rs
from jsonschema import Draft4Validator

from codegen.document import EVENTS, JSON, Document, Node, Operation
from handlers.http.message_errors import speaks_messages
from handlers.http.responses import OPTIONAL

BEARER = "bearerAuth"
UNSUPPORTED = ("refused", "later")
NOT_DECLARED = {404: "not_found", 405: "method_not_allowed"}  # of any route, in the form of ErrorResponse


@dataclass(frozen=True, slots=True)
class Shape:
    """A schema, compiled."""

    fits: Callable[[Any], bool]
    explain: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One form that a stream may have."""

    name: str  # of the event's schema
    event: Shape
    error: Shape
    terminator: str | None
    named_by: str | None  # the member that the `event:` line of each event repeats


@dataclass(frozen=True, slots=True)
class Answer:
    """What is promised of one status."""

    bodies: Mapping[str, Shape | None]  # by media type; None: any text of that type; empty: no body
    headers: Mapping[str, tuple[str, ...]]  # those always sent: with which media types
    may_be_empty: bool = False  # for some senders


@dataclass(frozen=True, slots=True)
class Promise:
    """What is promised of one operation."""

    id: str
    method: str  # upper case
    path: str
    secured: bool
    answers: Mapping[int, Answer]
    error: Shape
    error_types: frozenset[str]
    whole_errors: frozenset[tuple[str, str]]  # that have no request id: message and type
    body: Shape | None  # of the request; None: takes none
    known: frozenset[str]  # members of the request that the document names, at the top
    unsupported: frozenset[str] = frozenset()  # members of requests, anywhere, that are refused
    dialects: tuple[Dialect, ...] = ()
    changes_server: bool = False  # what fits may be refused, for what there is, with 400
    plain: bool = field(default=True)  # there is an answer that isn't a stream

    @property
    def invalid(self) -> int:
        """Return the status of a body of the wrong shape, or with a value that can't be."""
        return 422 if 422 in self.answers else 400

    @property
    def as_anthropic(self) -> bool:
        """Return whether errors are Anthropic's."""
        return speaks_messages(self.path)


def promises(document: Document) -> dict[str, Promise]:
    """Return the promise of each operation, by operationId."""
    found = {operation.id: _promise(document, operation) for operation in document.operations()}
    return {name: _without_others_headers(document, each, found) for name, each in found.items()}


def shape(document: Document, schema: Node, *, closed: bool = False) -> Shape:
    """Compile a schema of the document; `closed`: its objects have no members but those that it names."""
    draft4 = document.draft4(schema)
    if closed:
        draft4 = _closed(draft4)
    verdict = jsonschema_rs.Draft4Validator(draft4).is_valid
    return Shape(verdict, lambda value: _first_misfit(draft4, value))


def whole_errors(document: Document) -> frozenset[tuple[str, str]]:
    """Return the errors that the document gives whole, by `x-error` and `x-excludes`."""
    members = [member for schema in document.walk() for member in schema.node.get("properties", {}).values()]
    errors = [member["x-error"] for member in members if "x-error" in member]
    errors += [error for member in members for error in member.get("x-excludes", {}).values()]
    return frozenset((error["error"], error["error_type"]) for error in errors)


def request_schemas(document: Document, schema: Node) -> Iterator[Node]:
    """Yield the object schemas that a request body may be of."""
    resolved = document.resolve(schema)
    if "properties" in resolved:
        yield resolved
    for branch in resolved.get("anyOf", ()):
        yield from request_schemas(document, branch)


def _promise(document: Document, operation: Operation) -> Promise:
    node = operation.node
    known = document.schemas["ErrorResponse"]
    error = document.schemas["MessageError"] if speaks_messages(operation.path) else known
    ok = document.resolve(node["responses"]["200"]).get("content", {})
    request = document.resolve(node.get("requestBody", {})).get("content", {}).get(JSON)
    security = node.get("security", document.data.get("security", ()))
    named = request_schemas(document, request["schema"]) if request else ()
    return Promise(
        id=operation.id,
        method=operation.method.upper(),
        path=operation.path,
        secured=any(BEARER in requirement for requirement in security),
        answers={int(status): _answer(document, each) for status, each in node["responses"].items()},
        error=shape(document, error, closed=True),
        error_types=frozenset(known["properties"]["error_type"]["x-extensible-enum"]),
        whole_errors=whole_errors(document),
        body=shape(document, request["schema"]) if request else None,
        known=frozenset(name for schema in named for name in schema["properties"]),
        unsupported=_unsupported(document),
        dialects=tuple(_dialect(document, form) for form in ok.get(EVENTS, {}).get("x-sse", ())),
        changes_server=bool(node.get("x-changes-server")),
        plain=not ok or any(kind != EVENTS for kind in ok),
    )


def _unsupported(document: Document) -> frozenset[str]:
    holders = (schema.node.get("properties", {}) for schema in document.walk())
    return frozenset(
        name for members in holders for name in members if members[name].get("x-support") in UNSUPPORTED
    )


def _without_others_headers(document: Document, union: Promise, found: Mapping[str, Promise]) -> Promise:
    """Leave the headers that only some of the operations send whose bodies a union is made of."""
    whose = {str(each.node["schema"].get("$ref")): each.operation.id for each in document.requests()}
    bodies = [each.node["schema"] for each in document.requests() if each.operation.id == union.id]
    branches = [branch for body in bodies for branch in document.resolve(body).get("anyOf", ())]
    names = [branch.get("$ref") for branch in branches]
    others = [found[whose[name]].answers[200].headers for name in names if name in whose]
    if not others:
        return union
    ok = union.answers[200]
    kept = {name: kinds for name, kinds in ok.headers.items() if all(name in each for each in others)}
    return replace(union, answers={**union.answers, 200: replace(ok, headers=kept)})


def _answer(document: Document, response: Node) -> Answer:
    resolved = document.resolve(response)
    headers = {name: document.resolve(node) for name, node in resolved.get("headers", {}).items()}
    return Answer(
        bodies={
            media_type: shape(document, node["schema"], closed=True) if media_type == JSON else None
            for media_type, node in resolved.get("content", {}).items()
        },
        headers={name: tuple(node["x-sent-with"]) for name, node in headers.items() if "x-sent-with" in node},
        may_be_empty=resolved.get(OPTIONAL, False),
    )


def _dialect(document: Document, form: Node) -> Dialect:
    event, error = (shape(document, document.schemas[form[key]], closed=True) for key in ("event", "error"))
    return Dialect(form["event"], event, error, form["terminator"], form.get("named_by"))


def _closed(schema: Any) -> Any:
    """Return a schema whose objects have no members but those that it names."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and isinstance(schema.get("type"), str | list):
        closed.setdefault("additionalProperties", False)
    return closed


def _first_misfit(schema: Node, value: Any) -> str:
    error = next(iter(Draft4Validator(schema).iter_errors(value)), None)
    if error is None:
        return "the validators disagree"
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    return f"{where.lstrip('.') or 'body'}: {error.message[:300]}"
