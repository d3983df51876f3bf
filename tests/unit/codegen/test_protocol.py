"""What a handler takes and answers is known to mypy, and no table of handlers can be made that lacks one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from codegen.document import Document
from codegen.protocol import protocol_of
from handlers.routes.operations import OPERATIONS
from handlers.routes.protocol import operations

ROOT = Path(__file__).parents[3]
WRONG = Path(__file__).with_name("wrong_handlers.txt")  # not .py: mypy shall find it here alone
OK = {"description": "It."}


def document(**operation: Any) -> Document:
    """Return a document of one operation."""
    return Document({"paths": {"/f": {"post": {"operationId": "f", "responses": {"200": OK}} | operation}}})


def content(media_type: str, schema: Any) -> dict[str, Any]:
    return {"content": {media_type: {"schema": schema}}}


def complaints(text: str) -> dict[int, str]:
    """Return the codes of mypy's errors by line, each once."""
    found: dict[int, str] = {}
    for line, code in re.findall(r"^[^:\n]+:(\d+): error: .*\[([a-z-]+)\]$", text, re.MULTILINE):
        found[int(line)] = code
    return found


@pytest.mark.slow
def test_a_handler_that_leaves_the_contract_fails_type_checking(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    text = WRONG.read_text(encoding="utf-8")
    file = tmp_path / "wrong_handlers.py"
    file.write_text(text, encoding="utf-8")
    line = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-error-summary", str(file)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    marked = re.finditer(r"# error: ([a-z-]+)$", text, re.MULTILINE)
    expected = {text.count("\n", 0, mark.start()) + 1: mark[1] for mark in marked}
    assert complaints(done.stdout) == expected, done.stdout + done.stderr
    assert len(expected) >= 18


def test_the_table_is_not_made_without_each_handler_and_not_with_another() -> None:
    table: dict[str, Any] = dict(OPERATIONS)
    assert operations(**table) == table
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'health'"):
        operations(**{name: function for name, function in table.items() if name != "health"})
    with pytest.raises(TypeError, match="unexpected keyword argument 'wealth'"):
        operations(**table | {"wealth": table["health"]})


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({}, "f: Operation[None, Response]"),
        (
            {"requestBody": content("application/json", {"$ref": "#/components/schemas/A"})},
            "f: Operation[wire.A, Response]",
        ),
        ({"responses": {"200": content("text/plain", {}), "404": OK}}, "f: Operation[None, TextReply]"),
        (
            {"responses": {"200": content("text/event-stream", {"$ref": "#/components/schemas/A"})}},
            "f: Operation[None, EventStream[wire.A]]",
        ),
    ],
)
def test_an_operation_has_a_type(operation: Any, expected: str) -> None:
    assert expected in protocol_of(document(**operation))


@pytest.mark.parametrize(
    ("response", "complaint"),
    [
        (content("text/html", {}), "no reply in handlers/http/replies.py is text/html"),
        (content("application/json", {"type": "object"}), "needs a name in components/schemas"),
    ],
)
def test_what_has_no_type_is_told(response: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        protocol_of(document(responses={"200": response}))
