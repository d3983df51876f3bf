"""The answer to a body of text completions: one body, or the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from handlers.wire.completion_logprobs import LogprobsTeller, joined
from handlers.wire.completions import Completion
from handlers.wire.openai import Reason, Stamp, TokenBytes, counted_so_far, end_reason, finish_reason, usage
from handlers.wire.outputs import Output, finish_of, mean_logprob
from handlers.wire.types import (
    Chunk,
    CompletionChoice,
    CompletionComplete,
    CompletionFinal,
    CompletionLogprobs,
    Usage,
)
from inference.types import Event, Finish, FinishReason

Told: TypeAlias = tuple[CompletionChoice, Usage | None]  # a choice of a chunk, and the chunk's counts


class Answer:
    """The completions of one body, once all have ended."""

    def __init__(self, completion: Completion, stamp: Stamp, token_bytes: TokenBytes | None = None) -> None:
        """`token_bytes` is for log-probabilities: see `LogprobsTeller`."""
        self._completion = completion
        self._stamp = stamp
        self._token_bytes = token_bytes

    def body(self, outputs: Sequence[Output]) -> CompletionFinal:
        """Return the whole answer; all outputs count, and the best of each prompt are told."""
        completion, told = self._completion, best(self._completion, outputs)
        prompts, n = completion.prompts, completion.n
        choices = [self._choice(index, prompts[index // n], output) for index, output in enumerate(told)]
        return whole(self._stamp, choices, usage_of(completion, list(map(finish_of, outputs))))

    def _choice(self, index: int, prompt: str, output: Output) -> CompletionComplete:
        completion, teller = self._completion, LogprobsTeller(self._completion.logprobs, self._token_bytes)
        logprobs = [teller.prompt(output[0].prompt, prompt)] if completion.echo else []
        if completion.scored:
            return {"index": index, "text": prompt, "logprobs": joined(logprobs), "finish_reason": "length"}
        logprobs.append(teller.generated(output))
        finish = finish_of(output)
        return {
            "index": index,
            "text": (prompt if completion.echo else "") + finish.text_before_stop,
            "logprobs": joined(logprobs),
            "finish_reason": end_reason(finish),
        }


class AnswerStream:
    """The chunks of the completions of one body, in the order of their events."""

    def __init__(
        self,
        completion: Completion,
        stamp: Stamp,
        prompt_tokens: Sequence[int],
        token_bytes: TokenBytes | None = None,
        *,
        as_tgi: bool = False,
    ) -> None:
        """`prompt_tokens` is how many each request's prompt has; for `token_bytes` see `LogprobsTeller`.

        `as_tgi`: a reason is empty until there is one, and each completion's last chunk has its counts.
        """
        self._completion = completion
        self._stamp = stamp
        self._choices = [
            ChoiceStream(completion, index, request.prompt, tokens, token_bytes, as_tgi=as_tgi)
            for index, (request, tokens) in enumerate(zip(completion.requests, prompt_tokens, strict=True))
        ]
        # As at OpenAI: where counts come in the end, none come before
        self._counts_once = completion.include_usage and not completion.continuous_usage and not as_tgi
        self._finishes: dict[int, Finish] = {}  # by choice

    def chunks(self, place: int, event: Event) -> list[Chunk]:
        """Return the chunks of an event of the choice `place`."""
        chunks = [self._chunk(told, counts) for told, counts in self._choices[place].push(event)]
        if event.finish is not None:
            chunks += self._end(place, event.finish)
        return chunks

    def _chunk(self, told: CompletionChoice, counts: Usage | None) -> Chunk:
        if not self._counts_once:
            return chunk(self._stamp, [told], counts)
        return {**chunk(self._stamp, [told], None), "usage": None}

    def _end(self, place: int, finish: Finish) -> list[Chunk]:
        """Return what follows the last chunk of a choice: after the last choice, the usage if asked for."""
        self._finishes[place] = finish
        if not self._completion.include_usage or len(self._finishes) < len(self._choices):
            return []
        finishes = [self._finishes[place] for place in sorted(self._finishes)]
        return [chunk(self._stamp, [], usage_of(self._completion, finishes))]


class ChoiceStream:
    """What is new in one completion; the prompt, if it is echoed, comes by itself before all else."""

    def __init__(
        self,
        completion: Completion,
        index: int,
        prompt: str,
        prompt_tokens: int,
        token_bytes: TokenBytes | None,
        *,
        as_tgi: bool,
    ) -> None:
        self._completion = completion
        self._index = index
        self._prompt = prompt
        self._prompt_tokens = prompt_tokens
        self._teller = LogprobsTeller(completion.logprobs, token_bytes)
        # TGI's typed clients expect a text; to OpenAI's anything but null is the end
        self._going_on: Literal[""] | None = "" if as_tgi else None

    def push(self, event: Event) -> list[Told]:
        """Return the choices of an event's chunks, each with its counts, which the last one always has."""
        told: list[Told] = []
        if event.index == 1 and self._completion.echo:
            told.append(self._echo(event))
        if not self._completion.scored:
            counts = self._so_far(event.index) if event.finish is None else usage([event.finish])
            logprobs = self._teller.generated([event])
            told.append((self._choice(event.delta, logprobs, finish_reason(event)), counts))
        return told

    def _echo(self, event: Event) -> Told:
        logprobs = self._teller.prompt(event.prompt, self._prompt)
        if not self._completion.scored:
            return self._choice(self._prompt, logprobs, None), self._so_far(0)
        assert event.finish is not None, "one token is all that is generated"
        return self._choice(self._prompt, logprobs, "length"), usage([without_text(event.finish)])

    def _choice(
        self, text: str, logprobs: CompletionLogprobs | None, reason: Reason | None
    ) -> CompletionChoice:
        told = self._going_on if reason is None else reason
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": told}

    def _so_far(self, generated: int) -> Usage | None:
        return counted_so_far(self._prompt_tokens, generated) if self._completion.continuous_usage else None


