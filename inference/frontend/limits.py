"""The limits of a request's prompt and length, with TGI's messages and in TGI's order."""

from __future__ import annotations

from collections.abc import Sequence

from inference.errors import ContextExceeded, InvalidInput, Member
from inference.types import ModelInfo, Request

SHOWN_CHARACTERS, SHOWN_NAMES = 100, 10  # of a name, and in a message
UTF8_BYTES = 4  # of one character, at most
AT_LEAST = "at least "  # of tokens that were counted by the longest one
PROMPT_LOGPROBS = 2**24  # of alternatives: they cross in one frame, with 8 bytes each
INPUTS, MOST, LEAST = Member("inputs"), Member("max_new_tokens"), Member("min_new_tokens")
SLICE_TOKENS = 1024  # TGI checks at most this many new tokens against the context, and clamps the rest


def check_prompt(request: Request, model: ModelInfo) -> None:
    """Raise InvalidInput, in TGI's words, for what can be seen before the prompt is tokenised."""
    if not (request.prompt if request.prompt_ids is None else request.prompt_ids):
        raise InvalidInput(INPUTS, " cannot be empty")
    truncate, limit = request.truncate, model.max_input_tokens
    if truncate is not None and not 0 < truncate <= limit:
        raise InvalidInput(
            Member("truncate"), f" must be strictly positive and less than {limit}. Given: {truncate}"
        )
    if "" in request.stop:
        raise InvalidInput(Member("stop"), ' must not contain an empty string. Given: ""')


def find_adapter(name: str | None, model: ModelInfo) -> int:
    """Return the number of one of the model's adapters, -1 for none; raise InvalidInput if it isn't there."""
    if name is None:
        return -1
    number = model.adapters.get(name)
    if number is not None:
        return number
    shown = name if len(name) <= SHOWN_CHARACTERS else f"{name[:SHOWN_CHARACTERS]}..."
    names = ", ".join(f"`{each}`" for each in list(model.adapters)[:SHOWN_NAMES])
    more = len(model.adapters) - SHOWN_NAMES
    loaded = f"loaded are {names}{f' and {more} more' if more > 0 else ''}" if names else ""
    raise InvalidInput(
        Member("adapter_id"),
        f" must name a loaded adapter: {loaded or 'none are, --lora-adapters loads them'}. Given: {shown}",
    )


