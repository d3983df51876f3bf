"""docs/migrating.md is true: its comparison runs, and requests of other servers get what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import live_server

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
MESSAGES = [{"role": "user", "content": "Hello!"}]


def test_the_comparison_finds_a_server_equal_to_itself(capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with live_server() as server:
        source = re.sub(r"http://localhost:\d+", server.base_url, script)
        exec(compile(source, "migrating.md", "exec", dont_inherit=True), {})
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(" '")[0] for line in told] == ["prompt: the same tokens", "  the same text"] * 3


def test_the_comparison_tells_where_texts_part(capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    other = script.replace(
        'body = {"inputs": prompt,', 'body = {"inputs": prompt + ("!" if server == NEW else ""),'
    )
    assert other != script
    with live_server() as one, live_server() as two:
        source = other.replace("http://localhost:8080", one.base_url)
        source = source.replace("http://localhost:3000", two.base_url)
        exec(compile(source, "migrating.md", "exec", dont_inherit=True), {})
    assert "  parts at token 0: " in capsys.readouterr().out


@pytest.mark.parametrize("member", ["guided_grammar", "json_schema", "grammar"])
def test_forms_of_other_servers_are_refused_with_what_to_send(member: str, client: httpx.Client) -> None:
    value = {"type": "object"} if member == "json_schema" else "root ::= 'a'"
    answer = client.post("/v1/chat/completions", json={"messages": MESSAGES, member: value})
    assert answer.status_code == 422
    assert "response_format" in answer.text


@pytest.mark.parametrize(
    "form",
    [
        {"guided_json": {"enum": ["a"]}},
        {"guided_regex": '"a"'},
        {"guided_choice": ['"a"']},
        {"structured_outputs": {"json": {"enum": ["a"]}}},
    ],
)
def test_forms_of_vllms_clients_are_kept(form: dict[str, Any], client: httpx.Client) -> None:
    (name,) = form
    assert f"`{name}`" in PAGE
    answer = client.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 20, **form})
    assert answer.json()["choices"][0]["message"]["content"] == '"a"'


def test_parameters_that_others_have_beside_openais_are_taken(client: httpx.Client) -> None:
    (sentence,) = re.findall(r"what to send instead\. (`top_k`.*?) are taken\.", PAGE, re.DOTALL)
    values = {
        **{"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True, "min_tokens": 1},
        "chat_template_kwargs": {},
    }
    assert set(re.findall(r"`(\w+)`", sentence)) == values.keys()
    answer = client.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 4, **values})
    assert answer.status_code == 200
    assert "x-ignored-parameters" not in answer.headers


@pytest.mark.parametrize(
    "path", ["/detokenize", "/v1/embeddings", "/pooling", "/score", "/completion", "/infill"]
)
def test_routes_of_other_servers_that_are_told_to_be_absent_are(path: str, client: httpx.Client) -> None:
    assert f"`{path}`" in PAGE
    assert client.post(path, json={}).status_code == 404