def best(completion: Completion, outputs: Sequence[Output]) -> tuple[Output, ...]:
    """Return the `n` of each prompt's outputs that are answered with: the likeliest, if there are more."""
    n, candidates = completion.n, completion.candidates
    if n == candidates:
        return tuple(outputs)
    groups = (outputs[at : at + candidates] for at in range(0, len(outputs), candidates))
    return tuple(output for group in groups for output in sorted(group, key=mean_logprob, reverse=True)[:n])


def usage_of(completion: Completion, finishes: Sequence[Finish]) -> Usage:
    """Return the token counts of all sequences; a prompt counts once, and each candidate was generated."""
    return usage([as_told(completion, finish) for finish in finishes], completion.candidates)


def as_told(completion: Completion, finish: Finish) -> Finish:
    """Return how a text ended, as it is told: where only its prompt was asked about, it has no token."""
    return without_text(finish) if completion.scored else finish


def without_text(finish: Finish) -> Finish:
    """Return the finish of a request that only its prompt was looked at."""
    nothing = replace(finish, text="", text_before_stop="", generated_tokens=0)
    return replace(nothing, reason=FinishReason.LENGTH, stopped=False)


def whole(stamp: Stamp, choices: list[CompletionComplete], counts: Usage) -> CompletionFinal:
    """Return a whole answer."""
    return {
        "object": "text_completion",
        "id": stamp.id,
        "created": stamp.created,
        "choices": choices,
        "model": stamp.model,
        "system_fingerprint": stamp.fingerprint,
        "usage": counts,
    }


def chunk(stamp: Stamp, choices: list[CompletionChoice], counts: Usage | None) -> Chunk:
    """Return a chunk of a stream."""
    body: Chunk = {
        "object": "text_completion",
        "id": stamp.id,
        "created": stamp.created,
        "choices": choices,
        "model": stamp.model,
        "system_fingerprint": stamp.fingerprint,
    }
    if counts is not None:
        body["usage"] = counts
    return body
