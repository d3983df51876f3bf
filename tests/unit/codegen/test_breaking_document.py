"""Each rule of the gate, seen on a change that is made in the contract."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

import openapi
from codegen.breaking_document import document_changes
from codegen.document import Document
from codegen.lint import lint
from tests.unit.codegen.document_edits import BREAKING, COMPATIBLE, Edit, member, schema

OLD = openapi.load()


def changes(edit: Edit, reverse: bool = False) -> dict[str, str]:
    """Return the level of each change by its key."""
    edited = deepcopy(OLD)
    edit(edited)
    old, new = (edited, OLD) if reverse else (OLD, edited)
    return {change.key: change.level.name for change in document_changes(Document(old), Document(new))}


def test_the_contract_against_itself_is_no_change() -> None:
    assert changes(lambda document: None) == {}


@pytest.mark.parametrize(("edit", "key"), BREAKING, ids=[key for _, key in BREAKING])
def test_what_breaks_is_found(edit: Edit, key: str) -> None:
    assert changes(edit).get(key) == "MAJOR"


@pytest.mark.parametrize(("edit", "key", "level"), COMPATIBLE, ids=[key for _, key, _ in COMPATIBLE])
def test_what_does_not_break_is_found_and_is_lighter(edit: Edit, key: str, level: str) -> None:
    found = changes(edit)
    assert found.get(key) == level
    assert "MAJOR" not in found.values()


WIDENING = [edit for edit, key, level in COMPATIBLE if level == "MINOR" and "deprecated" not in key]


@pytest.mark.parametrize("edit", WIDENING)
def test_taking_a_compatible_change_back_breaks(edit: Edit) -> None:
    assert "MAJOR" in changes(edit, reverse=True).values()


def test_a_header_that_was_always_sent_must_stay_so() -> None:
    def always(document: Any) -> None:
        document["components"]["headers"]["retry-after"].update(required=True)

    key = "header-optional response responses/Overloaded retry-after"
    assert changes(always, reverse=True).get(key) == "MAJOR"


def _inline(document: Any) -> None:
    """Write a shared schema out where it is used."""
    content = document["paths"]["/tokenize"]["post"]["requestBody"]["content"]["application/json"]
    name = content["schema"]["$ref"].rsplit("/", 1)[-1]
    content["schema"] = {"allOf": [schema(document, name)]}


def _move(document: Any) -> None:
    """Give a member's schema a name of its own."""
    schemas = document["components"]["schemas"]
    schemas["Inputs"] = schemas["GenerateRequest"]["properties"]["inputs"]
    schemas["GenerateRequest"]["properties"]["inputs"] = {"$ref": "#/components/schemas/Inputs"}


def _split(document: Any) -> None:
    """Write one object as two that are joined, null as an alternative, and words one by one."""
    info = schema(document, "Info")
    half = {name: info["properties"].pop(name) for name in [*info["properties"]][:10]}
    required = [name for name in info["required"] if name in half]
    info["required"] = [name for name in info["required"] if name not in half]
    document["components"]["schemas"]["Info"] = {
        "allOf": [info, {"type": "object", "properties": half, "required": required}]
    }
    seed = member(document, "ChatRequest", "seed")
    bare = {key: seed.pop(key) for key in ("type", "minimum", "maximum", "nullable") if key in seed}
    bare.pop("nullable")
    seed["anyOf"] = [bare, {"type": "object", "nullable": True, "enum": [None]}]
    words = schema(document, "FinishReason")
    words["oneOf"] = [{"type": "string", "enum": [word]} for word in words.pop("enum")]


def _rename(document: Any) -> None:
    document["paths"]["/v1/models/{id}"] = document["paths"].pop("/v1/models/{model}")
    document["paths"]["/v1/models/{id}"]["get"]["description"] = "Other words."


@pytest.mark.parametrize("edit", [_inline, _move, _split, _rename])
def test_the_same_written_otherwise_is_no_change(edit: Edit) -> None:
    assert changes(edit) == {}


def test_a_change_in_what_is_shared_is_one_change() -> None:
    def edit(document: Any) -> None:
        del schema(document, "ErrorResponse")["properties"]["error"]
        schema(document, "ErrorResponse")["required"].remove("error")

    assert changes(edit) == {"member-removed response ErrorResponse/error": "MAJOR"}


def test_a_change_for_some_who_share_names_them() -> None:
    def edit(document: Any) -> None:
        own = {**schema(document, "GenerateParameters")}
        own["properties"] = {key: node for key, node in own["properties"].items() if key != "top_k"}
        schema(document, "GenerateRequest")["properties"]["parameters"] = own

    assert changes(edit) == {
        f"member-removed request GenerateParameters/top_k at POST /{path}": "MAJOR"
        for path in ("generate", "generate_stream")
    }


def test_what_cannot_be_decided_breaks_and_says_so() -> None:
    def patterned(text: str) -> Document:
        document = openapi.load()
        member(document, "GenerateRequest", "inputs")["pattern"] = text
        return Document(document)

    (change,) = document_changes(patterned("^a"), patterned("^(a)"))
    assert (change.key, change.level.name) == ("undecided request GenerateRequest/inputs pattern", "MAJOR")
    assert "can't be told" in change.message


def test_the_contract_that_is_edited_keeps_its_own_rules() -> None:
    assert lint(Document(OLD)) == []
