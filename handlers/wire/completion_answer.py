"""One text completion as it is answered: whole, or as the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from handlers.wire.completion_logprobs import TokenPlaces, to_logprobs
from handlers.wire.completions import Completion, choice, frame, usage_of, without_text
from handlers.wire.openai import Stamp, counted_so_far, finish_reason, usage
from handlers.wire.tgi import Output, finish_of
from inference.types import Event, Finish

Json = dict[str, Any]


class Answer:
    """The completions of one body."""

    def __init__(self, completion: Completion, stamp: Stamp) -> None:
        self._completion = completion
        self._stamp = stamp

    def whole(self, outputs: Sequence[Output], chosen: Sequence[Output]) -> Json:
        """Return the answer: the `chosen` outputs of all."""
        prompts, n = self._completion.prompts, self._completion.n
        choices = [self._choice(index, prompts[index // n], output) for index, output in enumerate(chosen)]
        counts = usage_of(self._completion, [finish_of(output) for output in outputs])
        return frame(self._stamp, choices, counts)

    def _choice(self, index: int, prompt: str, output: Output) -> Json:
        completion, finish = self._completion, finish_of(output)
        if completion.scored:
            return choice(index, prompt, self._logprobs(prompt, finish, ()), "length")
        text = (prompt if completion.echo else "") + finish.text_before_stop
        return choice(index, text, self._logprobs(prompt, finish, output), finish_reason(output[-1]))

    def _logprobs(self, prompt: str, finish: Finish, events: Sequence[Event]) -> Json | None:
        completion, places = self._completion, TokenPlaces()
        if completion.logprobs is None:
            return None
        starts = places.prompt(finish.prompt, prompt) if completion.echo else []
        told = [(token, token.top_tokens) for token in finish.prompt] if completion.echo else []
        made = [(event.token, event.top_tokens) for event in events]
        return to_logprobs([*told, *made], starts + places.generated(events), completion.logprobs)


class AnswerStream:
    """The chunks of one completion; the prompt, if it is echoed, comes as a chunk of its own."""

    def __init__(
        self, completion: Completion, stamp: Stamp, index: int, prompt: str, prompt_tokens: int
    ) -> None:
        self._completion = completion
        self._stamp = stamp
        self._index = index
        self._prompt = prompt
        self._prompt_tokens = prompt_tokens
        self._places = TokenPlaces()

    def push(self, event: Event) -> list[Json]:
        """Return the chunks of a token; the last one's has the completion's usage."""
        if self._completion.scored:
            assert event.finish is not None, "one token is all that is generated"
            only = choice(self._index, self._prompt, None, "length")
            return [frame(self._stamp, [only], usage([without_text(event.finish)]))]
        chunks = [self._token(event)]
        if event.index == 1 and self._completion.echo:
            first = choice(self._index, self._prompt, None, None)
            chunks.insert(0, frame(self._stamp, [first], self._so_far(0)))
        return chunks

    def _token(self, event: Event) -> Json:
        told = choice(self._index, event.delta, self._logprobs(event), finish_reason(event))
        counts = self._so_far(event.index) if event.finish is None else usage([event.finish])
        return frame(self._stamp, [told], counts)

    def _logprobs(self, event: Event) -> Json | None:
        top = self._completion.logprobs
        if top is None:
            return None
        return to_logprobs([(event.token, event.top_tokens)], self._places.generated([event]), top)

    def _so_far(self, generated: int) -> Json | None:
        return counted_so_far(self._prompt_tokens, generated) if self._completion.continuous_usage else None
