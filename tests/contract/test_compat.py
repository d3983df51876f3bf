"""The contract is the superset of the documents that clients were made from, but for known contradictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator

import openapi
from codegen.__main__ import main
from codegen.compat import Report, Violation, compare, contradictions, instances, validate_response
from codegen.document import EVENTS, Document
from codegen.references import read
from codegen.samples import Samples
from openapi.yamlload import parse

REFERENCES = Path(__file__).parents[2] / "../shared/reference/specs"

with_references = pytest.mark.skipif(
    not REFERENCES.is_dir(), reason="the documents to compare with are not at ../shared/reference/specs"
)

CHUNK: dict[str, Any] = {
    "object": "chat.completion.chunk",
    "id": "chatcmpl-1",
    "created": 1,
    "model": "m",
    "system_fingerprint": "f",
    "choices": [
        {"index": 0, "delta": {"role": "assistant", "content": "x"}, "logprobs": None, "finish_reason": None}
    ],
    "usage": None,
}


@pytest.fixture(scope="module")
def report() -> Report:
    return compare(Document.load(), REFERENCES)


@with_references
def test_nothing_is_unexplained(report: Report) -> None:
    assert [str(violation) for violation in report.unexplained] == []


@with_references
def test_every_contradiction_is_still_there(report: Report) -> None:
    assert [str(contradiction) for contradiction in report.idle] == []


@with_references
def test_every_document_is_compared() -> None:
    sides = {
        document.name: (len(document.requests), len(document.responses)) for document in read(REFERENCES)
    }
    assert sides == {
        "tgi-3.3.6": (8, 43),
        "tgi-0.5.0": (2, 11),
        "api-evangelist": (5, 18),
        "hub-chat-completion": (1, 2),
        "hub-text-generation": (2, 3),
        "openai": (2, 6),
    }


# --- a contract that breaks a promise is noticed ----------------------------------------------


def _close(schemas: Any) -> None:
    schemas["GenerateParameters"]["properties"]["temperature"]["nullable"] = False


def _require_model(schemas: Any) -> None:
    schemas["ChatRequest"]["required"] = ["messages", "model"]


def _forget_usage(schemas: Any) -> None:
    schemas["ChatCompletion"]["required"].remove("usage")


def _rename_reason(schemas: Any) -> None:
    schemas["FinishReason"]["enum"] = ["length", "eos", "stop_sequence"]


@with_references
@pytest.mark.parametrize(
    ("breaking", "side", "at"),
    [
        (_close, "request", "parameters/temperature"),
        (_require_model, "request", ""),
        (_forget_usage, "response", ""),
        (_rename_reason, "response", "details/finish_reason"),
    ],
)
def test_a_broken_promise_is_noticed(breaking: Any, side: str, at: str) -> None:
    document = openapi.load()
    breaking(document["components"]["schemas"])
    assert (side, at) in {
        (found.side, found.at) for found in compare(Document(document), REFERENCES).unexplained
    }


# --- live responses ---------------------------------------------------------------------------


@with_references
def test_a_response_that_keeps_all_promises() -> None:
    body = {
        "generated_text": "x",
        "details": {
            "finish_reason": "length",
            "generated_tokens": 1,
            "seed": None,
            "prefill": [],
            "tokens": [],
        },
    }
    assert validate_response("/generate", "POST", 200, body, REFERENCES) == []
    assert validate_response("/v1/chat/completions", "post", 200, CHUNK, REFERENCES, EVENTS) == []
    assert validate_response("/nowhere", "get", 200, {}, REFERENCES) == []


@with_references
def test_a_response_that_breaks_promises() -> None:
    assert len(validate_response("/generate", "POST", 200, {"generated_text": None}, REFERENCES)) == 4
    assert validate_response("/generate", "POST", 422, {"error": "no"}, REFERENCES)
    chunk = {**CHUNK, "choices": [{**CHUNK["choices"][0], "finish_reason": "eos_token"}]}
    found = validate_response("/v1/chat/completions", "POST", 200, chunk, REFERENCES, EVENTS)
    assert [line.split(":")[0] for line in found] == ["openai"]


# --- the table, and the tools -----------------------------------------------------------------


def test_all_rows_of_the_first_comparison_are_answered() -> None:
    meanings = parse(openapi.text("compatibility.yaml"))["meanings"]
    assert {row["row"] for row in meanings} == set(range(1, 36))
    assert all(row["topic"] and row["here"] for row in meanings)


def test_a_contradiction_explains_only_itself() -> None:
    known = next(row for row in contradictions() if row.at == ("seed",))
    negative = Violation("openai", "request", "POST /v1/chat/completions", "seed", "", -1)
    assert known.explains(negative)
    assert not known.explains(negative._replace(value=2**64))
    assert not known.explains(negative._replace(document="tgi-3.3.6"))
    assert not known.explains(negative._replace(at="n"))


def test_every_contradiction_has_a_reason() -> None:
    assert all(len(contradiction.reason) > 20 for contradiction in contradictions())


def test_missing_references_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compat", "--references", str(tmp_path / "absent")]) == 2
    assert "--references" in capsys.readouterr().out


def test_the_table_of_members_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support"]) == 0
    printed = capsys.readouterr().out
    assert "### ChatRequest\n\n| member | support |" in printed
    assert "| `n` | honoured |  |  |" in printed
    assert "| `adapter_id` | later |  |  |" in printed
    assert "| `strict` | reported | `true` |  |" in printed
    assert "| `parameters` | honoured |  | no effect here: `top_n_tokens` |" in printed
    assert "| `audio` | refused |  | only text is generated |" in printed


SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["a"],
    "properties": {
        "a": {"$ref": "#/definitions/A"},
        "b": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
        "c": {"type": "array", "items": {"enum": ["x", "y"]}},
    },
    "definitions": {
        "A": {"allOf": [{"type": "object", "required": ["k"], "properties": {"k": {"type": "boolean"}}}]}
    },
}


def test_samples_show_every_branch() -> None:
    samples = list(Samples(SCHEMA))
    assert [sample for sample in samples if not Draft4Validator(SCHEMA).is_valid(sample)] == []
    assert {str(sample["b"]) for sample in samples if "b" in sample} == {"1", "0", "9", "None"}
    assert [sample["c"] for sample in samples if "c" in sample] == [[], ["x"], ["y"]]
    assert {sample["a"]["k"] for sample in samples} == {True, False}


def test_samples_of_our_own_schemas_are_valid() -> None:
    document = Document.load()
    for content in document.responses():
        if content.media_type != EVENTS:
            validator = Draft4Validator(document.draft4(content.node["schema"]))
            assert all(validator.is_valid(body) for body in instances(document, content)), content.pointer
