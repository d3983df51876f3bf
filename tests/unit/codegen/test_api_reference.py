"""The page for people: complete, its links lead somewhere, its commands send what was executed."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter

import pytest

from codegen.api_reference import PATH, SERVER, TOOLS, curl, render
from codegen.api_schemas import SchemaPages
from codegen.document import Document
from codegen.exchanges import FAILURE, answered, exchanges, provocations
from codegen.markdown import anchor, pretty, table

DOCUMENT = Document.load()
PAGE = render()[PATH]
HEADINGS = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL), re.MULTILINE)
COMMANDS = re.findall(r"```bash\n(.*?)\n```", PAGE.partition(f"\n## {TOOLS}\n")[0], re.DOTALL)


def test_links_lead_to_one_heading_each() -> None:
    anchors = Counter(anchor(heading) for heading in HEADINGS)
    assert [name for name, count in anchors.items() if count > 1] == []
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) - set(anchors) == set()


def test_every_operation_is_in_the_contents_and_has_its_section() -> None:
    contents = PAGE.partition("## Contents")[2].partition("\n## ")[0]
    for operation in DOCUMENT.operations():
        heading = f"{operation.method.upper()} {operation.path}"
        assert heading in HEADINGS
        assert f"[{heading}](#{anchor(heading)}): {operation.node['summary']}" in contents


def test_every_schema_is_described_once_with_all_of_its_members() -> None:
    for name, schema in DOCUMENT.schemas.items():
        assert HEADINGS.count(name) == 1
        section = re.split(rf"\n#+ {name}\n", PAGE)[1].partition("\n#")[0]
        assert [each for each in schema.get("properties", {}) if f"`{each}`" not in section] == []


def test_every_example_is_sent_and_answered() -> None:
    shown = [*exchanges(DOCUMENT), *provocations(DOCUMENT)]
    assert len(COMMANDS) == len(shown)
    for exchange in exchanges(DOCUMENT):
        if exchange.answer is not None:
            text = exchange.answer if isinstance(exchange.answer, str) else pretty(exchange.answer)
            assert text.rstrip("\n") in PAGE


def test_a_command_sends_the_body_of_the_example() -> None:
    sent = [shlex.split(command) for command in COMMANDS]
    bodies = [line[line.index("-d") + 1] for line in sent if "-d" in line]
    examples = [each.body for each in exchanges(DOCUMENT) if each.body is not None]
    refused = [each.body for each in provocations(DOCUMENT)]
    as_they_stand = [body for body in refused if isinstance(body, str)]
    parsed = [json.loads(body) for body in bodies if body not in as_they_stand]
    wanted = [body for body in (*examples, *refused) if not isinstance(body, str)]
    assert sorted(map(json.dumps, parsed)) == sorted(map(json.dumps, wanted))
    assert all(part.startswith(SERVER) for line in sent for part in line if "3000" in part)


def test_a_quote_in_a_body_survives_the_shell() -> None:
    operation = next(each for each in DOCUMENT.operations() if each.id == "generate")
    body = {"inputs": 'It\'s "so" $HOME `x` \\ é\n'}
    *_, data = shlex.split(curl(operation, body))
    assert json.loads(data) == body


@pytest.mark.parametrize(
    ("operation_id", "body", "options"),
    [
        ("generate", {"inputs": "a"}, ""),
        ("generate_stream", {"inputs": "a"}, "-N "),
        ("compat_generate", {"inputs": "a", "stream": False}, ""),
        ("compat_generate", {"inputs": "a", "stream": True}, "-N "),
    ],
)
def test_a_streams_events_are_shown_as_they_come(operation_id: str, body: object, options: str) -> None:
    operation = next(each for each in DOCUMENT.operations() if each.id == operation_id)
    assert curl(operation, body).startswith(f"curl {options}{SERVER}")


def test_errors_and_failures_of_streams_are_shown() -> None:
    for name, response in DOCUMENT.components["responses"].items():
        examples = response.get("content", {}).get("application/json", {}).get("examples", {})
        assert all(pretty(example["value"]) in PAGE for example in examples.values()), name
    transcripts = [
        content.node["x-sse-transcript"].get(FAILURE)
        for content in DOCUMENT.responses()
        if "x-sse-transcript" in content.node
    ]
    assert all(text.rstrip("\n") in PAGE for text in filter(None, transcripts))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "nullable": True}, "string or null"),
        ({"$ref": "#/components/schemas/Token"}, "[Token](#token)"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Token"}}, "array of [Token](#token)"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
        (
            {
                "anyOf": [
                    {"$ref": "#/components/schemas/Stop"},
                    {"type": "object", "nullable": True, "enum": [None]},
                ]
            },
            "[Stop](#stop) or null",
        ),
        ({"description": "Whatever."}, "any"),
        ({"type": "array", "items": {}}, "array of any"),
    ],
)
def test_a_type_in_words(schema: dict[str, object], text: str) -> None:
    assert SchemaPages(DOCUMENT).type_of(schema) == text


def test_the_words_that_an_answer_may_say_are_listed() -> None:
    assert '| `object` | string: `"chat.completion"` | always | What this is. |' in PAGE
    section = re.split(r"\n#+ ChunkFinishReason\n", PAGE)[1].partition("\n#")[0]
    assert 'Type: string: `""`, `"stop"`, `"length"`.' in section
    section = re.split(r"\n#+ CompletionComplete\n", PAGE)[1].partition("\n#")[0]
    assert '| string: `"stop"` or `"length"` |' in section


def test_a_member_that_is_not_honoured_is_listed_with_the_reason() -> None:
    section = re.split(r"\n#+ ChatRequest\n", PAGE)[1].partition("\n#")[0]
    honoured, _, rest = section.partition("Accepted without effect")
    assert "| `temperature` | number or null | `1.0` |" in honoured
    assert "- `user`: " in rest
    assert "- `functions`: OpenAI's former name of `tools`. *Why: it was replaced by `tools`.*" in rest


@pytest.mark.parametrize(
    "value", [{}, [], None, "a", [[1, 2], {"a": []}], {"a": {"b": ["x" * 60, "y" * 60]}}]
)
def test_pretty_json_is_the_same_json(value: object) -> None:
    assert json.loads(pretty(value)) == value
    assert json.loads(pretty([value] * 40)) == [value] * 40


def test_a_table_keeps_bars_in_its_cells() -> None:
    assert list(table(("a",), [("x|y",)])) == ["| a |", "| --- |", "| x\\|y |", ""]
    assert list(table(("a",), [])) == []


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("POST /v1/chat/completions", "post-v1chatcompletions"),
        ("GET /v1/models/{model}", "get-v1modelsmodel"),
    ],
)
def test_an_anchor_is_githubs(heading: str, name: str) -> None:
    assert anchor(heading) == name


def test_an_example_without_an_answer_is_noticed() -> None:
    assert list(answered(DOCUMENT)) == []
    document = Document.load()
    operation = document.data["paths"]["/generate"]["post"]
    answers = operation["responses"]["200"]["content"]["application/json"]["examples"]
    answers["greedily"] = answers.pop("greedy")
    told = [message for _, message in answered(document)]
    assert ["'greedy'" in told[0], "'greedily'" in told[1], len(told)] == [True, True, 2]
