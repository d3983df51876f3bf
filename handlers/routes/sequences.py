"""Requests on their way through the engine: run to their end or streamed, and counted either way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

from handlers.account import note_begun
from handlers.http.aside import made
from handlers.http.replies import Dialect, EventStream, Failure, Refused, event
from handlers.metrics.metrics import Metrics
from handlers.routes.together import side_by_side
from handlers.service import Service
from handlers.settings.table import Settings
from handlers.wire.limits import Limits
from handlers.wire.outputs import Output, values_of
from inference.errors import (
    GenerationFailed,
    InvalidInput,
    NotReady,
    Overloaded,
    TemplateFailed,
    ToolRefused,
)
from inference.frontend.client import EngineClient, Generation
from inference.types import Event, Finish, LogprobsMode, Request, Watermark

Body = TypeVar("Body")  # of one event of a stream
Render = Callable[[int, Event], Sequence[Body]]  # a request's place and event -> bodies to stream

LABELS: dict[type[Exception], str] = {  # TGI's values of `err`; any other error is "incomplete"
    InvalidInput: "validation",
    ToolRefused: "validation",
    Refused: "validation",
    Overloaded: "overloaded",
    NotReady: "overloaded",
    TemplateFailed: "template",
    GenerationFailed: "generation",
}


def limits_of(service: Service) -> Limits:
    """Return what one request may ask for."""
    settings = service.settings
    return Limits(
        max_best_of=settings.max_best_of,
        max_stop_sequences=settings.max_stop_sequences,
        max_top_n_tokens=settings.max_top_n_tokens,
        max_n=settings.max_n,
        grammar_support=not settings.disable_grammar_support,
        max_grammar_size=settings.max_grammar_size,
        prefill_logprobs=settings.enable_prefill_logprobs,
        adapters=service.adapters,
        watermark=Watermark(gamma=settings.watermark_gamma, delta=settings.watermark_delta),
    )


def logprobs_mode(settings: Settings, usual: LogprobsMode) -> LogprobsMode:
    """Return which log-probabilities are told where any are: the route's usual ones, or what is set."""
    return usual if settings.logprobs_mode == "auto" else LogprobsMode(settings.logprobs_mode)


def new_id() -> str:
    """Return a name for a request: the client's own request id may come twice at a time, this one doesn't.

    Not a secret: the system's generator would cost a call that lets go of the interpreter.
    """
    return f"{random.getrandbits(96):024x}"


def draw_seed() -> int:
    """Return a random uint64."""
    return random.getrandbits(64)


@contextmanager
def counted(metrics: Metrics) -> Iterator[None]:
    """Count the failure that leaves the block; a cancelled request is one whose client has gone."""
    try:
        yield
    except asyncio.CancelledError:
        metrics.failure("dropped")
        raise
    except Exception as error:
        metrics.failure(label(error))
        raise


def label(error: Exception) -> str:
    """Return the value of `err` that counts this error."""
    return next((LABELS[kind] for kind in type(error).__mro__ if kind in LABELS), "incomplete")


async def run(
    engine: EngineClient, requests: Sequence[Request], owner: str, *, sequences: int | None = None
) -> tuple[Output, ...]:
    """Return all events of all requests; the first that fails aborts the others and raises its error.

    `sequences` are those of the whole body, if it asks for more than these.
    """
    asked = _asked(requests, owner, sequences)
    return tuple(await side_by_side([_run_one(engine, request) for request in asked]))


async def _run_one(engine: EngineClient, request: Request) -> Output:
    async with aclosing(await _begun(engine, request)) as generation:
        return await generation.collect()


async def _begun(engine: EngineClient, request: Request) -> Generation:
    generation = await engine.submit(request)
    note_begun(generation)
    return generation


def _asked(requests: Sequence[Request], owner: str, sequences: int | None = None) -> list[Request]:
    """Return the requests with whose they are, and how many belong together."""
    count = sequences or len(requests)
    if not owner and count == 1:  # a request's defaults
        return list(requests)
    return [replace(request, owner=owner or request.owner, sequences=count) for request in requests]


