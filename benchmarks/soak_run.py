"""A soak: a crowd that asks an engine for sequences of every kind, and holds it to its promises."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

from benchmarks.soak_requests import Ask, asks
from benchmarks.usage import Usage
from inference.errors import InferenceError, InvalidInput, Overloaded
from inference.frontend.client import EngineClient, Permit
from inference.step_stats import StepStats
from inference.types import Event, FinishReason, Grammar, GrammarKind, Request

AGAIN = 30  # of a thousand sequences, those that are asked for a second time
IDLE_SECONDS = 20.0

Show = Callable[[str], None]


@dataclass
class Report:
    """What became of a soak."""

    level: str = ""
    sequences: int = 0
    seconds: float = 0.0
    ended: Counter[str] = field(default_factory=Counter)  # by how: finished, cancelled, refused, failed
    faults: list[str] = field(default_factory=list)  # broken promises
    grown: list[str] = field(default_factory=list)  # what should have stayed as it was, once all was warm
    tokens: int = 0
    repeated: int = 0  # sequences that were asked for again
    overloads: int = 0  # times that there was no room
    preempted: int = 0
    cached_tokens: int = 0
    most_running: int = 0
    held: dict[str, dict[str, float]] = field(default_factory=dict)  # memory and files by process

    def on_step(self, stats: StepStats) -> None:
        """Add one step's numbers."""
        self.preempted += stats.preempted
        self.cached_tokens += stats.cached_tokens
        self.most_running = max(self.most_running, stats.running)


async def soak(
    client: EngineClient,
    sequences: int,
    *,
    longest: int,
    seed: int,
    show: Show,
    adapters: tuple[str, ...] = (),
) -> Report:
    """Ask for so many sequences of a client that has been started, and return what became of them."""
    report = Report(level=client.model.level, sequences=sequences)
    async with _complaints(report):
        await _Soak(client, report, show).run(asks(sequences, seed, longest, adapters))
    return report


