"""One generation: from the core's token ids to the events that its consumer iterates over."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.errors import IncompleteGeneration, InferenceError
from inference.frontend.prompt_tokens import PromptTokens
from inference.types import CoreOutput, Event, Finish, FinishReason, PromptToken, Request, Timings, Token

if TYPE_CHECKING:
    from inference.text.pipeline import TextPipeline


Top = tuple[tuple[int, float], ...]  # (token id, logprob), best first


class Generation(AsyncIterator[Event]):
    """The events of one request, in order; iterate it once, and `aclose` it in every case.

    Exactly the last event has `finish`. A failed request raises its InferenceError in place of
    further events, once. Not for use from several tasks at a time, except `aclose`.
    """

    def __init__(self, request: Request, prompt_tokens: int, abort: Callable[[], None]) -> None:
        self.request = request
        self.prompt_tokens = prompt_tokens
        self.generated_tokens = 0  # so far
        self._abort = abort
        self._ready: deque[Event] = deque()
        self._failure: InferenceError | None = None
        self._ended = False  # nothing more will be put
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Event:
        await self._wait()
        if self._ready:
            return self._ready.popleft()
        self._raise_failure()
        raise StopAsyncIteration

    async def next_batch(self) -> tuple[Event, ...]:
        """Return every event that is ready, after waiting for one; empty once all were returned.

        For consumers that can be slower than the engine: what piled up goes out in one write.
        """
        await self._wait()
        if not self._ready:
            self._raise_failure()
        batch = tuple(self._ready)
        self._ready.clear()
        return batch

    async def collect(self) -> tuple[Event, ...]:
        """Return all events; raises what iteration raises, or IncompleteGeneration if it was closed."""
        events = [event async for event in self]
        if not events or events[-1].finish is None:
            raise IncompleteGeneration("The generation was closed before its last token")
        return tuple(events)

    async def aclose(self) -> None:
        """Abort the request if it still runs; a consumer that waits gets IncompleteGeneration."""
        if self._ended:
            return
        self._abort()
        self.fail(IncompleteGeneration("The generation was closed before its last token"))

    def put(self, event: Event) -> None:
        """Hand an event to the consumer; called by the client, on the event loop."""
        if self._ended:
            return
        self._ready.append(event)
        self.generated_tokens = event.index
        self._ended = event.finish is not None
        self._wake()

    def fail(self, error: InferenceError) -> None:
        """End the request with an error; called by the client, on the event loop."""
        if self._ended:
            return
        self._failure = error
        self._ended = True
        self._wake()

    async def _wait(self) -> None:
        while not self._ready and not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


class EventAssembler:
    """Turns the core's outputs for one request into its events: text, stop sequences, finish."""

    def __init__(
        self,
        request: Request,
        prompt_ids: tuple[int, ...],
        text: TextPipeline,
        eos_token_ids: frozenset[int],
        submitted: float,
        queued: float,
        decoder_start: tuple[int, ...] = (),
    ) -> None:
        """`decoder_start`: what texts are begun with by a model whose encoder reads prompts."""
        self._request = request
        self._min_tokens = request.min_new_tokens
        self._prompt_ids = prompt_ids
        self._pipeline = text
        self._special_ids = text.special_ids | eos_token_ids
        self._decoder_start = decoder_start
        self._text = text.sequence(decoder_start or prompt_ids, request.stop, request.tools, request.thoughts)
        self._submitted = submitted  # time.monotonic seconds, as is the next
        self._queued = queued
        self._index = 0
        self._started, self._cached_tokens = 0.0, 0  # as the first token says: later ones need not
        self._first_token = 0.0  # time.monotonic seconds

    def event(self, output: CoreOutput) -> Event:
        """Return the event of the next token; it has `finish` if the core or a stop sequence says so."""
        self._index += 1
        if self._index == 1:
            self._started, self._cached_tokens = output.started, output.cached_tokens
            self._first_token = time.monotonic()
        special = output.token_id in self._special_ids or output.finish is FinishReason.EOS
        step = self._text.push(output.token_id, special=special, may_stop=self._index >= self._min_tokens)
        # TGI's order: the length limit first, then EOS, then stop sequences
        reason = output.finish or (FinishReason.STOP if step.stopped else None)
        delta = step.delta if reason is None else step.delta + self._text.flush()
        return Event(
            index=self._index,
            token=Token(output.token_id, step.text, output.logprob, special),
            top_tokens=self._top_tokens(output.top) if output.top else (),
            delta=delta,
            finish=None if reason is None else self._finish(reason, step.behind),
            prompt=self._prompt(output),
        )

    @property
    def tokens(self) -> int:
        """Return how many were read and written so far."""
        return len(self._prompt_ids) + self._index

    def _finish(self, reason: FinishReason, behind: str) -> Finish:
        sampling, text = self._request.sampling, self._text
        return Finish(
            reason=reason,
            text=text.text if reason is FinishReason.STOP else text.whole_text,
            text_before_stop=text.text_before_stop,
            stopped=text.stopped,
            cut=behind if reason is FinishReason.STOP else "",
            prompt_tokens=len(self._prompt_ids),
            generated_tokens=self._index,
            cached_tokens=self._cached_tokens,
            seed=sampling.seed if sampling.sample else None,
            timings=Timings(
                submitted=self._submitted,
                queued=self._queued,
                started=self._started,
                first_token=self._first_token,
                finished=time.monotonic(),
            ),
        )

    def _top_tokens(self, top: Top) -> tuple[Token, ...]:
        text_of, special = self._pipeline.token_text, self._special_ids
        return tuple(Token(each, text_of(each), logprob, each in special) for each, logprob in top)

    def _prompt(self, output: CoreOutput) -> Sequence[PromptToken]:
        """Return the prompt's tokens with what is known of them, by the event that is to tell them.

        Behind an encoder, as in TGI, they are those that the decoder began with: nothing is known of others.
        """
        if output.prompt_logprobs is not None:
            return self._prompt_tokens(output)
        if self._index != 1 or not self._decoder_start or not self._request.prompt_logprobs:
            return ()
        text_of = self._pipeline.token_text
        return tuple(PromptToken(each, text_of(each), None) for each in self._decoder_start)

    def _prompt_tokens(self, output: CoreOutput) -> PromptTokens:
        logprobs = output.prompt_logprobs or ()
        return PromptTokens(
            self._prompt_ids, logprobs, output.prompt_top, self._pipeline.token_text, self._top_tokens
        )


@dataclass(frozen=True, slots=True)
class Running:
    """A request that the core works on."""

    generation: Generation
    assembler: EventAssembler
    context: Context  # in which it was submitted, so that what is logged of it has whose it is