async def submitted(engine: EngineClient, requests: Sequence[Request], owner: str) -> list[Generation]:
    """Submit all requests; if one is refused, abort the others and raise its error."""
    generations: list[Generation] = []
    try:
        for request in _asked(requests, owner):
            generations.append(await _begun(engine, request))
    except BaseException:
        await _close(generations)
        raise
    return generations


class Flow(AsyncIterator[bytes], Generic[Body]):
    """The framed events of requests that run side by side, in the order in which they come.

    `aclose` it in every case: it aborts what still runs. However it ends is counted, once.
    """

    def __init__(
        self,
        generations: Sequence[Generation],
        metrics: Metrics,
        render: Render[Body],
        told: Callable[[Finish], Finish] = lambda finish: finish,
        frame: Callable[[Body], bytes] = event,
        values: Callable[[Output, Request], int] = values_of,
    ) -> None:
        """`told` is how the client is told of a text's end, and so what the metrics count of it.

        `values` is about how much there is to tell of some events, which is told aside if it is much.
        """
        self._framed = frame
        self._told = told
        self._generations = generations
        self._metrics = metrics
        self._render = render
        self._values = values
        self._frames = self._read()
        self._running = len(generations)  # 0 also after a failure, which was counted

    @classmethod
    async def start(
        cls, service: Service, requests: Sequence[Request], owner: str, render: Render[Body]
    ) -> Flow[Body]:
        """Submit all requests; if one is refused, abort the others and raise its error."""
        return cls(await submitted(service.engine, requests, owner), service.metrics, render)

    async def __anext__(self) -> bytes:
        return await anext(self._frames)

    async def aclose(self) -> None:
        """Abort what still runs; a request that wasn't read to its end is one whose client has gone."""
        await self._frames.aclose()
        await _close(self._generations)
        if self._running:
            self._running = 0
            self._metrics.failure("dropped")

    async def _read(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(merged(self._generations)) as batches:
                async for place, batch in batches:
                    request = self._generations[place].request
                    self._count(batch, request)
                    yield await made(partial(self._frame, place, batch), self._values(batch, request))
        except Exception as error:
            self._running = 0
            self._metrics.failure(label(error))
            raise

    def _count(self, batch: Output, request: Request) -> None:
        if batch and (finish := batch[-1].finish) is not None:
            self._running -= 1
            self._metrics.finished(self._told(finish), request)

    def _frame(self, place: int, batch: Output) -> bytes:
        return b"".join(self._framed(body) for item in batch for body in self._render(place, item))


def streamed(
    flow: Flow[Body],
    *,
    dialect: Dialect = Dialect.TGI,
    headers: Mapping[str, str],
    on_close: Callable[[], None],
    failed: Callable[[Failure], bytes] | None = None,
) -> EventStream[Body]:
    """Return the response of a flow; `on_close` is called once it is over.

    `failed` frames the event that ends a stream early, where the dialect alone can't.
    """
    return EventStream(flow, dialect=dialect, headers=headers, on_close=on_close, failed=failed)


async def merged(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Output], None]:
    """Give what is ready of any generation, with its place, until all have ended.

    Where some fail the first one's error is raised, after what was ready of the others.
    """
    if len(generations) == 1:  # the usual case, without a task for every token
        while batch := await generations[0].next_batch():
            yield 0, batch
        return
    waiting = {asyncio.ensure_future(item.next_batch()): place for place, item in enumerate(generations)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            failures: list[BaseException] = []
            for task in sorted(done, key=waiting.__getitem__):
                place = waiting.pop(task)
                if (error := task.exception()) is not None:
                    failures.append(error)
                    continue
                batch = task.result()
                yield place, batch
                if batch and batch[-1].finish is None:
                    waiting[asyncio.ensure_future(generations[place].next_batch())] = place
            if failures:
                raise failures[0]
    finally:
        for task in waiting:
            task.cancel()
            task.add_done_callback(_ask)


def _ask(task: asyncio.Task[Output]) -> None:
    """Ask a task for its error: asyncio logs those that nobody asks for."""
    if not task.cancelled():
        task.exception()


async def _close(generations: Sequence[Generation]) -> None:
    for generation in generations:
        await generation.aclose()