class _Soak:
    """One run of asks by a crowd."""

    def __init__(self, client: EngineClient, report: Report, show: Callable[[str], None]) -> None:
        self._client = client
        self._report = report
        self._show = show
        self._last: StepStats | None = None
        client.add_listener(report.on_step)
        client.add_listener(self._note)

    async def run(self, waiting: Iterator[Ask]) -> None:
        """Have a crowd ask, so large that there is sometimes no room."""
        report, started, usage = self._report, time.monotonic(), Usage()
        watch = asyncio.create_task(usage.watch(lambda: report.ended.total() / report.sequences, self._show))
        crowd = self._client.config.max_concurrent_requests * 2 // 3
        await asyncio.gather(*(self._ask_on(waiting) for _ in range(crowd)))
        watch.cancel()
        report.seconds = round(time.monotonic() - started, 1)
        report.held = usage.summary()
        report.grown = usage.growth()
        if report.ended.total() != report.sequences:
            report.faults.append(f"{report.ended.total()} of {report.sequences} sequences ended")
        await self._check_idle()

    async def _ask_on(self, waiting: Iterator[Ask]) -> None:
        for ask in waiting:
            while not (permit := self._permit(len(ask.requests))):
                self._report.overloads += 1
                await asyncio.sleep(0.05)
            with permit:
                await asyncio.gather(*(self._one(request, ask) for request in ask.requests))

    def _permit(self, sequences: int) -> Permit | None:
        try:
            return self._client.admit(sequences)
        except Overloaded:
            return None

    async def _one(self, request: Request, ask: Ask) -> None:
        ended, events = await self._events(request, ask)
        self._report.ended[ended] += 1
        self._report.tokens += len(events)
        if (ended == "refused") != ask.refused:
            self._fault(request, f"it was {ended}, and {'not ' * (not ask.refused)}to be refused")
        if ended in ("finished", "cancelled"):
            self._check(request, events, finished=ended == "finished")
        if ended == "finished" and zlib.crc32(request.id.encode()) % 1000 < AGAIN:
            await self._again(request, events)

    async def _events(self, request: Request, ask: Ask) -> tuple[str, list[Event]]:
        """Return what ended a sequence, and its events."""
        events: list[Event] = []
        try:
            async with (
                asyncio.timeout(ask.patience),
                aclosing(await self._client.submit(request)) as generation,
            ):
                if ask.stays == 0:
                    return "cancelled", events
                async for event in generation:
                    events.append(event)
                    if len(events) == ask.stays:
                        break
        except TimeoutError:
            return "cancelled", events
        except InvalidInput:
            return "refused", events
        except InferenceError as error:
            self._fault(request, f"{type(error).__name__}: {error}")
            return "failed", events
        return ("cancelled" if len(events) == ask.stays else "finished"), events

    def _check(self, request: Request, events: list[Event], *, finished: bool) -> None:
        if [event.index for event in events] != list(range(1, len(events) + 1)):
            self._fault(request, "its events aren't in order")
        if any(event.finish for event in events[:-1]):
            self._fault(request, "it goes on after its end")
        if not finished:
            return
        end = events[-1].finish if events else None
        if end is None:
            self._fault(request, "it has no end")
        elif end.generated_tokens != len(events) or len(events) > (request.max_new_tokens or 0):
            self._fault(request, f"{len(events)} tokens came, {end.generated_tokens} were counted")
        elif (
            isinstance(request.grammar, Grammar)
            and end.reason is FinishReason.EOS
            and not _follows(request.grammar, end.text)
        ):
            self._fault(request, f"its text breaks its grammar: {end.text!r}")
        elif end.text_before_stop != "".join(event.delta for event in events):
            self._fault(request, "its pieces aren't its text")

    async def _again(self, request: Request, events: list[Event]) -> None:
        """Ask for a sequence again: it must say the same."""
        same = replace(request, id=f"{request.id}-again")
        _, found = await self._events(same, Ask((same,)))
        self._report.repeated += 1
        exact = self._client.model.deterministic
        told, expected = ([said(event, exact=exact) for event in each] for each in (found, events))
        if told != expected:
            at = next(
                (at for at, pair in enumerate(zip(told, expected, strict=False)) if pair[0] != pair[1]), -1
            )
            self._fault(request, f"said again it differs from token {at} on")

    async def _check_idle(self) -> None:
        """Find the engine empty after one last sequence, which comes after all aborts."""
        deadline = time.monotonic() + IDLE_SECONDS
        held = "something"
        while held and time.monotonic() < deadline:
            last = await self._client.submit(Request(id="soak-last", prompt="so", max_new_tokens=1))
            await last.collect()
            await asyncio.sleep(0.05)  # the step's numbers come with, or after, its last event
            held = self._held()
        if held:
            self._report.faults.append(f"in the end {held} is held")

    def _held(self) -> str:
        last = self._last
        if last is None or not (last.running or last.waiting or last.kv_tokens):
            return ""
        return f"{last.running} running, {last.waiting} waiting, {last.kv_tokens} tokens"

    def _note(self, stats: StepStats) -> None:
        self._last = stats

    def _fault(self, request: Request, message: str) -> None:
        self._report.faults.append(f"{request.id}: {message}")
        self._show(self._report.faults[-1])


def _follows(grammar: Grammar, text: str) -> bool:
    if grammar.kind is GrammarKind.REGEX:
        return re.fullmatch(grammar.source, text) is not None
    try:
        return set(json.loads(text)) == set(json.loads(grammar.source)["required"])
    except ValueError:
        return False


def said(event: Event, *, exact: bool) -> object:
    """Return what must be the same when a sequence is asked for again; not `exact`: the token alone."""
    if not exact:
        return event.token.id
    prompt = [replace(token, top_tokens=tuple(token.top_tokens)) for token in event.prompt]
    return event.token, event.top_tokens, prompt, event.delta


class _Errors(logging.Handler):
    """Takes what the engine's own log says is wrong: its books, its steps, its loop."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.ERROR)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report.faults.append(f"log: {record.getMessage()}")


@asynccontextmanager
async def _complaints(report: Report) -> AsyncIterator[None]:
    handler = _Errors(report)
    logging.getLogger("inference").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("inference").removeHandler(handler)
