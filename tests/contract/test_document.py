"""The contract is valid, keeps its own rules, and each rule notices when it is broken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft4Validator
from openapi_spec_validator import validate
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import openapi
from codegen.document import EVENTS, Document
from codegen.examples import media_examples, read_transcript
from codegen.lint import RULES, lint, references, specification
from openapi.schema import to_draft4

Break = Callable[[Any], None]
DOCUMENT = openapi.load()


def test_the_document_is_openapi() -> None:
    validate(openapi.load())


def test_the_document_keeps_all_rules() -> None:
    assert lint(Document.load()) == []


def test_two_loads_share_nothing() -> None:
    openapi.load()["paths"].clear()
    assert openapi.load()["paths"]


# --- each rule, seeded with what it forbids ---------------------------------------------------


def _generate(document: Any) -> Any:
    return document["paths"]["/generate"]["post"]


def _schemas(document: Any) -> Any:
    return document["components"]["schemas"]


def _events(document: Any) -> Any:
    return document["paths"]["/generate_stream"]["post"]["responses"]["200"]["content"][EVENTS]


def _set(holder: Callable[[Any], Any], key: str, value: Any) -> Break:
    def breaking(document: Any) -> None:
        holder(document)[key] = value

    return breaking


def _drop(holder: Callable[[Any], Any], key: str) -> Break:
    def breaking(document: Any) -> None:
        del holder(document)[key]

    return breaking


def _parameter(name: str) -> Callable[[Any], Any]:
    return lambda document: _schemas(document)["GenerateParameters"]["properties"][name]


def _body(document: Any) -> Any:
    return _generate(document)["requestBody"]["content"]["application/json"]


def _answer(document: Any) -> Any:
    return _generate(document)["responses"]["200"]["content"]["application/json"]


def _label(document: Any) -> Any:
    return _schemas(document)["JsonSchemaConfig"]["properties"]["name"]


def _form(document: Any) -> Any:
    return _schemas(document)["ChatRequest"]["properties"]["response_format"]


def _instances(document: Any) -> Any:
    return _schemas(document)["VertexRequest"]["properties"]["instances"]


def _details(document: Any) -> Any:
    return _schemas(document)["StreamResponse"]["properties"]["details"]


ERROR = {"error": "No.", "error_type": "validation"}

BROKEN: list[tuple[str, str, Break]] = [
    ("specification", "no version", _drop(lambda d: d["info"], "version")),
    (
        "specification",
        "reference to nothing",
        _set(_body, "schema", {"$ref": "#/components/schemas/Nothing"}),
    ),
    ("specification", "one operationId twice", _set(_generate, "operationId", "health")),
    ("operations_named", "no operationId", _drop(_generate, "operationId")),
    ("operations_named", "no identifier", _set(_generate, "operationId", "handlers.routes.generate")),
    ("described", "operation", _drop(_generate, "description")),
    ("described", "schema", _drop(lambda d: _schemas(d)["Token"], "description")),
    ("described", "property", _drop(_parameter("top_k"), "description")),
    ("tags_declared", "unknown tag", _set(_generate, "tags", ["Elsewhere"])),
    ("tags_declared", "no tag", _set(_generate, "tags", [])),
    ("components_used", "schema", _set(_schemas, "Spare", {"type": "string", "description": "Unused."})),
    ("errors_documented", "424", _drop(lambda d: _generate(d)["responses"], "424")),
    ("errors_documented", "401", _drop(lambda d: d["paths"]["/tokenize"]["post"]["responses"], "401")),
    (
        "errors_documented",
        "404",
        _drop(lambda d: d["paths"]["/v1/models/{model}"]["get"]["responses"], "404"),
    ),
    (
        "errors_documented",
        "404 where not any value is right",
        _drop(lambda d: d["paths"]["/v2/models/{name}"]["get"]["parameters"][0], "x-echoed"),
    ),
    ("secured", "open", _set(_generate, "security", [])),
    ("secured", "optional", _set(_generate, "security", [{}, {"bearerAuth": []}])),
    ("secured", "unknown scheme", _set(_generate, "security", [{"basicAuth": []}])),
    ("named_requests", "inline", _set(_body, "schema", {"type": "object", "description": "Inline."})),
    (
        "open_requests",
        "closed",
        _set(lambda d: _schemas(d)["GenerateRequest"], "additionalProperties", False),
    ),
    ("open_requests", "default", _set(_parameter("do_sample"), "default", False)),
    ("bounded_integers", "no maximum", _drop(_parameter("top_k"), "maximum")),
    (
        "bounded_integers",
        "header",
        _drop(lambda d: d["components"]["headers"]["x-total-time"]["schema"], "minimum"),
    ),
    (
        "nullable_references",
        "beside $ref",
        _set(_events, "schema", {"$ref": "#/components/schemas/GenerateStreamEvent", "nullable": True}),
    ),
    ("nullable_references", "beside anyOf", _set(_details, "nullable", True)),
    ("nullable_references", "three", lambda d: _details(d)["anyOf"].insert(0, {"type": "string"})),
    ("required_exist", "misspelt", _set(lambda d: _schemas(d)["Token"], "required", ["identifier"])),
    ("support_told", "silent", _drop(_parameter("top_k"), "x-support")),
    ("support_told", "unknown word", _set(_parameter("top_k"), "x-support", "perhaps")),
    ("support_told", "no reason", _set(_parameter("min_p"), "x-support", "refused")),
    ("support_told", "neutral value of another type", _set(_parameter("adapter_id"), "x-neutral", [1])),
    ("support_told", "half an error", _set(_parameter("adapter_id"), "x-error", {"error": "no"})),
    ("support_told", "an error of what is honoured", _set(_parameter("min_p"), "x-error", ERROR)),
    ("support_told", "excludes nothing", _set(_parameter("min_p"), "x-excludes", {"none": {}})),
    ("support_told", "excludes in silence", _set(_parameter("min_p"), "x-excludes", {"top_p": {}})),
    ("support_told", "lifts nothing", _set(_parameter("min_p"), "x-excludes-unless", "deterministic")),
    ("support_told", "lifted by nothing", _set(_form, "x-excludes-unless", "max_m")),
    ("support_told", "neutral and honoured", _set(_parameter("top_k"), "x-neutral", [0])),
    ("support_told", "neutral and descriptive", _set(_label, "x-neutral", [""])),
    ("support_told", "descriptive and no name", _set(_label, "type", "boolean")),
    ("support_told", "without effect and not there", _set(_instances, "x-without-effect", ["models"])),
    ("support_told", "without effect anywhere", _set(_instances, "x-without-effect", ["user"])),
    ("support_told", "without effect and empty", _set(_instances, "x-without-effect", [])),
    (
        "support_told",
        "without effect and nothing below",
        _set(_parameter("top_k"), "x-without-effect", ["a"]),
    ),
    ("no_templates", "expression", _set(_generate, "description", "See {{ there }}.")),
    (
        "no_templates",
        "in an example",
        _set(lambda d: _body(d)["examples"]["plain"]["value"], "inputs", "{% if %}"),
    ),
    ("present", "request", _drop(_body, "examples")),
    ("present", "response", _drop(_answer, "examples")),
    ("valid", "request", _set(lambda d: _body(d)["examples"]["plain"], "value", {"inputs": 1})),
    ("valid", "response", _set(lambda d: _answer(d)["examples"]["plain"], "value", {"generated_text": None})),
    ("valid", "event", _set(_events, "example", {"index": 1})),
    ("valid", "header", _set(lambda d: d["components"]["headers"]["x-total-time"], "example", "soon")),
    ("answered", "request", lambda d: _answer(d)["examples"].pop("greedy")),
    ("answered", "response", lambda d: _body(d)["examples"].pop("greedy")),
    ("outside_schemas", "property", _set(_parameter("top_k"), "example", 10)),
    ("streams_described", "no x-sse", _drop(_events, "x-sse")),
    (
        "streams_described",
        "another event",
        _set(_events, "x-sse", [{"event": "Chunk", "error": "ErrorResponse", "terminator": None}]),
    ),
    ("streams_described", "no transcript", _drop(_events, "x-sse-transcript")),
    ("transcripts_valid", "frame", _set(_events, "x-sse-transcript", {"x": 'data:{"index":1}\n\n'})),
    ("transcripts_valid", "event", _set(_events, "x-sse-transcript", {"x": 'data: {"index":1}\n\n'})),
    (
        "transcripts_valid",
        "not ended",
        _set(_events, "x-sse-transcript", {"x": 'data: {"error":"e","error_type":"t"}\n'}),
    ),
    (
        "transcripts_valid",
        "terminator",
        _set(_events, "x-sse-transcript", {"x": 'data: {"error":"e","error_type":"t"}\n\ndata: [DONE]\n\n'}),
    ),
    (
        "transcripts_valid",
        "error first",
        _set(_events, "x-sse-transcript", {"x": 'data: {"error":"e","error_type":"t"}\n\n' * 2}),
    ),
]


@pytest.mark.parametrize(
    ("rule", "how", "breaking"), BROKEN, ids=[f"{rule}-{how}" for rule, how, _ in BROKEN]
)
def test_a_rule_notices(rule: str, how: str, breaking: Break) -> None:
    document = copy.deepcopy(DOCUMENT)
    breaking(document)
    broken = Document(document)
    no_openapi = [*references(broken), *specification(broken)]
    assert bool(no_openapi) is (rule == "specification")  # a rule is for what that lets pass
    if rule != "specification":
        (noticing,) = (each for each in RULES if each.__name__ == rule)
        assert list(noticing(broken))


@pytest.mark.parametrize("rule", ["specification", RULES[0].__name__, RULES[-1].__name__])
def test_what_a_rule_notices_is_told_under_its_name(rule: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    next(breaking for name, _, breaking in BROKEN if name == rule)(document)
    assert rule in {problem.rule for problem in lint(Document(document))}


def test_every_rule_is_seeded() -> None:
    assert {rule.__name__ for rule in RULES} | {"specification"} == {rule for rule, _, _ in BROKEN}


# --- what the document promises ---------------------------------------------------------------


def test_the_examples_of_a_stream_can_be_read() -> None:
    text = 'data: {"a":1}\n\ndata: [DONE]\n\n'
    assert read_transcript(text).events == ({"a": 1},)
    assert read_transcript(text).terminator == "[DONE]"


@pytest.mark.filterwarnings("ignore:jsonschema.*Ref.* is deprecated:DeprecationWarning")
def test_connexion_routes_by_the_document() -> None:
    from connexion import AsyncApp  # here, because the import itself warns
    from connexion.resolver import Resolver

    app = AsyncApp(__name__)
    app.add_api(openapi.load(), resolver=Resolver(_resolve))
    client = app.test_client()
    assert client.get("/v1/models/org/model").json() == {
        "operation": "openai_get_model",
        "model": "org/model",
    }
    assert client.get("/v1/models").json()["operation"] == "openai_get_model_info"
    assert client.get("/health").json()["operation"] == "health"
    assert client.post("/health").status_code == 405
    assert client.post("/generate", json={"inputs": ""}).status_code == 401


def _resolve(operation_id: str) -> Callable[..., Any]:
    async def handler(request: Request | None = None, **parameters: Any) -> Response:
        return JSONResponse({"operation": operation_id, **parameters})

    handler.__name__ = operation_id
    return handler


# --- schemas as JSON Schema -------------------------------------------------------------------

COMPONENTS: dict[str, Any] = {
    "schemas": {
        "Tree": {
            "type": "object",
            "properties": {"left": {"$ref": "#/components/schemas/Tree"}},
            "required": [],
        },
        "Count": {"type": "integer", "minimum": 0, "maximum": 9, "exclusiveMinimum": True, "format": "int32"},
        "Unused": {"type": "string"},
    }
}
NULLABLE_COUNT = {
    "anyOf": [{"$ref": "#/components/schemas/Count"}, {"type": "object", "nullable": True, "enum": [None]}]
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "nullable": True}, ["", None], [1]),
        ({"type": "string", "nullable": True, "enum": ["a"]}, ["a", None], ["b"]),
        (NULLABLE_COUNT, [1, 9, None], [0, 10, 1.0, True, {}]),
        ({"allOf": [{"$ref": "#/components/schemas/Count"}], "nullable": True}, [1, None], [0]),
        ({"$ref": "#/components/schemas/Count"}, [1], [0, None]),
        ({"$ref": "#/components/schemas/Tree"}, [{}, {"left": {"left": {}}}], [{"left": {"left": 1}}]),
        ({"type": "object", "properties": {"items": {"type": "string"}}}, [{"items": "x"}], [{"items": 1}]),
        ({"type": "object", "additionalProperties": {"type": "number"}}, [{"a": 1}], [{"a": "1"}]),
        ({"type": "string", "format": "date", "default": "x"}, ["no date"], [None]),
    ],
)
def test_a_schema_as_json_schema(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    validator = Draft4Validator(to_draft4(schema, COMPONENTS))
    assert [value for value in good if not validator.is_valid(value)] == []
    assert [value for value in bad if validator.is_valid(value)] == []


def test_only_what_is_reached_is_bundled() -> None:
    assert set(to_draft4(NULLABLE_COUNT, COMPONENTS)["definitions"]) == {"Count"}


def test_a_reference_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match="does not exist"):
        to_draft4({"$ref": "#/components/schemas/Nothing"}, COMPONENTS)
    with pytest.raises(ValueError, match="only to"):
        to_draft4({"$ref": "other.yaml#/Thing"}, COMPONENTS)


def test_every_example_is_listed() -> None:
    document = Document.load()
    listed = [example for body in document.requests() for example in media_examples(body)]
    assert len(listed) >= len(
        {operation.id for operation in document.operations() if operation.method == "post"}
    )
