"""Parley's contract: the OpenAPI document, written by hand, that the server routes and validates by."""

from importlib.resources import files
from typing import Any

from openapi.yamlload import parse

__all__ = ["load", "text"]

DOCUMENT = "openapi.yaml"


def text(name: str = DOCUMENT) -> str:
    """Return the document, or another file of the contract, as it was written."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def load() -> dict[str, Any]:
    """Return the document parsed; each call returns a new object, so that a caller may change its own."""
    document: dict[str, Any] = parse(text())
    return document
