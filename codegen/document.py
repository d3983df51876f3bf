"""The OpenAPI document as something to walk over: operations, bodies, schemas, each with its JSON pointer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import openapi
from handlers.http.operations import METHODS
from openapi.schema import reachable, to_draft4

JSON = "application/json"
EVENTS = "text/event-stream"
SCHEMAS = "#/components/schemas/"

Node = Mapping[str, Any]


class At(NamedTuple):
    """A node and where it stands."""

    pointer: str
    node: Any


class Content(NamedTuple):
    """One media type of a request (`status` is empty) or of a response."""

    pointer: str
    operation: Operation
    status: str
    media_type: str
    node: Node


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    node: Node

    @property
    def pointer(self) -> str:
        """Return its JSON pointer."""
        return at("#/paths", self.path, self.method)

    @property
    def id(self) -> str:
        """Return its operationId, or method and path where it has none."""
        return str(self.node.get("operationId", f"{self.method} {self.path}"))


class Document:
    """A parsed document; what is resolved through it follows `$ref`."""

    def __init__(self, data: Node) -> None:
        self.data = data
        self.components: Node = data.get("components", {})
        self.schemas: Node = self.components.get("schemas", {})
        self._draft4: dict[str, dict[str, Any]] = {}  # of schemas that are but a reference

    @classmethod
    def load(cls) -> Document:
        """Return the contract that ships with the server."""
        return cls(openapi.load())

    def operations(self) -> Iterator[Operation]:
        """Yield each operation."""
        for path, item in self.data["paths"].items():
            yield from (Operation(method, path, item[method]) for method in METHODS if method in item)

    def resolve(self, node: Any) -> Any:
        """Follow `$ref` until something else stands there."""
        while isinstance(node, Mapping) and "$ref" in node:
            node = self._target(node["$ref"])
        return node

    def requests(self) -> Iterator[Content]:
        """Yield each media type of each request body."""
        for operation in self.operations():
            body = self.resolve(operation.node.get("requestBody", {}))
            for media_type, node in body.get("content", {}).items():
                pointer = at(operation.pointer, "requestBody", "content", media_type)
                yield Content(pointer, operation, "", media_type, node)

    def responses(self) -> Iterator[Content]:
        """Yield each media type of each response; those of shared responses once for each use."""
        for operation in self.operations():
            for status, response in operation.node["responses"].items():
                pointer = response.get("$ref", at(operation.pointer, "responses", status))
                for media_type, node in self.resolve(response).get("content", {}).items():
                    yield Content(at(pointer, "content", media_type), operation, status, media_type, node)

    def request_schemas(self) -> list[str]:
        """Name the component schemas that a request body reaches."""
        names = (
            name
            for body in self.requests()
            for name in reachable(body.node.get("schema", {}), self.components)
        )
        return list(dict.fromkeys(names))

    def walk(self) -> Iterator[At]:
        """Yield each schema of the document, subschemas included, once."""
        for name, schema in self.schemas.items():
            yield from subschemas(at("#/components/schemas", name), schema)
        for holder in self._schema_holders():
            if "schema" in holder.node:
                yield from subschemas(at(holder.pointer, "schema"), holder.node["schema"])

    def draft4(self, schema: Node) -> dict[str, Any]:
        """Return a schema of this document as self-contained JSON Schema."""
        if schema.keys() != {"$ref"}:
            return to_draft4(schema, self.components)
        name = schema["$ref"]
        if name not in self._draft4:
            self._draft4[name] = to_draft4(schema, self.components)
        return self._draft4[name]

    def _schema_holders(self) -> Iterator[At]:
        """Yield media types, headers and parameters."""
        for content in (*self.requests(), *self.responses()):
            if not content.pointer.startswith("#/components/responses/"):  # those come below, once
                yield At(content.pointer, content.node)
        for kind in ("headers", "parameters"):
            for name, node in self.components.get(kind, {}).items():
                yield At(at("#/components", kind, name), node)
        for name, response in self.components.get("responses", {}).items():
            for media_type, node in response.get("content", {}).items():
                yield At(at("#/components/responses", name, "content", media_type), node)
        for operation in self.operations():
            for place, parameter in enumerate(operation.node.get("parameters", ())):
                yield At(at(operation.pointer, "parameters", str(place)), parameter)

    def _target(self, reference: str) -> Any:
        node: Any = self.data
        for part in reference.removeprefix("#/").split("/"):
            node = node[part.replace("~1", "/").replace("~0", "~")]
        return node


def at(pointer: str, *parts: str) -> str:
    """Append parts to a JSON pointer."""
    return "/".join([pointer, *(part.replace("~", "~0").replace("/", "~1") for part in parts)])


def subschemas(pointer: str, schema: Any) -> Iterator[At]:
    """Yield a schema and all schemas inside of it, references not followed."""
    if not isinstance(schema, Mapping):
        return
    yield At(pointer, schema)
    for name, member in schema.get("properties", {}).items():
        yield from subschemas(at(pointer, "properties", name), member)
    for key in ("items", "additionalProperties", "not"):
        yield from subschemas(at(pointer, key), schema.get(key))
    for key in ("allOf", "anyOf", "oneOf"):
        for place, member in enumerate(schema.get(key, ())):
            yield from subschemas(at(pointer, key, str(place)), member)
