"""The API key: `Authorization: Bearer KEY`, asked for by the operations that the contract secures."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any

from connexion.exceptions import OAuthProblem, OAuthResponseProblem
from connexion.lifecycle import ConnexionRequest
from connexion.security import BearerSecurityHandler
from starlette.types import Scope

SCHEME = b"bearer"
DIGEST_BYTES = 12
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
        given = _authorizations(request.scope)
        if len(given) != 1:
            raise OAuthProblem
        scheme, key = _parts(given[0])
        if not self._key or scheme != SCHEME or not hmac.compare_digest(key, self._key):
            raise OAuthResponseProblem
        return {"sub": "key"}


def owner_of(scope: Scope) -> str:
    """Return a digest of the bearer token that came with a request, checked or not; "" without one.

    Requests with the same token stand in line together, and lines take turns: see `Request.owner`.
    """
    for given in _authorizations(scope):
        scheme, key = _parts(given)
        if scheme == SCHEME and key:
            return blake2b(key, digest_size=DIGEST_BYTES).hexdigest()
    return ""


def _authorizations(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == b"authorization"]


def _parts(authorization: bytes) -> tuple[bytes, bytes]:
    scheme, _, key = authorization.partition(b" ")
    return scheme.lower(), key.strip(b" \t")
