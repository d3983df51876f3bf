"""The documents that clients were made from, read into one form: JSON schemas by operation.

They lie outside of the repository, in a directory that the caller names. None of them is valid by its own
standard, so reading them is repairing them: bounds in the style of 3.1 where one says 3.0, `nullable` where
one says 3.1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from codegen.document import EVENTS, JSON
from handlers.http.operations import METHODS
from openapi.schema import to_draft4
from openapi.yamlload import parse

Schema = Mapping[str, Any]
Key = tuple[str, str]  # method in capitals, path


@dataclass(frozen=True, slots=True)
class Reference:
    """One document: what it lets clients send, and what it lets them expect."""

    name: str
    requests: dict[Key, Schema] = field(default_factory=dict)
    responses: dict[tuple[Key, str, str], Schema] = field(
        default_factory=dict
    )  # operation, status, media type
    statuses: dict[Key, set[str]] = field(default_factory=dict)
    headers: dict[Key, set[str]] = field(default_factory=dict)  # of the 200, in small letters
    examples: dict[Key, list[Any]] = field(default_factory=dict)  # of the request
    # the same schemas with all their keywords, as OpenAPI 3.0 would write them
    schemas: dict[str, Schema] = field(default_factory=dict)
    written: dict[tuple[Key, str, str], Schema] = field(default_factory=dict)  # the request's status is empty


@cache
def read(directory: Path) -> tuple[Reference, ...]:
    """Read all documents of a directory; FileNotFoundError if one is missing."""
    return tuple(reader(directory / file, name) for name, file, reader in DOCUMENTS)


def _openapi(path: Path, name: str) -> Reference:
    """Read a document whose paths are ours."""
    document = parse(path.read_text(encoding="utf-8"))
    reference = Reference(name, schemas=_schemas(document))
    for address, item in document["paths"].items():
        for method in (method for method in METHODS if method in item):
            _operation(reference, document, (method.upper(), address), item[method])
    return reference


def _openai(path: Path, name: str) -> Reference:
    """Read OpenAI's: its paths lack `/v1`, and this excerpt its request bodies."""
    document = parse(path.read_text(encoding="utf-8"))
    for address, schema in OPENAI_REQUESTS.items():
        content = {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
        document["paths"][address]["post"]["requestBody"] = {"content": content}
    reference = Reference(name, schemas=_schemas(document))
    for address, item in document["paths"].items():
        for method in item:
            _operation(reference, document, (method.upper(), "/v1" + address), item[method])
    return reference


def _tasks(path: Path, name: str) -> Reference:
    """Read the Hub's task schemas; the file named is the request's, the others lie beside it."""
    reference = Reference(name)
    operations = TASKS[name]
    files = {
        kind: path.with_name(path.name.replace("input", kind))
        for kind in ("input", "output", "stream_output")
    }
    documents = {kind: json.loads(file.read_text(encoding="utf-8")) for kind, file in files.items()}
    schemas = {kind: _json_schema(document) for kind, document in documents.items()}
    reference.requests.update(dict.fromkeys(operations["input"], schemas["input"]))
    reference.responses.update({(key, "200", JSON): schemas["output"] for key in operations["output"]})
    reference.responses.update(
        {(key, "200", EVENTS): schemas["stream_output"] for key in operations["stream"]}
    )
    for kind, status, media_type, keys in (
        ("input", "", JSON, operations["input"]),
        ("output", "200", JSON, operations["output"]),
        ("stream_output", "200", EVENTS, operations["stream"]),
    ):
        # each of the three has its own definitions, some of the same names
        names = {name: f"{kind}-{name}" for name in documents[kind].get("$defs", {})}
        for name, node in documents[kind].get("$defs", {}).items():
            reference.schemas[names[name]] = _renamed(_repaired(node), names)
        written = _renamed(_repaired(documents[kind]), names)
        reference.written.update({(key, status, media_type): written for key in keys})
    return reference


def _operation(reference: Reference, document: Any, key: Key, operation: Any) -> None:
    body = operation.get("requestBody", {}).get("content", {}).get(JSON, {})
    if "schema" in body:
        reference.requests[key] = _converted(body["schema"], document)
        reference.written[key, "", JSON] = _repaired(body["schema"])
        reference.examples[key] = [example["value"] for example in body.get("examples", {}).values()]
    reference.statuses[key] = set(operation["responses"])
    for status, response in operation["responses"].items():
        if status == "200":
            reference.headers[key] = {header.lower() for header in response.get("headers", {})}
        for media_type, content in response.get("content", {}).items():
            media_type = JSON if status != "200" else media_type  # TGI's document has errors as event streams
            reference.responses[key, status, media_type] = _converted(content["schema"], document)
            reference.written[key, status, media_type] = _repaired(content["schema"])


def _converted(schema: Any, document: Any) -> Schema:
    return to_draft4(_repaired(schema), {"schemas": _schemas(document)})


def _schemas(document: Any) -> dict[str, Schema]:
    return {name: _repaired(member) for name, member in document["components"]["schemas"].items()}


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    """Return a schema whose references lead to the new names."""
    if isinstance(node, Mapping):
        reference = node.get("$ref")
        if isinstance(reference, str):
            place, _, name = reference.rpartition("/")
            node = {**node, "$ref": f"{place}/{names.get(name, name)}"}
        return {key: _renamed(value, names) for key, value in node.items()}
    return [_renamed(value, names) for value in node] if isinstance(node, list) else node


def _json_schema(document: Any) -> Schema:
    schemas = {name: _repaired(member) for name, member in document.get("$defs", {}).items()}
    return to_draft4(_repaired(document), {"schemas": schemas})


def _repaired(schema: Any) -> Any:
    """Return a schema as OpenAPI 3.0 would write it."""
    if not isinstance(schema, Mapping):
        return schema
    out = {key: _child(key, value) for key, value in schema.items()}
    if "$ref" in out:
        out["$ref"] = out["$ref"].replace("#/$defs/", "#/components/schemas/")
    if "const" in out:
        out["enum"] = [out.pop("const")]
    for key, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(out.get(key), int | float) and not isinstance(out[key], bool):
            out[bound], out[key] = out[key], True
    return out


def _child(key: str, value: Any) -> Any:
    if key == "properties":
        return {name: _repaired(member) for name, member in value.items()}
    if key in ("allOf", "anyOf", "oneOf"):
        return [_repaired(member) for member in value]
    return _repaired(value) if key in ("items", "additionalProperties", "not") else value


OPENAI_REQUESTS = {
    "/chat/completions": "CreateChatCompletionRequest",
    "/completions": "CreateCompletionRequest",
}

CHAT = ("POST", "/v1/chat/completions")
ROOT, GENERATE, STREAM = ("POST", "/"), ("POST", "/generate"), ("POST", "/generate_stream")
TASKS: dict[str, dict[str, list[Key]]] = {
    "hub-chat-completion": {"input": [CHAT], "output": [CHAT], "stream": [CHAT]},
    "hub-text-generation": {"input": [ROOT, GENERATE], "output": [GENERATE], "stream": [ROOT, STREAM]},
}

Reader = Callable[[Path, str], Reference]
DOCUMENTS: tuple[tuple[str, str, Reader], ...] = (
    ("tgi-3.3.6", "tgi-3.3.6.openapi.json", _openapi),
    ("tgi-0.5.0", "tgi-0.5.0.openapi.json", _openapi),
    ("api-evangelist", "api-evangelist-tgi.yml", _openapi),
    ("hub-chat-completion", "hf-tasks-chat-completion-input.json", _tasks),
    ("hub-text-generation", "hf-tasks-text-generation-input.json", _tasks),
    ("openai", "openai-subset.json", _openai),
)
