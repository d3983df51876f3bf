"""API keys: `Authorization: Bearer KEY`, asked for by the operations that the contract secures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any

from connexion.exceptions import OAuthProblem, OAuthResponseProblem
from connexion.lifecycle import ConnexionRequest
from connexion.security import BearerSecurityHandler
from starlette.types import Scope

from handlers.http.errors import Refused
from handlers.http.exchange import exchange_of, operation_id
from handlers.keys import GENERATE, TOKENIZE, Keyring

SCHEME = b"bearer"
DIGEST_BYTES = 12
TOKENS = "Tokens"  # the tag of the operations that need the scope `tokenize`
Verify = Callable[[ConnexionRequest], dict[str, Any]]


def security_map(keyring: Keyring, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return connexion's security map; without a key on the ring no request passes."""
    return {"bearer": partial(KeyHandler, keyring, scopes_of(document))}


def scopes_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return which scope each operation needs of a key, by operationId."""
    operations = [
        node for path in document["paths"].values() for node in path.values() if "operationId" in node
    ]
    return {
        node["operationId"]: TOKENIZE if TOKENS in node.get("tags", ()) else GENERATE for node in operations
    }


class KeyHandler(BearerSecurityHandler):
    """Looks for the key on the ring, exactly; the scheme's case doesn't matter."""

    def __init__(self, keyring: Keyring, scopes: Mapping[str, str]) -> None:
        self._keyring = keyring
        self._scopes = scopes

    def get_fn(self, security_scheme: Mapping[str, Any], required_scopes: list[str]) -> Verify:
        """Return the check of one request; connexion asks once for each operation."""
        return self._verify

    def _verify(self, request: ConnexionRequest) -> dict[str, Any]:
        given = _authorizations(request.scope)
        if len(given) != 1:
            raise OAuthProblem
        scheme, token = _parts(given[0])
        key = self._keyring.find(token) if scheme == SCHEME and token else None
        if key is None:
            raise OAuthResponseProblem
        needed = self._scopes.get(operation_id(request.scope), GENERATE)
        if needed not in key.scopes:
            raise Refused(
                f"This key has no scope `{needed}`, which the route needs; it has "
                f"{', '.join(f'`{scope}`' for scope in sorted(key.scopes))}: use another key",
                status=403,
                error_type="forbidden",
            )
        exchange_of(request.scope).key = key
        return {"sub": key.name}


def knows(keyring: Keyring, scope: Scope) -> bool:
    """Return whether a request brings a key on the ring, whatever that may do, or none is asked for."""
    if not keyring.locked:
        return True
    parts = [_parts(given) for given in _authorizations(scope)]
    return len(parts) == 1 and parts[0][0] == SCHEME and keyring.find(parts[0][1]) is not None


def owner_of(scope: Scope) -> str:
    """Return whose a request is: the name of its key, or a digest of the bearer token, "" without one.

    Requests of the same owner stand in line together, and lines take turns: see `Request.owner`. A token
    without a name was perhaps not checked, as where no key is asked for.
    """
    key = exchange_of(scope).key
    if key is not None and key.name:
        return key.name
    for given in _authorizations(scope):
        scheme, token = _parts(given)
        if scheme == SCHEME and token:
            return "~" + blake2b(token, digest_size=DIGEST_BYTES).hexdigest()  # "~" is in no name
    return ""


def _authorizations(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == b"authorization"]


def _parts(authorization: bytes) -> tuple[bytes, bytes]:
    scheme, _, key = authorization.partition(b" ")
    return scheme.lower(), key.strip(b" \t")
