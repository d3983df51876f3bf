"""Which version this is, of Parley and of the TGI that it stands in for."""

from __future__ import annotations

from functools import cache
from importlib import metadata

import openapi

TGI_VERSION = "3.3.6-dev0"  # whose HTTP interface is served


@cache
def version() -> str:
    """Return Parley's version: the installed package's, or the contract's where nothing is installed."""
    try:
        return metadata.version("parley")
    except metadata.PackageNotFoundError:
        return str(openapi.load()["info"]["version"])


def fingerprint(docker_label: str | None) -> str:
    """Return OpenAI's `system_fingerprint`, in TGI's form."""
    return f"{version()}-{docker_label or 'native'}"
