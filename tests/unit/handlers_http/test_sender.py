"""Whose client has sent a request."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.http.sender import ALWAYS, AUTO, NEVER, set_dialect, speaks_openai


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ((b"x-stainless-lang", b"js"), True),
        ((b"user-agent", b"ai/6.0.326 ai-sdk/provider-utils/4.0.65 runtime/node.js/v20"), True),
        ((b"user-agent", b"OpenAI/2.2.0 (.NET 8.0.16; Ubuntu 24.04)"), True),
        ((b"user-agent", b"my-app OpenAI/2.2.0 (.NET 8.0.16; Ubuntu 24.04)"), True),
        ((b"user-agent", b"text-generation/0.7"), False),
        ((b"x-client", b"ai-sdk/"), False),
    ],
)
def test_it_is_told_by_its_headers(header: tuple[bytes, bytes], expected: bool) -> None:
    assert speaks_openai({"headers": [(b"accept", b"*/*"), header]}) is expected


@pytest.mark.parametrize(
    ("dialect", "path", "known", "expected"),
    [
        (AUTO, "/v1/completions", True, True),
        (AUTO, "/v1/completions", False, False),
        (ALWAYS, "/v1/completions", False, True),
        (ALWAYS, "/generate", False, False),
        (ALWAYS, "/generate", True, True),
        (NEVER, "/v1/completions", True, False),
    ],
)
def test_a_setting_tells_it_where_no_header_does(
    dialect: str, path: str, known: bool, expected: bool
) -> None:
    headers = [(b"x-stainless-lang", b"js")] if known else []
    scope: dict[str, Any] = {"path": path, "headers": headers}
    set_dialect(scope, dialect)
    assert speaks_openai(scope) is expected
