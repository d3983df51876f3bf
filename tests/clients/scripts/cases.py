"""Runs a client's cases and prints what came of each as JSON; runs in the client's own environment."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

Case = Callable[[str], Any]


def run(cases: list[Case]) -> None:
    """Call every case named after the server's address, all without names, and print results by name.

    A case that raises has the result {"raised": class, "message": text}, with `status_code` and `body` if
    the error has them.
    """
    url, names = sys.argv[1], sys.argv[2:]
    chosen = [case for case in cases if not names or case.__name__ in names]
    print(json.dumps({case.__name__: outcome(case, url) for case in chosen}))


def outcome(case: Case, url: str) -> Any:
    """Return what the case returns, or what it raised."""
    try:
        return case(url)
    except Exception as error:
        told = {name: getattr(error, name, None) for name in ("status_code", "body")}
        return {"raised": type(error).__name__, "message": str(error), **told}
