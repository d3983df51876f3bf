"""The engine's requests, made of the parameters that all dialects have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from handlers.wire.parameters import Parameters
from inference.errors import GrammarRefused
from inference.types import Grammar, LogprobsMode, Request

Wanted: TypeAlias = Grammar | GrammarRefused | None  # the form of a text: none, or why there can't be one


def to_request(given: Parameters, *, id: str, prompt: str, logprobs: LogprobsMode) -> Request:
    """Return a request with what the parameters say, but for its sampling."""
    return Request(
        id=id,
        prompt=prompt,
        truncate=given.truncate,
        max_new_tokens=given.max_new_tokens,
        min_new_tokens=given.min_new_tokens or 0,
        ignore_eos=given.ignore_eos,
        stop=given.stop,
        logprobs=logprobs,
        top_n_tokens=given.top_n_tokens or 0,
        cache_salt=given.cache_salt or "",
        adapter=given.adapter,
    )


def left_out(grammar: Wanted) -> tuple[str, ...]:
    """Return the members, with the keywords of schemas, that a grammar doesn't follow."""
    return grammar.left_out if isinstance(grammar, Grammar) else ()


def grammar_or_refusal(understand: Callable[[], Grammar | None]) -> Wanted:
    """Return the grammar that `understand` returns, or what it is refused with.

    The engine raises that where it would compile the grammar: after all else, as TGI looks at grammars last.
    """
    try:
        return understand()
    except GrammarRefused as refused:
        return refused


def numbered(requests: Iterable[Request]) -> tuple[Request, ...]:
    """Return the requests of one body with ids of their own; a single one keeps the body's."""
    requests = tuple(requests)
    if len(requests) == 1:
        return requests
    return tuple(replace(request, id=f"{request.id}-{place}") for place, request in enumerate(requests))
