from __future__ import annotations

import re

from handlers.version import fingerprint, version


def test_there_is_a_version() -> None:
    assert re.match(r"\d+\.\d+\.\d+", version())


def test_the_fingerprint_has_tgis_form() -> None:
    assert fingerprint(None) == f"{version()}-native"
    assert fingerprint("sha-abc") == f"{version()}-sha-abc"
