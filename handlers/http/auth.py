"""API keys: `Authorization: Bearer KEY`, asked for by the operations that the contract secures.

Where the contract says so, on the routes of Anthropic's Messages, `x-api-key: KEY` does as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any

from connexion.exceptions import OAuthProblem, OAuthResponseProblem
from connexion.lifecycle import ConnexionRequest
from connexion.security import AbstractSecurityHandler
from starlette.types import Scope

from handlers.http.errors import Refused
from handlers.http.exchange import exchange_of, operation_id
from handlers.http.message_errors import speaks_messages
from handlers.keys import ADMIN, GENERATE, TOKENIZE, Keyring

SCHEME = b"bearer"
HEADER = b"x-api-key"
DIGEST_BYTES = 12
SCOPES_OF_TAGS = {"Tokens": TOKENIZE, "Adapters": ADMIN}  # what has another tag needs `generate`
Given = Callable[[Scope], Iterator[bytes]]
Verify = Callable[[ConnexionRequest], dict[str, Any]]


def security_map(keyring: Keyring, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return connexion's security map; without a key on the ring no request passes."""
    scopes = scopes_of(document)
    bearer, header = (
        partial(KeyHandler, keyring, scopes, bearers),
        partial(KeyHandler, keyring, scopes, named),
    )
    return {"bearer": bearer, "apiKey": header}


def opened(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document whose operations ask for no key."""
    paths = {
        path: {
            method: {**node, "security": []} if "security" in node else node for method, node in each.items()
        }
        for path, each in document["paths"].items()
    }
    return {**document, "paths": paths, "security": []}


def scopes_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return which scope each operation needs of a key, by operationId."""
    operations = [
        node for path in document["paths"].values() for node in path.values() if "operationId" in node
    ]
    return {
        node["operationId"]: next(
            (SCOPES_OF_TAGS[tag] for tag in node.get("tags", ()) if tag in SCOPES_OF_TAGS), GENERATE
        )
        for node in operations
    }


class KeyHandler(AbstractSecurityHandler):
    """Looks for the key on the ring, exactly; the scheme's case doesn't matter."""

    def __init__(self, keyring: Keyring, scopes: Mapping[str, str], given: Given) -> None:
        """`given` finds the keys that a request brings in the way that this handler is for."""
        self._keyring = keyring
        self._scopes = scopes
        self._given = given

    def get_fn(self, security_scheme: Mapping[str, Any], required_scopes: list[str]) -> Verify:
        """Return the check of one request; connexion asks once for each operation."""
        return self._verify

    def _verify(self, request: ConnexionRequest) -> dict[str, Any]:
        given = list(self._given(request.scope))
        if len(given) != 1:
            raise OAuthProblem
        key = self._keyring.find(given[0]) if given[0] else None
        if key is None:
            raise OAuthResponseProblem
        exchange = exchange_of(request.scope)
        exchange.key, exchange.token = key, digest_of(given[0])
        exchange.owner = owner_of(request.scope)  # for the log, whatever becomes of it
        needed = self._scopes.get(operation_id(request.scope), GENERATE)
        if needed not in key.scopes:
            raise Refused(
                f"This key has no scope `{needed}`, which the route needs; it has "
                f"{', '.join(f'`{scope}`' for scope in sorted(key.scopes))}: use another key",
                status=403,
                error_type="forbidden",
            )
        return {"sub": key.name}


def knows(keyring: Keyring, scope: Scope) -> bool:
    """Return whether a request brings a key on the ring, whatever that may do, or none is asked for."""
    if not keyring.locked:
        return True
    ways = [list(bearers(scope)), list(named(scope)) if speaks_messages(scope["path"]) else []]
    return any(len(given) == 1 and keyring.find(given[0]) is not None for given in ways)


def owner_of(scope: Scope) -> str:
    """Return whose a request is: the name of its key, or a digest of the token, "" without one.

    Requests of the same owner stand in line together, and lines take turns: see `Request.owner`. Of several
    tokens it is the one that was found on the ring: who has a key could else be somebody else with each
    request, by a wrong token beside it. Where no key is asked for, none was checked.
    """
    exchange = exchange_of(scope)
    if exchange.key is not None:
        return exchange.key.name or exchange.token
    given = [*bearers(scope), *(named(scope) if speaks_messages(scope["path"]) else ())]
    return next((digest_of(token) for token in given if token), "")


def digest_of(token: bytes) -> str:
    """Return what a token without a name is called: "~" is in no name."""
    return "~" + blake2b(token, digest_size=DIGEST_BYTES).hexdigest()


def bearers(scope: Scope) -> Iterator[bytes]:
    """Yield the token of each `Authorization`; an empty one for another scheme."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            yield token.strip(b" \t") if scheme.lower() == SCHEME else b""


def named(scope: Scope) -> Iterator[bytes]:
    """Yield each `x-api-key`."""
    return (value.strip(b" \t") for name, value in scope["headers"] if name == HEADER)
