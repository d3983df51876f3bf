"""A frame's way from the engine's thread to the event loop, of the same process and of another."""

from __future__ import annotations

import asyncio
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from inference.config import EngineConfig
from inference.core import Core
from inference.ipc.framing import unpack
from inference.ipc.messages import FROM_ENGINE
from inference.process import child
from inference.process.remote import RemoteCore
from inference.process.supervision import EngineProcess
from inference.types import CoreOutput, CoreRequest, FinishReason, Frame, LogprobsMode, ModelInfo, Sampling

STEP_SECONDS = 0.002
STEPS = 400
PROGRAM = ("-m", "benchmarks.process_way")
MODEL = ModelInfo(
    id="clock",
    sha=None,
    pipeline_tag=None,
    dtype="none",
    device_type="cpu",
    max_input_tokens=1,
    max_total_tokens=2,
    max_batch_prefill_tokens=1,
    max_batch_total_tokens=1,
    level="none",
    vocabulary_size=1,
    eos_token_ids=(),
)


class ClockCore:
    """A core whose tokens say, in place of a log-probability, when they were made."""

    def __init__(self, steps: int = STEPS) -> None:
        self._steps = steps
        self._requests: list[CoreRequest] = []
        self._sink: Callable[[Frame], None] = print
        self._stopped = threading.Event()

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        """Return what it pretends to be."""
        return MODEL

    def start(self, sink: Callable[[Frame], None]) -> None:
        """Take the sink."""
        self._sink = sink

    def submit(self, request: CoreRequest) -> None:
        """Take a request on, and begin to step with the last of as many as its prompt says."""
        self._requests.append(request)
        if len(self._requests) == request.prompt_ids[0]:
            requests, self._requests = self._requests, []
            threading.Thread(target=self._run, args=(requests,), daemon=True).start()

    def abort(self, request_id: str) -> None:
        """Ignore it: it will end."""

    def join(self) -> None:
        """Wait for `stop`."""
        self._stopped.wait()

    def stop(self) -> None:
        """End."""
        self._stopped.set()

    @property
    def alive(self) -> bool:
        """Return whether it was not stopped."""
        return not self._stopped.is_set()

    @property
    def step(self) -> int | None:
        """Return None: it never hangs."""
        return None

    def _run(self, requests: list[CoreRequest]) -> None:
        for at in range(self._steps):
            time.sleep(STEP_SECONDS)
            last = FinishReason.LENGTH if at == self._steps - 1 else None
            now = time.monotonic()  # the same for all processes
            self._sink(Frame(tuple(CoreOutput(each.id, 5, now, finish=last) for each in requests)))


class Ear:
    """Notes how old each frame is, on the event loop."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.done = asyncio.Event()

    def hear(self, frame: Frame) -> None:
        """Take a frame."""
        (first, *_) = frame.outputs
        assert isinstance(first, CoreOutput)
        self.seconds.append(time.monotonic() - first.logprob)
        if first.finish is not None:
            self.done.set()


def ways(tokens: int) -> dict[str, dict[str, float]]:
    """Return the microseconds from a step's end to the event loop's hands, by each way.

    Beside them, of the processes' ways, the processor time that a step takes the API process.
    """
    engine = EngineProcess(EngineConfig(), program=PROGRAM)
    engine.start()
    engine.wait(lambda line: None)
    taken: dict[str, list[float]] = {"thread": [], "process": [], "process, reader thread": []}
    spent: dict[str, list[float]] = {way: [] for way in taken}
    for _ in range(3):
        for way in taken:
            began = time.process_time()
            taken[way] += asyncio.run(heard(way, engine.address, tokens))
            spent[way].append((time.process_time() - began) / STEPS)
    engine.stop()
    return {
        way: {"latency": micro(statistics.median(taken[way]))}
        | ({} if way == "thread" else {"api_cpu": micro(min(spent[way]))})
        for way in taken
    }


async def heard(way: str, address: str, tokens: int) -> list[float]:
    """Return the seconds of each step's way to this event loop."""
    ear, loop = Ear(), asyncio.get_running_loop()
    core: Core = ClockCore() if way == "thread" else RemoteCore(address)
    if way == "process, reader thread":
        core = ThreadedCore(address)
    await asyncio.to_thread(core.load, print)
    if way == "process":
        core.start(ear.hear)
    else:
        core.start(partial(hand_over, loop, ear))
    for at in range(tokens):
        core.submit(request(at, tokens))
    await ear.done.wait()
    await asyncio.to_thread(core.stop)
    return ear.seconds


def hand_over(loop: asyncio.AbstractEventLoop, ear: Ear, frame: Frame) -> None:
    """Take a frame from another thread to the event loop."""
    loop.call_soon_threadsafe(ear.hear, frame)


class ThreadedCore(RemoteCore):
    """The other design: a thread reads the socket, and hands each frame to the event loop."""

    def start(self, sink: Callable[[Frame], None]) -> None:
        """Read on a thread."""
        self._sink, self._loop, self._home = sink, asyncio.get_running_loop(), threading.get_ident()
        assert self._socket is not None
        threading.Thread(target=self._read_all, args=(self._socket,), daemon=True).start()

    def _read_all(self, stream: socket.socket) -> None:
        while data := stream.recv(65_536):
            for payload in self._unframer.feed(data):
                self._take(unpack(FROM_ENGINE, payload))


def request(at: int, requests: int) -> CoreRequest:
    """Return one of several requests."""
    return CoreRequest(
        id=str(at),
        prompt_ids=(requests,),
        max_new_tokens=1,
        sampling=Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=False,
    )


def micro(seconds: float) -> float:
    """Return microseconds."""
    return round(seconds * 1e6, 1)


if __name__ == "__main__":  # as `EngineProcess` starts it
    child.main(sys.argv[1:], lambda config: ClockCore())