def check_length(
    prompt: str, max_new_tokens: int | None, longest_token: int | None, model: ModelInfo
) -> None:
    """Raise InvalidInput for a prompt that is too long whatever its tokens are, before any are looked for.

    It is what `fit_context` would raise. `longest_token` is how many bytes of a text one token stands for
    at most; None where that isn't known.
    """
    if longest_token is None or len(prompt) <= model.max_input_tokens * longest_token // UTF8_BYTES:
        return
    size = len(prompt.encode("utf-8", "replace"))
    least = -(-size // longest_token)
    wanted = min(max_new_tokens or 0, SLICE_TOKENS)
    if least > model.max_input_tokens:
        exceeds = least + wanted > model.max_total_tokens
        raise too_long(model, least, wanted, AT_LEAST) if exceeds else too_many(model, least, AT_LEAST)


def fit_logprobs(request: Request, prompt_tokens: int, max_new_tokens: int, limit: int) -> int:
    """Return how many tokens to generate: at most what `limit` log-probabilities of alternatives leave.

    Each of its body's `sequences` is counted as this one. Raises InvalidInput where the client has named too
    large a number, or not one token could be told.
    """
    top, told = request.top_n_tokens, prompt_tokens * request.prompt_top_n_tokens
    if told > PROMPT_LOGPROBS:
        raise InvalidInput(
            Member("logprobs"),
            f" beside `echo` must be <= {PROMPT_LOGPROBS} log-probabilities for one prompt. Given: "
            f"{told}, which are {request.prompt_top_n_tokens} for each of {prompt_tokens} tokens: ask "
            "for fewer",
        )
    if request.max_new_tokens is None and top:
        room = max((limit // request.sequences - told) // top, request.min_new_tokens, 1)
        max_new_tokens = min(max_new_tokens, room)
    _check_logprobs(request, prompt_tokens, max_new_tokens, limit)
    return max_new_tokens


def _check_logprobs(request: Request, prompt_tokens: int, max_new_tokens: int, limit: int) -> None:
    echoed = prompt_tokens if request.prompt_top_n_tokens else 0
    told = echoed + (max_new_tokens if request.top_n_tokens else 0)
    each = max(request.top_n_tokens, request.prompt_top_n_tokens)  # the same where both are asked for
    asked = told * each * request.sequences
    if asked > limit:
        raise InvalidInput(
            Member("top_n_tokens", "`top_n_tokens` (`logprobs`, `top_logprobs`)"),
            " for all ",
            Member("n", "texts (`n`, `best_of`, prompts) of a body"),
            f" must be <= {limit} log-probabilities (`max_sequence_logprobs`). Given: {asked}, which are "
            f"{each} for each of up to {told} tokens of {request.sequences} texts: ask for fewer, or for a "
            "smaller ",
            Member("max_new_tokens", "`max_new_tokens` (`max_tokens`)"),
        )


def fit_context(prompt_tokens: int, max_new_tokens: int | None, model: ModelInfo) -> int:
    """Return how many tokens to generate: at most what was asked for and what the context leaves.

    Raises InvalidInput, in TGI's words and order. As TGI does, only the first SLICE_TOKENS of
    `max_new_tokens` must fit the context; a larger wish is cut to what fits.
    """
    if prompt_tokens == 0:
        raise InvalidInput(INPUTS, " cannot be empty")
    total = model.max_total_tokens
    room = max(total - prompt_tokens, 0)
    if model.max_text_tokens is not None:
        room = min(room, model.max_text_tokens)
    wanted = room if max_new_tokens is None else max_new_tokens
    checked = min(wanted, SLICE_TOKENS)
    if prompt_tokens + checked > total:
        raise too_long(model, prompt_tokens, checked)
    if prompt_tokens > model.max_input_tokens:
        raise too_many(model, prompt_tokens)
    if checked > room:
        raise InvalidInput(
            MOST,
            f" must be <= {room}, the positions that the model's decoder knows. Given: {checked}",
        )
    if room == 0:
        raise too_long(model, prompt_tokens, 1)
    return min(wanted, room)


def check_minimum(min_new_tokens: int, max_new_tokens: int | None, granted: int) -> None:
    """Raise InvalidInput if more tokens must be generated than may be, of which `granted` fit the context."""
    if min_new_tokens <= granted:
        return
    if max_new_tokens is not None and max_new_tokens <= granted:
        given = (f". Given: {min_new_tokens} ", LEAST, f" and {max_new_tokens} ", MOST)
        raise InvalidInput(LEAST, " must be <= ", MOST, *given)
    raise InvalidInput(
        LEAST,
        f" must be <= {granted}, the ",
        MOST,
        f" for which this prompt leaves room. Given: {min_new_tokens}",
    )


def check_given_ids(ids: Sequence[int], model: ModelInfo) -> None:
    """Raise InvalidInput for a prompt given as ids that are too many, which comes first, or no tokens."""
    if len(ids) > model.max_input_tokens:
        raise too_many(model, len(ids))
    check_ids(ids, model.vocabulary_size)


def check_ids(ids: Sequence[int], vocabulary: int) -> None:
    """Raise InvalidInput for a prompt with an id that is no token."""
    if ids and (min(ids) < 0 or max(ids) >= vocabulary):
        wrong = next(token_id for token_id in ids if not 0 <= token_id < vocabulary)
        raise _no_token(wrong, vocabulary, INPUTS, "holds")


def check_bias(bias: Sequence[tuple[int, float]], vocabulary: int) -> None:
    """Raise InvalidInput for a bias, of ids in order, whose id is no token."""
    if bias and (bias[0][0] < 0 or bias[-1][0] >= vocabulary):
        wrong = next(token_id for token_id, _ in bias if not 0 <= token_id < vocabulary)
        raise _no_token(wrong, vocabulary, Member("logit_bias"), "names")


def _no_token(wrong: int, vocabulary: int, member: Member, has: str) -> InvalidInput:
    return InvalidInput(
        member,
        f" {has} token {wrong}, but the vocabulary has {vocabulary} tokens: "
        f"use ids from 0 to {vocabulary - 1}",
    )


def too_many(model: ModelInfo, prompt_tokens: int, counted: str = "") -> ContextExceeded:
    """Return TGI's message for a prompt that is too long by itself; `counted`: as what it was counted."""
    limit = model.max_input_tokens
    return ContextExceeded(
        INPUTS,
        f" must have less than {limit} tokens. Given: {counted}{prompt_tokens}",
        limit=limit,
        given=prompt_tokens,
    )


def too_long(model: ModelInfo, prompt_tokens: int, max_new_tokens: int, counted: str = "") -> ContextExceeded:
    """Return TGI's message for a request that exceeds the context; `counted` as for `too_many`."""
    total, most = model.max_total_tokens, model.max_input_tokens
    given = (f"Given: {counted}{prompt_tokens} ", INPUTS, f" tokens and {max_new_tokens} ", MOST)
    return ContextExceeded(
        *(INPUTS, " tokens + ", MOST, f" must be <= {total}. ", *given),
        limit=total,
        given=prompt_tokens,
        prompt_limit=most,
        wanted=max_new_tokens if prompt_tokens <= most else 0,
    )
