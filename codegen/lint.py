"""The contract's own rules, one function each; what they find says where and what to do.

They hold what openapi-spec-validator does not look at: that examples are true, that operations document all
their errors, that nullable references are written the one way that works everywhere, that members of requests
say what becomes of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from jsonschema import Draft4Validator
from openapi_spec_validator import OpenAPIV30SpecValidator

from codegen import examples, exchanges
from codegen.document import EVENTS, SCHEMAS, Document, Node, Operation, at
from handlers.http.errors import RESPONSES
from handlers.http.message_errors import speaks_messages, status_of
from handlers.http.support import SUPPORT
from handlers.settings.table import SETTINGS

Finding = tuple[str, str]  # JSON pointer, what to do
Rule = Callable[[Document], Iterator[Finding]]

NULL: Node = {"type": "object", "nullable": True, "enum": [None]}
ERROR = {"error", "error_type"}
SETTING_NAMES = {row.attribute for row in SETTINGS}
DATA = ("example", "value", "x-neutral", "x-error", "x-excludes")  # hold data, no structure
TEMPLATE = re.compile(r"\{\{|\{%|\{#")


class Problem(NamedTuple):
    """A rule that is broken."""

    rule: str
    pointer: str
    message: str

    def __str__(self) -> str:
        return f"{self.pointer}\n  {self.rule}: {self.message}"


def lint(document: Document) -> list[Problem]:
    """Check every rule; a document that is not even OpenAPI is checked no further."""
    broken = [
        Problem("specification", *finding) for finding in (*references(document), *specification(document))
    ]
    if broken:
        return broken
    return [Problem(rule.__name__, *finding) for rule in RULES for finding in rule(document)]


def references(document: Document) -> Iterator[Finding]:
    """Every $ref leads somewhere."""
    for pointer, node in _nodes("#", document.data):
        target = node.get("$ref")
        if isinstance(target, str) and not _exists(document, target):
            yield pointer, f"{target} does not exist: add it, or correct the reference"


def specification(document: Document) -> Iterator[Finding]:
    """openapi-spec-validator accepts the document."""
    for error in OpenAPIV30SpecValidator(dict(document.data)).iter_errors():
        yield at("#", *map(str, error.absolute_path)), error.message[:300]


def operations_named(document: Document) -> Iterator[Finding]:
    """Each operation has an operationId that a function can have."""
    for operation in document.operations():
        name = operation.node.get("operationId", "")
        if not name.isidentifier():
            yield operation.pointer, f"operationId is {name!r}: it names the handler, write an identifier"


def described(document: Document) -> Iterator[Finding]:
    """Operations, tags, parameters, headers, schemas and all properties have a description."""
    for operation in document.operations():
        if not (operation.node.get("summary") and operation.node.get("description")):
            yield operation.pointer, "write a summary and a description: they are the documentation"
    for name, schema in document.schemas.items():
        if not schema.get("description"):
            yield at("#/components/schemas", name), "write a description"
    for pointer, schema in document.walk():
        for name, member in schema.get("properties", {}).items():
            if not (member.get("description") or document.resolve(member).get("description")):
                yield (
                    at(pointer, "properties", name),
                    "write a description: what it does, what null and absence mean",
                )


def tags_declared(document: Document) -> Iterator[Finding]:
    """Operations have tags, and the document describes each."""
    declared = {tag["name"] for tag in document.data.get("tags", ()) if tag.get("description")}
    for operation in document.operations():
        missing = set(operation.node.get("tags", ())) - declared
        if missing or not operation.node.get("tags"):
            yield (
                operation.pointer,
                f"tags: describe {sorted(missing)} in #/tags, or use those: {sorted(declared)}",
            )


def components_used(document: Document) -> Iterator[Finding]:
    """No schema, response or header that nothing refers to."""
    used = {node["$ref"] for _, node in _nodes("#", document.data) if isinstance(node.get("$ref"), str)}
    used |= {SCHEMAS + name for stream in examples.streams(document) for name in (stream.event, stream.error)}
    for kind in ("schemas", "responses", "headers"):
        for name in document.components.get(kind, {}):
            pointer = at("#/components", kind, name)
            if pointer not in used:
                yield pointer, "nothing refers to it: remove it"


def errors_documented(document: Document) -> Iterator[Finding]:
    """Each operation documents all statuses that it can end in."""
    for operation in document.operations():
        missing = sorted(_statuses(document, operation) - set(operation.node["responses"]))
        if missing:
            yield at(operation.pointer, "responses"), f"document {', '.join(missing)}: it can answer so"


def secured(document: Document) -> Iterator[Finding]:
    """Security schemes exist, every POST wants one, and none is optional by accident."""
    schemes = document.components.get("securitySchemes", {})
    for operation in document.operations():
        wanted = operation.node.get("security", document.data.get("security", []))
        for name in (name for requirement in wanted for name in requirement):
            if name not in schemes:
                yield at(operation.pointer, "security"), f"{name} is not in #/components/securitySchemes"
        if operation.method == "post" and (not wanted or {} in wanted):
            yield at(operation.pointer, "security"), "a POST spends computation: it must want the API key"


def named_requests(document: Document) -> Iterator[Finding]:
    """Request schemas stand in components, where validators look into them."""
    for body in document.requests():
        if "$ref" not in body.node.get("schema", {}):
            yield at(body.pointer, "schema"), "move the schema to #/components/schemas and refer to it"


def open_requests(document: Document) -> Iterator[Finding]:
    """Requests may have members that we do not know, and no default is put into them."""
    for pointer, schema in _request_schemas(document):
        if schema.get("additionalProperties") is False:
            yield (
                pointer,
                "remove additionalProperties: clients send members that we do not know; they are reported",
            )
        if "default" in schema:
            yield (
                pointer,
                "write it as x-default: a default that is injected hides that the member was absent",
            )


def bounded_integers(document: Document) -> Iterator[Finding]:
    """Integers have the bounds of their wire type."""
    for pointer, schema in document.walk():
        if schema.get("type") == "integer" and not {"minimum", "maximum"} <= schema.keys():
            yield pointer, "write minimum and maximum, those of the wire type (uint32: 0, 4294967295)"


def nullable_references(document: Document) -> Iterator[Finding]:
    """One way to write what may be null: beside `type`, or for a reference as one of two in anyOf."""
    for pointer, schema in document.walk():
        if "$ref" in schema and len(schema) > 1:
            yield pointer, f"nothing may stand beside $ref; if it is nullable, write anyOf: [$ref, {NULL}]"
        if schema.get("nullable") and "type" not in schema:
            yield (
                pointer,
                "nullable stands only beside type; for a union write anyOf: [$ref, null] as for references",
            )
        if schema == NULL and not re.search(r"/anyOf/1$", pointer):
            yield pointer, "the null object is the second of two in anyOf, after the $ref"
        union = schema.get("anyOf", ())
        if NULL in union and not (len(union) == 2 and "$ref" in union[0]):
            yield pointer, "name the union in #/components/schemas: anyOf: [$ref, null] has exactly these two"


def required_exist(document: Document) -> Iterator[Finding]:
    """What is required is also a property."""
    for pointer, schema in document.walk():
        for name in schema.get("required", ()):
            if name not in schema.get("properties", {}):
                yield at(pointer, "required"), f"{name!r} is no property: add it, or correct the name"


def support_told(document: Document) -> Iterator[Finding]:
    """Each member of a request says what becomes of it."""
    for pointer, schema in _request_schemas(document):
        for name, member in schema.get("properties", {}).items():
            problem = (
                _support(document, member) or _exclusions(schema, member) or _without_effect(document, member)
            )
            if problem:
                yield at(pointer, "properties", name), problem


def no_templates(document: Document) -> Iterator[Finding]:
    """Nothing in it looks like Jinja, which connexion applies to documents that it reads from a file."""
    for pointer, text in _texts("#", document.data):
        if TEMPLATE.search(text):
            yield pointer, "write it without '{{', '{%' and '{#'"


def _support(document: Document, member: Node) -> str:
    told: Node = {**document.resolve(member), **member}
    support = told.get("x-support")
    if support not in SUPPORT:
        return f"x-support is {support!r}: say which of {', '.join(SUPPORT)}"
    if support == "refused" and not told.get("x-reason"):
        return "it is refused: say why in x-reason"
    if support in ("honoured", "descriptive") and "x-neutral" in told and "x-excludes" not in told:
        return f"it is {support} and excludes nothing: x-neutral means nothing"
    if support == "descriptive" and told.get("type") != "string":
        return "it is descriptive, and no string: what is no name may have an effect; say which"
    if "x-error" in told and (support not in ("later", "refused") or told["x-error"].keys() != ERROR):
        return "x-error is the error and error_type that a refusal is answered with"
    validator = Draft4Validator(document.draft4(member))
    wrong = [value for value in told.get("x-neutral", ()) if not validator.is_valid(value)]
    return f"x-neutral has {wrong}, which the schema refuses" if wrong else ""


def _exclusions(schema: Node, member: Node) -> str:
    unless = member.get("x-excludes-unless")
    if unless is not None and ("x-excludes" not in member or unless not in SETTING_NAMES):
        return f"x-excludes-unless is {unless!r}: it names, beside x-excludes, a setting"
    for other, error in member.get("x-excludes", {}).items():
        if other not in schema["properties"]:
            return f"x-excludes names {other!r}, which is no member beside it"
        if error.keys() != ERROR:
            return "x-excludes gives the error and error_type that both together are answered with"
    return ""


def _without_effect(document: Document, member: Node) -> str:
    names = member.get("x-without-effect")
    if names is None:
        return ""
    below: dict[str, Node] = {}
    for owner in _objects(document, member):
        below.update(owner["properties"])
    wrong = [name for name in names if document.resolve(below.get(name, {})).get("x-support") != "honoured"]
    if wrong or not names:
        return f"x-without-effect has {wrong}: name members of what stands below that are honoured elsewhere"
    return ""


def _objects(document: Document, schema: Node) -> Iterator[Node]:
    """Yield the objects with properties that a value is, or that its items are."""
    schema = document.resolve(schema)
    if "properties" in schema:
        yield schema
    for part in (*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())):
        yield from _objects(document, part)


def _statuses(document: Document, operation: Operation) -> set[str]:
    statuses = {"200", "500"}
    if "requestBody" in operation.node:
        statuses |= {"400", "413", "415", "422", "503"}
    if operation.node.get("security", document.data.get("security")):
        statuses |= {"401"}
    if any(not parameter.get("x-echoed") for parameter in operation.node.get("parameters", ())):
        statuses |= {"404"}  # any value of an echoed one is right
    success = document.resolve(operation.node["responses"].get("200", {}))
    if "x-compute-type" in success.get("headers", {}) or EVENTS in success.get("content", {}):
        statuses |= {"424", "429"}  # it generates
    if operation.path.startswith(RESPONSES):  # OpenAI's alone
        statuses -= {"424"}
    if speaks_messages(operation.path):
        told = {status_of(int(status), everybodys=each) for status in statuses for each in (False, True)}
        return {f"{status}" for status in told}
    return statuses


def _request_schemas(document: Document) -> Iterator[tuple[str, Node]]:
    """Yield the schemas that request bodies reach, with their subschemas."""
    names = document.request_schemas()
    for pointer, schema in document.walk():
        if pointer.startswith(SCHEMAS) and pointer.removeprefix(SCHEMAS).split("/")[0] in names:
            yield pointer, schema


def _nodes(pointer: str, node: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each object of the document, but not what examples hold: that is data."""
    if isinstance(node, Mapping):
        yield pointer, node
        for key, child in node.items():
            if key not in DATA or pointer.endswith("/properties"):
                yield from _nodes(at(pointer, str(key)), child)
    elif isinstance(node, list):
        for place, child in enumerate(node):
            yield from _nodes(at(pointer, str(place)), child)


def _texts(pointer: str, node: Any) -> Iterator[Finding]:
    """Yield each key and each string, with its pointer."""
    if isinstance(node, Mapping):
        for key, child in node.items():
            yield at(pointer, str(key)), str(key)
            yield from _texts(at(pointer, str(key)), child)
    elif isinstance(node, list):
        for place, child in enumerate(node):
            yield from _texts(at(pointer, str(place)), child)
    elif isinstance(node, str):
        yield pointer, node


def _exists(document: Document, reference: str) -> bool:
    try:
        document.resolve({"$ref": reference})
    except (KeyError, TypeError):
        return False
    return reference.startswith("#/")


RULES: tuple[Rule, ...] = (
    operations_named,
    described,
    tags_declared,
    components_used,
    errors_documented,
    secured,
    named_requests,
    open_requests,
    bounded_integers,
    nullable_references,
    required_exist,
    support_told,
    no_templates,
    examples.present,
    examples.valid,
    examples.outside_schemas,
    examples.streams_described,
    examples.transcripts_valid,
    exchanges.answered,
)
