"""Names in paths are any text without slashes, as the document says, and come back as they were."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest


@pytest.mark.parametrize("name", ["a b", "a\nb", "\n", "a\r\nb", "é\u2028", "a?b#c", "%2f", "{model}", "."])
def test_a_name_in_a_path_is_given_back(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/v2/models/{quote(f'm{name}', safe='')}/versions/{quote(f'v{name}', safe='')}")
    assert answer.status_code == 200
    assert answer.json()["name"] == f"m{name}"
    assert answer.json()["version"] == f"v{name}"


def test_an_unknown_model_may_have_any_name(client: httpx.Client) -> None:
    answer = client.get("/v1/models/a%0Ab/c")
    assert answer.status_code == 404
    assert "is not served here" in answer.json()["error"]
