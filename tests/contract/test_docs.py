"""The document and its pages: served from memory, readable and usable without anything from elsewhere."""

from __future__ import annotations

import re

import httpx
import pytest
import yaml

import openapi
from codegen.export import to_31
from openapi.yamlload import parse
from tests.support import live_server


@pytest.mark.parametrize("path", ["/openapi.json", "/api-doc/openapi.json"])
def test_the_document_is_served_as_json(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == openapi.load()


def test_the_document_is_served_as_openapi_3_1(client: httpx.Client) -> None:
    answer = client.get("/openapi-3.1.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == to_31(openapi.load())


def test_the_document_is_served_as_it_was_written(client: httpx.Client) -> None:
    answer = client.get("/openapi.yaml")
    assert answer.headers["content-type"] == "application/yaml"
    assert answer.text == openapi.text()
    assert parse(answer.text) == openapi.load()
    assert yaml.safe_load(answer.text)["openapi"] == "3.0.3"  # for readers without libyaml, too


def test_try_it_out_calls_the_server_that_served_the_document(client: httpx.Client) -> None:
    assert [server["url"] for server in client.get("/openapi.json").json()["servers"]] == ["/"]


def test_docs_lead_to_the_page_at_a_relative_address(client: httpx.Client) -> None:
    answer = client.get("/docs")
    assert (answer.status_code, answer.headers["location"]) == (307, "docs/")


def test_the_page_loads_only_local_files_that_exist(client: httpx.Client) -> None:
    page = client.get("/docs/")
    assert page.headers["content-type"].startswith("text/html")
    files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(files) == 4
    for file in files:
        assert "//" not in file
        answer = client.get(f"/docs/{file}")
        assert answer.status_code == 200
        assert answer.content


def test_the_page_has_no_inline_script_and_a_policy_against_it(client: httpx.Client) -> None:
    page = client.get("/docs/")
    assert all(
        re.fullmatch(r' src="[^"]+"></script>', tail) for tail in re.findall("<script([^\n]*)", page.text)
    )
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "http" not in policy


def test_the_pages_script_reads_the_document_and_asks_no_validator(client: httpx.Client) -> None:
    script = client.get("/docs/start.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert 'new URL("openapi.json", root)' in script.text
    assert "validatorUrl: null" in script.text


def test_the_pages_are_open_even_with_a_key() -> None:
    with live_server(api_key="key") as live, live.client() as client:
        documents = ("/openapi.json", "/openapi.yaml", "/openapi-3.1.json", "/api-doc/openapi.json")
        for path in ("/docs/", *documents):
            assert client.get(path).status_code == 200
        scheme = client.get("/openapi.json").json()["components"]["securitySchemes"]["bearerAuth"]
        assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
