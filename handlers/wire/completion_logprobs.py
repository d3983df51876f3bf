"""The log-probabilities of text completions, in OpenAI's older form: four lists side by side."""

from __future__ import annotations

from collections.abc import Sequence

from handlers.wire.openai import IMPOSSIBLE, TokenBytes, own_text
from handlers.wire.parameters import all_shortest, shortest
from handlers.wire.token_places import TokenPlaces
from handlers.wire.types import CompletionLogprobs
from inference.types import Event, PromptToken, Token

Scored = Token | PromptToken


class LogprobsTeller:
    """Tells the tokens of one completion with their log-probabilities, piece by piece."""

    def __init__(self, top: int | None, token_bytes: TokenBytes | None = None) -> None:
        """`top` is how many of the likeliest stand beside each; None: nothing was asked for, or is told.

        `token_bytes` has the bytes of each token by its id, by which parts of characters are told apart.
        """
        self._top = top
        self._token_bytes = token_bytes
        self._places = TokenPlaces(token_bytes=token_bytes)

    def prompt(self, tokens: Sequence[PromptToken], text: str) -> CompletionLogprobs | None:
        """Return the part of a prompt that is echoed."""
        if self._top is None:
            return None
        scored = [(token, token.top_tokens) for token in tokens]
        return to_logprobs(scored, self._places.prompt(tokens, text), self._top, self._token_bytes)

    def generated(self, events: Sequence[Event]) -> CompletionLogprobs | None:
        """Return the part of generated tokens."""
        if self._top is None:
            return None
        scored = [(event.token, event.top_tokens) for event in events]
        return to_logprobs(scored, self._places.generated(events), self._top, self._token_bytes)


def joined(parts: Sequence[CompletionLogprobs | None]) -> CompletionLogprobs | None:
    """Return the parts of a completion as one."""
    told = [part for part in parts if part is not None]
    if not told:
        return None
    likeliest = [tokens for part in told for tokens in part["top_logprobs"] or ()]
    return {
        "tokens": [token for part in told for token in part["tokens"]],
        "token_logprobs": [logprob for part in told for logprob in part["token_logprobs"]],
        "top_logprobs": None if told[0]["top_logprobs"] is None else likeliest,
        "text_offset": [offset for part in told for offset in part["text_offset"]],
    }


def to_logprobs(
    tokens: Sequence[tuple[Scored, Sequence[Token]]],
    places: Sequence[int],
    top: int,
    token_bytes: TokenBytes | None = None,
) -> CompletionLogprobs:
    """Return tokens, each with the likeliest at its place, as the four lists; `top` of 0 leaves one out."""
    return {
        "tokens": [own_text(token, token_bytes) for token, _ in tokens],
        "token_logprobs": [_logprob(token) for token, _ in tokens],
        "top_logprobs": [_likeliest(*each, top, token_bytes) for each in tokens] if top else None,
        "text_offset": list(places),
    }


def _likeliest(
    token: Scored, others: Sequence[Token], top: int, token_bytes: TokenBytes | None
) -> dict[str, float | None] | None:
    """Return the likeliest tokens by their texts, and the token itself if it isn't among them."""
    if token.logprob is None:
        return None
    likeliest = others[:top]
    named: dict[str, float | None] = {}
    for other, logprob in zip(likeliest, all_shortest([each.logprob for each in likeliest]), strict=True):
        # Of two with the same text the likelier one
        named.setdefault(own_text(other, token_bytes), IMPOSSIBLE if logprob is None else logprob)
    named.setdefault(own_text(token, token_bytes), _logprob(token))
    return named


def _logprob(token: Scored) -> float | None:
    if token.logprob is None:  # the first token of a prompt
        return None
    logprob = shortest(token.logprob)
    return IMPOSSIBLE if logprob is None else logprob
