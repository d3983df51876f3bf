"""What the layers of one request tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from connexion.middleware.abstract import ROUTING_CONTEXT
from starlette.types import Scope

from handlers.account import Account
from handlers.http.aside import AT_ONCE, Aside
from handlers.images.memory import Hold
from handlers.keys import Key
from handlers.wire.names import OPENAI, Names

KEY = "parley"


@dataclass(slots=True)
class Exchange(Account):
    """A request on its way; it travels in the extensions of the ASGI scope, which every layer shares."""

    body: Any = None  # set by the validation: the JSON body
    names: Names = OPENAI  # set by the validation: what the operation's bodies call members
    ignored: str = ""  # set by the validation: the value of x-ignored-parameters
    speaks_openai: bool = False  # set by the validation: a client made for OpenAI's API sent it
    aside: Aside = AT_ONCE  # set by the validation: where the body is worked on
    hold: Hold | None = None  # set by the validation: what the request holds of images
    key: Key | None = None  # set by the authentication, where a key is asked for
    token: str = ""  # set by the authentication: a digest of the token that is this key


def attach(scope: Scope, exchange: Exchange) -> None:
    """Put the exchange where `exchange_of` finds it."""
    scope.setdefault("extensions", {})[KEY] = exchange


def operation_id(scope: Scope) -> str:
    """Return which operation connexion's routing has found for the request; "" for none."""
    routing = scope["extensions"].get(ROUTING_CONTEXT, {})
    return routing.get("operation_id") or ""


def exchange_of(scope: Scope) -> Exchange:
    """Return the exchange that `attach` put there."""
    return cast(Exchange, scope["extensions"][KEY])
