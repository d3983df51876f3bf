"""The settings about images."""

from __future__ import annotations

import pytest

from handlers.settings.images import ImageSettings
from handlers.settings.row import host_list
from inference.images import ENOUGH_BYTES


def test_no_request_may_bring_more_than_the_engine_takes() -> None:
    assert ImageSettings().max_image_bytes <= ENOUGH_BYTES


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("MinIO.internal:9000, *.example.org", ("minio.internal:9000", "*.example.org")),
        ("10.0.0.5,[fd00::5],[fd00::5]:80", ("10.0.0.5", "[fd00::5]", "[fd00::5]:80")),
    ],
)
def test_hosts_are_names_or_addresses_maybe_with_a_port(text: str, hosts: tuple[str, ...]) -> None:
    assert host_list(text) == hosts


@pytest.mark.parametrize("text", ["http://a", "a/b", "a:0", "a:x", "*", "*.", "a b", "fd00::5", "a@b"])
def test_what_names_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be hosts such as"):
        host_list(text)
