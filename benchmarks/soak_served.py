"""A soak of a whole server over HTTP: mixed traffic, faults in between, and what its processes hold."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak_faults import FAULTS, STANDSTILL
from benchmarks.soak_judge import Judge, expected
from benchmarks.soak_requests import WORDS
from benchmarks.usage import Usage
from tests.faults.ledger import Answer, End
from tests.faults.server import Server, serving
from tests.faults.traffic import ask, get

CLIENTS = 12
FLAGS = (
    *(
        "--api-workers",
        "2",
        "--max-concurrent-requests",
        "32",
        "--step-timeout",
        "5",
        "--worker-timeout",
        "5",
    ),
    *("--max-top-n-tokens", "100"),
)
DEATHS_UNTIL = 0.5  # of the time: then no process is killed any more, so that growth can show
WARM = (0.55, 0.65)  # of the time: what is held then is compared with the end
STANDSTILL_SECONDS = 10.0
NOTED_SECONDS = 1.0  # in which a standstill that an answer came after is noted
LOUD = (" WARN ", "ERROR ", "CRITICAL ")
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}

Show = Callable[[str], None]


@dataclass
class ServedReport:
    """What became of a soak."""

    hours: float
    seconds: float = 0.0
    sent: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)
    lost_by_fault: Counter[str] = field(default_factory=Counter)  # by the faults that then went on
    faults: list[dict[str, object]] = field(default_factory=list)  # brought about: name, at, seconds
    unexplained: list[str] = field(default_factory=list)  # ends and errors that no fault of their time brings
    grown: list[str] = field(default_factory=list)
    held: dict[str, dict[str, float]] = field(default_factory=dict)  # memory and files, by process
    standstills: list[float] = field(default_factory=list)  # seconds in which all of the machine stood still
    exit_code: int | None = None


async def soak_served(hours: float, *, faults: bool, seed: int, show: Show) -> ServedReport:
    """Start a server, have a crowd ask for so long, and return what became of it."""
    report = ServedReport(hours)
    async with serving(*FLAGS, keep=lambda line: any(word in line for word in LOUD)) as server:
        soak = _Soak(server, report, seed, show)
        await soak.run(hours * 3600, faults=faults)
        await server.idle()
        server.process.terminate()
        report.exit_code = await server.ended()
    report.unexplained += soak.judge.wrong_in_log(server.lines)
    if report.exit_code != 0:
        report.unexplained.append(f"its exit code was {report.exit_code}")
    return report


class _Soak:
    """One run of a crowd, with faults."""

    def __init__(self, server: Server, report: ServedReport, seed: int, show: Show) -> None:
        self._server = server
        self._report = report
        self._show = show
        self._dice = random.Random(seed)
        self._began = time.monotonic()
        self._length = 1.0
        self.judge = Judge(lost_by_fault=report.lost_by_fault)

    async def run(self, seconds: float, *, faults: bool) -> None:
        """Have the crowd ask for so many seconds."""
        self._length = seconds
        usage = Usage(self._server.processes, WARM, every_seconds=max(0.5, seconds / 2000))
        beside = [asyncio.create_task(usage.watch(self._done, self._show))]
        beside.append(asyncio.create_task(self._mind_standstills()))
        if faults:
            beside.append(asyncio.create_task(self._bring_faults()))
        await asyncio.gather(*(self._client(number) for number in range(CLIENTS)))
        for task in beside:
            task.cancel()
        for failure in await asyncio.gather(*beside, return_exceptions=True):
            if isinstance(failure, Exception):  # and not that it was cancelled
                self._note(f"the soak itself: {failure!r}")
        self._report.seconds = round(time.monotonic() - self._began, 1)
        self._report.held, self._report.grown = usage.summary(), usage.growth()

    def _done(self) -> float:
        return min((time.monotonic() - self._began) / self._length, 1.0)

    async def _client(self, number: int) -> None:
        while self._done() < 1.0:
            kind, path, asked, leaves = self._request(number)
            answer = await ask(self._server.port, asked, path=path, leave_after=leaves)
            self._report.sent += 1
            self._report.by_kind[kind] += 1
            self._report.ended[answer.end] += 1
            if not expected(kind, answer):
                at = time.time()
                await asyncio.sleep(NOTED_SECONDS)
                if wrong := self.judge.wrong(kind, answer, at):
                    self._note(wrong)
            if number % 4 == 0:
                await self._live()
            await asyncio.sleep(self._dice.expovariate(10.0))

    async def _live(self) -> None:
        status, _, _ = await get(self._server.port, "/livez")
        if status == 200:
            return
        at = time.time()
        await asyncio.sleep(NOTED_SECONDS)
        end = End.FAILED if status else End.CLOSED
        if wrong := self.judge.wrong("/livez", Answer(end, status=status), at):
            self._note(wrong)

    def _request(self, number: int) -> tuple[str, str, dict[str, Any], int | None]:
        dice = self._dice
        kind = dice.choices(
            ("stream", "whole", "chat", "completion", "schema", "leaves", "invalid"), (5, 2, 4, 2, 1, 2, 1)
        )[0]
        text, tokens = " ".join(dice.choices(WORDS, k=dice.randint(1, 60))), dice.randint(1, 120)
        asked: dict[str, Any] = {"inputs": text, "parameters": {"max_new_tokens": tokens}}
        if kind == "chat":
            messages = [{"role": "user", "content": text}]
            asked = {
                "model": "m",
                "messages": messages,
                "max_tokens": tokens,
                "stream": True,
                "user": str(number),
            }
            return kind, "/v1/chat/completions", asked, None
        if kind == "completion":
            asked = {"model": "m", "prompt": text, "max_tokens": tokens, "stream": True}
            return kind, "/v1/completions", asked, None
        if kind == "schema":
            asked["parameters"] = {"max_new_tokens": 60, "grammar": {"type": "json", "value": SCHEMA}}
        if kind == "invalid":
            asked["parameters"]["max_new_tokens"] = 10**6
        path = "/generate" if kind in ("whole", "schema", "invalid") else "/generate_stream"
        return kind, path, asked, dice.randint(1, 5) if kind == "leaves" else None

    async def _bring_faults(self) -> None:
        """Bring one fault about after the other, those that kill only in the first part of the time."""
        pause = max(5.0, min(60.0, self._length / 40))
        while True:
            await asyncio.sleep(self._dice.uniform(0.5, 1.5) * pause)
            fault = self._dice.choice(
                [each for each in FAULTS if self._done() < DEATHS_UNTIL or not each.kills]
            )
            if self._done() > 1 - 60 / max(self._length, 61):
                return
            at, window = round(time.monotonic() - self._began), self.judge.open(fault, time.time())
            try:
                answers = await fault.bring(self._server)
                await self._server.ready()
            finally:
                window.ended = time.time()
            for wrong in self.judge.wrong_of_fault(fault, window, answers):
                self._note(wrong)
            took = round(window.ended - window.began, 1)
            self._report.faults.append({"fault": fault.name, "at": at, "seconds": took})
            self._show(f"{self._done():4.0%}: {fault.name}, over in {took} s")

    async def _mind_standstills(self) -> None:
        """Note when this process, and so the machine, stood still: then no answer can be expected in time."""
        while True:
            began = time.time()
            await asyncio.sleep(0.5)
            if time.time() - began > STANDSTILL_SECONDS:
                self.judge.open(STANDSTILL, began).ended = time.time()
                self._report.standstills.append(round(time.time() - began, 1))

    def _note(self, text: str) -> None:
        self._report.unexplained.append(text)
        self._show(f"UNEXPLAINED {text}")
