"""What each server that a test starts does with the same document, done once in a process.

Reading it, and connexion's judging and resolving of it, were four fifths of what making an application takes
(0.78 s became 0.16 s), which hundreds of tests do. Another document is read and judged for itself.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Hashable
from typing import Any

import connexion.spec

import openapi


def read_documents_once() -> None:
    """Have what was found of a document found again."""
    specification: Any = connexion.spec.OpenAPISpecification
    specification._validate_spec = staticmethod(_once(specification._validate_spec, json.dumps))
    connexion.spec.resolve_refs = _once(connexion.spec.resolve_refs, json.dumps)
    contract: Any = openapi
    contract.parse = _once(contract.parse, str)


def _once(work: Callable[..., Any], key: Callable[[Any], Hashable]) -> Callable[..., Any]:
    """Return what does work on a thing once; each call returns a new object, and errors are raised anew."""
    found: dict[Hashable, bytes] = {}

    def remembered(thing: Any, **how: Any) -> Any:
        name = (key(thing), *how.items())
        if name not in found:
            found[name] = pickle.dumps(work(thing, **how))
        return pickle.loads(found[name])

    return remembered
