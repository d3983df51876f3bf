"""The API key: `Authorization: Bearer KEY`, asked for by the operations that the contract secures."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from connexion.exceptions import OAuthProblem, OAuthResponseProblem
from connexion.lifecycle import ConnexionRequest
from connexion.security import BearerSecurityHandler

SCHEME = b"bearer"
Verify = Callable[[ConnexionRequest], dict[str, Any]]


def security_map(api_key: str | None) -> Mapping[str, Any]:
    """Return connexion's security map for one key; without a key no request passes."""
    return {"bearer": partial(KeyHandler, api_key or "")}


class KeyHandler(BearerSecurityHandler):
    """Compares the key exactly and in constant time; the scheme's case doesn't matter."""

    def __init__(self, api_key: str) -> None:
        self._key = api_key.encode()

    def get_fn(self, security_scheme: Mapping[str, Any], required_scopes: list[str]) -> Verify:
        """Return the check of one request; connexion asks once for each operation."""
        return self._verify

    def _verify(self, request: ConnexionRequest) -> dict[str, Any]:
        given = [value for name, value in request.scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            raise OAuthProblem
        scheme, _, key = given[0].partition(b" ")
        if not self._key or scheme.lower() != SCHEME or not hmac.compare_digest(key.strip(b" \t"), self._key):
            raise OAuthResponseProblem
        return {"sub": "key"}
