"""Who sends a request, as its headers tell: clients made for OpenAI's API read answers by what that does."""

from __future__ import annotations

from starlette.types import Scope

OPENAI_CLIENT = b"x-stainless-lang"  # a header that OpenAI's own clients send, in all languages but .NET
AGENTS = (b"OpenAI/", b"ai-sdk/")  # in the `user-agent` of OpenAI's own, and of Vercel's AI SDK


def speaks_openai(scope: Scope) -> bool:
    """Return whether a client made for OpenAI's API sends a request, and so expects what that answers."""
    return any(
        name == OPENAI_CLIENT or (name == b"user-agent" and any(agent in value for agent in AGENTS))
        for name, value in scope["headers"]
    )
