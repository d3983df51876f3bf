"""Grammars that recurse, explode, cost much or come in floods: refused or served, and others go on."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.security.no_network import asked_in_process
from tests.structured.hostile import SCHEMAS
from tests.support import LiveServer

REGEXES = [
    "(a+)+$",
    "(a|a)*b",
    "(x{1,99999}){1,99999}",
    "((((a{0,99}){0,99}){0,99}){0,99})",
    "(a|b)*a(a|b){40}",
    "[" + "".join(map(chr, range(0x4E00, 0x5E00))) + "]{1,500}",
    "(" * 2000 + "a" + ")" * 2000,
    r"(\w+\s?)+\1",
    "a" * 9000,
]
WORST = ("a bomb of references", "a bomb of alternatives", "a chain of references", "a schema that is itself")


def with_grammar(grammar: Any) -> dict[str, Any]:
    return {"inputs": "Hi", "parameters": {"grammar": grammar, "max_new_tokens": 4}}


@pytest.mark.parametrize("name", WORST)
def test_recursive_and_exploding_schemas_are_refused_or_served(name: str, client: httpx.Client) -> None:
    schema = json.loads(json.dumps(SCHEMAS[name]))
    answer = client.post("/generate", json=with_grammar({"type": "json", "value": schema}))
    assert answer.status_code in (200, 413, 422), answer.text
    if answer.status_code == 422:
        assert "grammar" in answer.json()["error"]


@pytest.mark.parametrize("pattern", REGEXES, ids=range(len(REGEXES)))
def test_costly_expressions_are_refused_or_served(pattern: str, client: httpx.Client) -> None:
    answer = client.post("/generate", json=with_grammar({"type": "regex", "value": pattern}))
    assert answer.status_code in (200, 422), answer.text


def test_a_flood_of_grammars_is_kept_to_the_size_of_the_cache(
    client: httpx.Client, server: LiveServer
) -> None:
    compiler = server.service.engine._compiler
    assert compiler is not None
    for at in range(compiler._cache._limit + 20):
        answer = client.post("/generate", json=with_grammar({"type": "regex", "value": f"a{at}b"}))
        assert answer.status_code == 200
    assert len(compiler._cache._grammars) == compiler._cache._limit


REFERENCES = [
    "http://127.0.0.1:9/schema.json",
    "https://example.com/schema.json",
    "file:///etc/passwd",
    "//example.com/a",
    "other.json#/a",
    "ftp://example.com/a",
]


@pytest.mark.parametrize("place", ["$ref", "$schema", "$id"])
def test_a_remote_reference_is_never_followed(place: str, no_network: list[str]) -> None:
    answers = asked_in_process(
        [("/generate", with_grammar({"type": "json", "value": {place: each}})) for each in REFERENCES]
    )
    assert no_network == []
    if place == "$ref":
        assert [answer.status_code for answer in answers] == [422] * len(REFERENCES)
        assert all("$ref" in answer.json()["error"] for answer in answers)
    else:
        assert {answer.status_code for answer in answers} <= {200, 422}
