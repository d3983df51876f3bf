"""Tools that read the document: what they make of it speaks with the server, in OpenAPI 3.0 and 3.1."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codegen.document import JSON, SCHEMAS, Document
from codegen.exchanges import exchanges
from tests.clients.interpreters import run_script
from tests.contract.executing import address
from tests.support import live_server

pytestmark = pytest.mark.slow
VARIABLE = "PARLEY_CLIENT_PYTHON_GENERATORS"
DOCUMENTS = ("/openapi.json", "/openapi-3.1.json")


@pytest.fixture(scope="module")
def python() -> str:
    """Return the interpreter that has the tools."""
    found = os.environ.get(VARIABLE)
    if found is None:
        pytest.skip(f"set {VARIABLE} to an interpreter that has tests/clients/generators.txt")
    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Serve the fake engine, with the limits that the examples are made for."""
    with live_server() as live:
        yield live.base_url


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the examples that any server answers with JSON, and the schemas of both bodies."""
    document = Document.load()
    answers = {
        (content.operation.id, content.media_type): content.node["schema"]
        for content in document.responses()
        if content.status == "200"
    }
    requests = {content.operation.id: content.node["schema"] for content in document.requests()}
    rows = [
        {
            "operation": each.operation.id,
            "path": address(each.operation),
            "body": each.body,
            "request": requests[each.operation.id]["$ref"].removeprefix(SCHEMAS),
            "answer": answers[each.operation.id, JSON]["$ref"].removeprefix(SCHEMAS),
        }
        for each in exchanges(document)
        if each.body is not None and each.media_type == JSON and not each.needs
    ]
    file = tmp_path_factory.mktemp("generated") / "exchanges.json"
    file.write_text(json.dumps(rows), encoding="utf-8")
    return file


def result(python: str, tool: str, url: str, document: str, cases: Path) -> Any:
    done = run_script(python, "generated.py", tool, url, document, str(cases))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    return json.loads(done.stdout)


def how_many(cases: Path, *operations: str) -> int:
    rows = json.loads(cases.read_text(encoding="utf-8"))
    return sum(row["operation"] in operations for row in rows) if operations else len(rows)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_generated_models_take_every_request_and_every_answer(
    document: str, python: str, cases: Path, url: str
) -> None:
    told = result(python, "datamodel-code-generator", url, document, cases)
    assert told["refuses"] == "ValidationError"
    if document == "/openapi.json":  # of 3.0 it overlooks that a required member may be null
        assert set(told["overlooked"]) == {True}
        assert told["held"] > how_many(cases)
    else:
        assert (told["held"], told["overlooked"]) == (2 * how_many(cases), [])


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_generated_client_calls_the_server(document: str, python: str, cases: Path, url: str) -> None:
    told = result(python, "openapi-python-client", url, document, cases)
    assert told["held"] == how_many(cases, "generate", "chat_completions")
    assert told["refuses"]["error_type"] == "validation"
    assert told["info"]["model_id"] == "parley-embedded"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_validator_of_others_agrees_with_the_server(
    document: str, python: str, cases: Path, url: str
) -> None:
    told = result(python, "openapi-core", url, document, cases)
    assert told == {"held": how_many(cases), "refuses": "InvalidRequestBody"}
