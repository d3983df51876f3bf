"""What the texts of an answer have in common with their request: prompts, stop sequences, tokens, counts.

All of it holds for any model. Members are read by the names that the document gives them in each dialect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Body = Mapping[str, Any]

LONGEST_TOKEN = 128  # characters; where it isn't told which was the last
LATER_STOPS = ("min_new_tokens", "min_tokens")  # members that let a text go on after a stop sequence


@dataclass(frozen=True, slots=True)
class Told:
    """One text of an answer."""

    index: int
    text: str
    prompt: str | None = None  # that the text is to begin with


def choice_problems(body: Body, answer: Body, events: Sequence[Any] | None) -> Iterator[str]:
    """Yield what is wrong with OpenAI's choices."""
    chunks = [answer] if events is None else [event for event in events if "choices" in event]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    if events is None and [choice["index"] for choice in choices] != list(range(len(choices))):
        yield f"choices are numbered from 0: {[choice['index'] for choice in choices]}"
    asked = body.get("logprobs")
    wanted = asked is not None and asked is not False  # a number in one dialect, where 0 is one
    if any((choice["logprobs"] is not None) is not wanted for choice in choices):
        yield f"`logprobs` is {asked!r}, and they are {'not ' if wanted else ''}there"
    if events is not None and (body.get("stream_options") or {}).get("continuous_usage_stats"):
        silent = [chunk for chunk in chunks if chunk["choices"] and chunk.get("usage") is None]
        if silent:
            yield f"`continuous_usage_stats` is set, and {len(silent)} of {len(chunks)} chunks have no usage"
    for told in _told(body, choices):
        yield from _prompt_problems(told)
        yield from _stop_problems(body, told)


def generated_problems(inputs: Any, parameters: Body, answer: Body) -> Iterator[str]:
    """Yield what is wrong with TGI's answer, or with the last event of its stream."""
    text, full = answer["generated_text"], parameters.get("return_full_text")
    if full is None:  # the routes differ in what that means
        full = isinstance(inputs, str) and text.startswith(inputs)
    told = Told(0, text, inputs if full and isinstance(inputs, str) else None)
    yield from _prompt_problems(told)
    details = answer.get("details")
    yield from _stop_problems(parameters, told, behind=_behind_stop(details))
    if not details:
        return
    seed = parameters.get("seed")
    greedy = details["seed"] is None and not parameters.get("do_sample")  # no seed is used then
    if seed is not None and details["seed"] != seed and not greedy:
        yield f"`seed` was {seed}, and {details['seed']} is told"
    if "tokens" in details and len(details["tokens"]) != details["generated_tokens"]:
        yield f"{len(details['tokens'])} tokens are told of {details['generated_tokens']}"
    ended = any(told.text.endswith(stop) for stop in _stops(parameters))
    if details["finish_reason"] == "stop_sequence" and not ended:
        yield f"a stop sequence ended the text, which has none at its end: {told.text[-80:]!r}"


def token_problems(text: str, tokens: Sequence[Body], *, added: bool) -> Iterator[str]:
    """Yield what is wrong with the tokens of a text; `added`: special ones may stand beside it."""
    data = text.encode()
    for token in tokens:
        start, stop = token["start"], token["stop"]
        if data[start:stop].decode("utf-8", "replace") != token["text"]:
            yield f"the text at {start}:{stop} is {data[start:stop]!r}, not {token['text']!r}"
            return
        if start == stop and token["special"] and not added:
            yield f"a special token, {token['id']}, is added to the text"
            return
    if max((token["stop"] for token in tokens), default=0) < len(data.rstrip()):
        yield "the tokens end before the text does"


def _told(body: Body, choices: Sequence[Body]) -> list[Told]:
    """Return the text of each choice, put together from its chunks if need be."""
    texts: dict[int, str] = {}
    for choice in choices:
        said = choice.get("message") or choice.get("delta") or {}
        text = choice["text"] if "text" in choice else said.get("content")
        texts[choice["index"]] = texts.get(choice["index"], "") + (text or "")
    prompts, n = body.get("prompt"), body.get("n") or 1
    prompts = [prompts] if isinstance(prompts, str) else prompts
    if not body.get("echo") or not isinstance(prompts, list) or any("text" not in each for each in choices):
        return [Told(index, text) for index, text in texts.items()]
    begun = {index: prompts[index // n] for index in texts if index // n < len(prompts)}
    return [
        Told(index, text, begun[index] if isinstance(begun.get(index), str) else None)
        for index, text in texts.items()
    ]


def _prompt_problems(told: Told) -> Iterator[str]:
    if told.prompt is not None and not told.text.startswith(told.prompt):
        yield f"text {told.index} doesn't begin with its prompt: {told.text[:80]!r}"


def _behind_stop(details: Body | None) -> int:
    """Return how long what follows a stop sequence may be: the end of the last token that was allowed."""
    if not details:
        return LONGEST_TOKEN
    if details["finish_reason"] != "length":
        return 0
    tokens = details.get("tokens")
    return max(len(tokens[-1]["text"]) - 1, 0) if tokens else LONGEST_TOKEN


def _stop_problems(asked: Body, told: Told, *, behind: int | None = None) -> Iterator[str]:
    """Yield the stop sequences within a text; one may be its end, with so much `behind` it, if not None."""
    if any(asked.get(name) for name in LATER_STOPS) or (asked.get("echo") and told.prompt is None):
        return
    text = told.text.removeprefix(told.prompt or "")
    for stop in _stops(asked):
        at = text.find(stop)
        if at >= 0 and (behind is None or at + len(stop) + behind < len(text)):
            yield f"text {told.index} goes on after the stop sequence {stop!r}: {text[at : at + 80]!r}"


def _stops(asked: Body) -> list[str]:
    stop = asked.get("stop")
    return [stop] if isinstance(stop, str) else list(stop or ())
