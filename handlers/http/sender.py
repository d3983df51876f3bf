"""Who sends a request: clients made for OpenAI's API read answers by what that does.

Their headers tell it, unless the setting `openai_dialect` does, as proxies strip such headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope

OPENAI_CLIENT = b"x-stainless-lang"  # a header that OpenAI's own clients send, in all languages but .NET
AGENTS = (b"OpenAI/", b"ai-sdk/")  # in the `user-agent` of OpenAI's own, and of Vercel's AI SDK
ROUTES = "/v1/"  # OpenAI's
AUTO, ALWAYS, NEVER = "auto", "always", "never"
SAID = "parley.speaks_openai"  # in the scope's extensions: what the setting says


def set_dialect(scope: Scope, dialect: str) -> None:
    """Note what the setting says of a request's sender, where it isn't its headers that do."""
    if dialect == NEVER or (dialect == ALWAYS and scope["path"].startswith(ROUTES)):
        scope.setdefault("extensions", {})[SAID] = dialect == ALWAYS


def speaks_openai(scope: Scope) -> bool:
    """Return whether a client made for OpenAI's API sends a request, and so expects what that answers."""
    said = scope.get("extensions", {}).get(SAID)
    if said is not None:
        return bool(said)
    return any(
        name == OPENAI_CLIENT or (name == b"user-agent" and any(agent in value for agent in AGENTS))
        for name, value in scope["headers"]
    )
