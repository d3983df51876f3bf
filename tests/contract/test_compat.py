"""The contract is the superset of the documents that clients were made from, but for known contradictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator

import openapi
from codegen import compat_docs, compat_rows, compat_table
from codegen.__main__ import main
from codegen.compat import Report, Violation, compare, contradictions, instances, validate_response
from codegen.compat_rows import Row
from codegen.document import EVENTS, JSON, Document
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


def test_all_rows_of_what_no_schema_shows_are_answered() -> None:
    meanings = parse(openapi.text("compatibility.yaml"))["meanings"]
    assert [row["row"] for row in meanings] == list(range(1, 39))
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


# --- the rows of openapi/compatibility ---------------------------------------------------------

ROWS = compat_table.read()
PLACES = {"request": "request", f"200 {EVENTS}": "event"}
PLACES |= {row.place: "response" for row in ROWS if row.place.endswith(f" {JSON}")}


def edited(edit: Any) -> list[str]:
    """Return what the rows say untruly of a contract that was edited."""
    document = openapi.load()
    edit(document)
    return list(compat_table.untrue(Document(document), ROWS))


def test_every_row_is_true_of_the_contract() -> None:
    assert list(compat_table.untrue(Document.load(), ROWS)) == []
    assert {row.document for row in ROWS} == set(compat_docs.NAMES)


@with_references
def test_the_rows_are_what_the_documents_say_and_none_is_missing() -> None:
    found = compat_rows.rows(Document.load(), read(REFERENCES))
    assert list(compat_table.disagreements(found, ROWS)) == []
    assert len(ROWS) > 1500


@with_references
def test_no_row_says_same_where_an_instance_shows_otherwise(report: Report) -> None:
    """The samples that two validators disagree on are an oracle that knows nothing of shapes."""
    differing: dict[tuple[str, str, str], list[str]] = {}
    for row in ROWS:
        if row.status != "same" and row.place in PLACES:
            differing.setdefault((row.document, PLACES[row.place], row.operation), []).append(row.member)
    for found in (found for _, violations in report.explained for found in violations):
        if found.side in PLACES.values() and found.at:
            # a validator names the union that nothing of fits, a row the member in it
            near = differing.get((found.document, found.side, found.operation), [])
            assert [
                member
                for member in near
                if f"{member}/".startswith(f"{found.at}/") or f"{found.at}/".startswith(f"{member}/")
            ], str(found)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (
            lambda d: d["components"]["schemas"]["GenerateParameters"]["properties"].pop("top_k"),
            "tgi-3.3.6: POST /generate request parameters/top_k: there is no such member",
        ),
        (
            lambda d: d["components"]["schemas"]["GenerateParameters"]["properties"]["top_k"].update(
                {"x-support": "later"}
            ),
            "tgi-3.3.6: POST /generate request parameters/top_k: it is later now, and not",
        ),
        (
            lambda d: d["components"]["schemas"]["CompletionRequest"]["properties"]["suffix"].update(
                {"x-support": "honoured"}
            ),
            "tgi-3.3.6: POST /v1/completions request suffix: it is honoured now, and not refused",
        ),
        (
            lambda d: d["components"]["schemas"]["GenerateParameters"]["properties"]["details"].update(
                {"x-default": True}
            ),
            "tgi-3.3.6: POST /generate request parameters/details: ours is 'false or true; without it true'",
        ),
        (
            lambda d: d["paths"].pop("/chat_tokenize"),
            "tgi-3.3.6: POST /chat_tokenize answers 200: whether the operation is in the contract",
        ),
        (
            lambda d: d["paths"]["/generate"]["post"]["responses"].pop("429"),
            "tgi-3.3.6: POST /generate answers 429: it is same no longer",
        ),
        (
            lambda d: d["components"]["schemas"]["ModelInfo"]["properties"].update(shutdown_date={}),
            "openai: GET /v1/models/{model} 200 application/json shutdown_date: the contract has it now",
        ),
    ],
)
def test_a_row_that_is_not_true_any_more_is_told(edit: Any, told: str) -> None:
    assert [line for line in edited(edit) if line.startswith(told)]


def test_a_row_without_a_reason_is_told() -> None:
    row = next(row for row in ROWS if row.status == "refused")
    bare = Row(*row.key, row.status, row.theirs, row.ours)
    (told,) = compat_table.untrue(Document.load(), [bare])
    assert told.endswith("it is refused: say why")


def test_rows_are_written_as_they_are_read(tmp_path: Path) -> None:
    compat_table.write(ROWS, tmp_path)
    files = [file.name for file in sorted(tmp_path.iterdir())]
    assert files == [file.name for file in sorted(compat_table.FOLDER.iterdir())]
    for name in files:
        assert (tmp_path / name).read_text() == (compat_table.FOLDER / name).read_text()


def test_a_row_that_is_made_again_keeps_its_reason() -> None:
    row = next(row for row in ROWS if row.status == "refused")
    bare = Row(*row.key, row.status, row.theirs, "something else")
    (kept,) = compat_table.with_reasons([bare], ROWS)
    assert (kept.reason, kept.ours) == (row.reason, "something else")
    (other,) = compat_table.with_reasons([Row(*row.key, "ignored")], ROWS)
    assert other.reason == ""


def test_a_row_that_the_documents_do_not_make_is_told() -> None:
    row = ROWS[0]
    assert list(compat_table.disagreements([], [row])) == [
        f"{' '.join(row.key)}: kept as {row.status} (-; ours -), and found nothing"
    ]


def test_the_table_of_members_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support"]) == 0
    printed = capsys.readouterr().out
    assert "### ChatRequest\n\n| member | support |" in printed
    assert "| `n` | honoured |  |  |" in printed
    assert "| `adapter_id` | honoured |  |  |" in printed
    assert '| `detail` | reported | `"auto"` |  |' in printed
    assert "| `store` | reported | `false` |  |" in printed
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
