"""What each operation takes and answers, as a function that the table of handlers is made by.

A handler that takes another body, answers with another, lacks or is superfluous is then an error of mypy's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from codegen.document import EVENTS, JSON, Document, Node, Operation
from codegen.wire_types import INDENT, MARK, WIDTH, expression

TARGET = Path(__file__).parents[1] / "handlers" / "routes" / "protocol.py"
HEAD = f'''{MARK}
"""What each operation of the contract takes and answers: who answers it is checked by mypy."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from handlers.http.call import Operation
from handlers.http.replies import EventStream, JsonReply, TextReply
from handlers.wire import types as wire


def operations(
    *,
'''
TAIL = '''\
) -> dict[str, Operation[Any, Response]]:
    """Return the functions by operationId: one for each operation of the contract, and no other."""
    return {
'''
TEXT = "text/plain"
NO_BODY = "None"


def render() -> dict[Path, str]:
    """Return the text of the module."""
    return {TARGET: protocol_of(Document.load())}


def protocol_of(document: Document) -> str:
    """Return the module; raise ValueError for a media type that no reply is made for."""
    rows = [(operation.id, _function(document, operation)) for operation in document.operations()]
    parameters = "".join(f"{_parameter(name, *kinds)},\n" for name, kinds in rows)
    members = "".join(f'{INDENT * 2}"{name}": {name},\n' for name, _ in rows)
    return f"{HEAD}{parameters}{TAIL}{members}{INDENT}}}\n"


def _function(document: Document, operation: Operation) -> tuple[str, str]:
    """Return the type of an operation's body and that of its replies."""
    body = document.resolve(operation.node.get("requestBody", {}))
    taken = _named(body["content"][JSON]["schema"]) if body else NO_BODY
    replies = [
        reply
        for status, response in operation.node["responses"].items()
        if status.startswith("2")
        for reply in _replies(document.resolve(response), operation)
    ]
    return taken, " | ".join(dict.fromkeys(replies))


def _replies(response: Node, operation: Operation) -> Iterator[str]:
    content = response.get("content", {})
    if not content:
        yield "Response"
    for media_type, node in content.items():
        if media_type == JSON:
            yield f"JsonReply[{_named(node['schema'])}]"
        elif media_type == EVENTS:
            yield f"EventStream[{_named(node['schema'])}]"
        elif media_type == TEXT:
            yield "TextReply"
        else:
            raise ValueError(f"{operation.id}: no reply in handlers/http/replies.py is {media_type}: add one")


def _named(schema: Node) -> str:
    """Return a schema's type by its name in the module of types."""
    if "$ref" not in schema:
        raise ValueError(f"a body needs a name in components/schemas: {dict(schema)}")
    return f"wire.{expression(schema)}"


def _parameter(name: str, taken: str, replies: str) -> str:
    line = f"{INDENT}{name}: Operation[{taken}, {replies}]"
    if len(line) < WIDTH:
        return line
    return f"{INDENT}{name}: Operation[\n{INDENT * 2}{taken},\n{INDENT * 2}{replies},\n{INDENT}]"
