"""The engine as its callers see it: admit, submit, iterate; everything here runs on one event loop.

The core calls back from its own thread; each of its frames crosses to the event loop once and is
turned into events there. Every accepted request ends in exactly one terminal event: its last
token, or an InferenceError.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from inference.config import EngineConfig
from inference.core import Core, Life, ReturningCore
from inference.errors import GenerationFailed, InferenceError, ModelUnavailable
from inference.failures import STOPPED, log_failure
from inference.frontend.adapter_changes import AdapterChanges
from inference.frontend.admission import Admission, Permit
from inference.frontend.generation import EventAssembler, Generation, Running
from inference.frontend.health import Health
from inference.frontend.looks import Looks
from inference.frontend.preparation import grammar_compiler, odd_vocabulary, prefix_salt, prepare, renewed
from inference.frontend.readiness import Readiness
from inference.frontend.text_side import TextSide
from inference.step_stats import StepStats
from inference.types import CoreFailure, CoreOutput, CoreRequest, EngineState, Frame, ModelInfo, Request

if TYPE_CHECKING:
    from inference.frontend.owners import Owners
    from inference.frontend.places import Places
    from inference.grammar.compiler import GrammarCompiler
    from inference.text.pipeline import TextPipeline

__all__ = ["EngineClient", "Generation", "Permit"]

log = logging.getLogger(__name__)

WATCH_SECONDS = 1.0  # how often a silent death of the core is looked for


class EngineClient(TextSide):
    """Submits requests to a core and routes what comes back; one per process and event loop."""

    def __init__(
        self,
        core: Core,
        config: EngineConfig,
        load_text: Callable[[], TextPipeline],
        places: Places | None = None,
        owners: Owners | None = None,
    ) -> None:
        """`places` and `owners` are shared with others that attend to the same engine; else its own."""
        self.config = config
        self._core = core
        self._load_text = load_text
        self._readiness = Readiness()
        self._model: ModelInfo | None = None
        self._text: TextPipeline | None = None
        self._compiler: GrammarCompiler | None = None  # also None where grammars can't be compiled
        self._idle = asyncio.Event()  # nothing runs and every response has ended
        self._admission = Admission.of(config, self._check_idle, places, owners)
        self._preparing: set[str] = set()  # ids of requests that aren't queued yet
        self._running: dict[str, Running] = {}
        self._looks = Looks(core, partial(prefix_salt, isolated=config.isolate_owners))
        self.adapters = AdapterChanges(core)
        self._listeners: list[Callable[[StepStats], None]] = []
        self._life_listeners: list[Callable[[Life, ModelInfo | None], None]] = []
        self._meters: list[Callable[[str, int], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0  # set by `start`
        self._watch: asyncio.Task[None] | None = None
        self._health = Health(self.submit)
        self._closed = False  # whatever runs was failed, and nothing is taken any more

    # --- life -------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        """Return where the engine stands."""
        return self._readiness.state

    @property
    def loaded(self) -> bool:
        """Return whether `model` is known: since it was loaded first."""
        return self._model is not None

    @property
    def model(self) -> ModelInfo:
        """Return what was loaded; raise NotReady before."""
        if self._model is None:
            raise self._readiness.refusal()
        return self._model

    async def start(self, progress: Callable[[str], None]) -> None:
        """Load text and model off the event loop, then admit requests.

        Raises ModelUnavailable, and the state is FAILED. `progress` is called from another thread.
        """
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._readiness.begin()

        def tell(line: str) -> None:
            self._readiness.note(line)
            progress(line)

        try:
            # The text side loads in a moment: a broken tokenizer shows before the weights are read
            self._text = await asyncio.to_thread(self._load_text)
            self._model = await asyncio.to_thread(self._core.load, tell)
            if (odd := odd_vocabulary(self._text, self._model)) is not None:
                log.warning("%s", odd)
            self._compiler = await asyncio.to_thread(grammar_compiler, self._text, self._model, self._core)
            if isinstance(self._core, ReturningCore):
                self._core.watch(self._on_life)
            if self._closed:  # the server was told to end while it loaded
                self._close_text()
                return
            self._core.start(self._sink)
        except ModelUnavailable:
            self._readiness.fail()
            if self._closed:  # the server was told to end, and the core gave up loading for it
                return
            raise
        except Exception as error:
            self._readiness.fail()
            raise ModelUnavailable(f"The model can't be loaded: {type(error).__name__}: {error}") from error
        if not isinstance(self._core, ReturningCore):
            self._watch = asyncio.create_task(self._watch_core())
        self._readiness.ready()

    async def drain(self, timeout_seconds: float) -> None:
        """Admit nothing more, wait for what runs, then fail the rest."""
        self._readiness.drain()
        self._idle.clear()
        self._check_idle()
        with suppress(TimeoutError):  # time is up: the rest is failed
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        self._shut("The server shuts down")

    async def close(self) -> None:
        """Fail what still runs, stop the core and free what is held."""
        self._readiness.drain()
        self._shut("The server shuts down")
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.to_thread(self._core.stop)
        self._close_text()

    def add_listener(self, listener: Callable[[StepStats], None]) -> None:
        """Have `listener` called on the event loop after every step that reports its numbers."""
        self._listeners.append(listener)

    def add_life_listener(self, listener: Callable[[Life, ModelInfo | None], None]) -> None:
        """Have `listener` called on the event loop when the core dies, and with the model when it is back."""
        self._life_listeners.append(listener)

    def add_meter(self, meter: Callable[[str, int], None]) -> None:
        """Have `meter` called with a request's owner, and the tokens it took, however the request ends."""
        self._meters.append(meter)

    # --- requests ---------------------------------------------------------------------------

    def admit(self, sequences: int = 1, owner: str = "") -> Permit:
        """Reserve room for an owner's `sequences`; raise NotReady, or Overloaded, at once."""
        if self.state is not EngineState.READY:
            raise self._readiness.refusal()
        return self._admission.admit(sequences, owner)

    def check_ready(self) -> None:
        """Raise NotReady, with what loading has come to, unless requests are taken; computes nothing."""
        if self.state is not EngineState.READY or not self._core.alive:
            raise self._readiness.reason()

    async def submit(self, request: Request) -> Generation:
        """Tokenise and check a request, compile its grammar, and queue it.

        Its images are looked at before. Raises NotReady, InvalidInput, GenerationFailed if the engine failed
        on an image, or Overloaded if too many grammars wait to be compiled.
        """
        submitted = time.monotonic()
        text = self._ready_text()
        if request.id in self._running or request.id in self._preparing:
            raise ValueError(f"request id {request.id!r} is in use")
        self._preparing.add(request.id)
        try:
            model, losses = self.model, self._readiness.losses
            prepared = await prepare(request, text, model, self._compiler, self.config, self._looks)
            if self._closed or self.state in (EngineState.FAILED, EngineState.LOADING):
                raise self._readiness.refusal()
            now = renewed(prepared, request, model, self.model)
            if now is None or (request.images and self._readiness.losses != losses):
                raise self._readiness.changed()
            return self._queue(request, now, text, submitted)
        except BaseException:
            self._looks.drop(request)
            raise
        finally:
            self._preparing.discard(request.id)

    async def probe(self) -> bool:
        """Return whether the engine can generate.

        While nothing failed, that is whether the core lives; after a failure, whether one token,
        of any request, is really generated in good time.
        """
        if self.state is not EngineState.READY or not self._core.alive:
            return False
        return await self._health.probe()

    # --- below ------------------------------------------------------------------------------

    def _queue(
        self, request: Request, prepared: CoreRequest, text: TextPipeline, submitted: float
    ) -> Generation:
        ids = prepared.prompt_ids
        eos = frozenset(self.model.eos_token_ids)
        start = self.model.decoder_start
        assembler = EventAssembler(request, ids, text, eos, submitted, time.monotonic(), start)
        generation = Generation(request, len(ids), lambda: self._abort(request.id))
        self._core.submit(prepared)  # what comes of it is delivered later, on this thread
        self._running[request.id] = Running(generation, assembler, copy_context())
        return generation

    def _sink(self, frame: Frame) -> None:
        """Take a frame to the event loop; called from the core's thread, or the loop's own."""
        assert self._loop is not None
        at_home = threading.get_ident() == self._loop_thread  # then nobody has to be woken up
        call = self._loop.call_soon if at_home else self._loop.call_soon_threadsafe
        try:
            call(self._deliver, frame)
        except RuntimeError:  # the event loop was closed before the core: nobody is left to tell
            log.debug("a frame came after the event loop had been closed")

    def _deliver(self, frame: Frame) -> None:
        for looked in frame.looked:
            self._looks.deliver(looked)
        if frame.edition is not None:
            self._model = replace(self.model, adapters=frame.edition.adapters)
            self.adapters.heard(frame.edition)
        for changed in frame.changed:
            self.adapters.deliver(changed)
        for output in frame.outputs:
            running = self._running.get(output.id)
            if running is None:  # aborted while the step ran, or its images are still looked at
                if isinstance(output, CoreFailure):
                    self._looks.fail(output.id, output.message)
                    self.adapters.fail(output.id, output.message)
                continue
            if isinstance(output, CoreFailure):
                running.context.run(log_failure, output)
                if not output.own:
                    self._health.doubt()
                self._fail(output.id, GenerationFailed(output.message))
            else:
                self._put(running, output)
        if frame.stats is not None:
            for listener in self._listeners:
                listener(frame.stats)

    def _put(self, running: Running, output: CoreOutput) -> None:
        try:
            event = running.assembler.event(output)
        except Exception as error:  # one request's text must not end the others
            told = "request %s: the text of token %s failed"
            running.context.run(log.exception, told, output.id, output.token_id)
            self._core.abort(output.id)
            self._fail(output.id, GenerationFailed(f"Detokenisation failed: {error}"))
            return
        if event.finish is not None:
            self._forget(output.id)
            if output.finish is None:  # ended by a stop sequence, which the core knows nothing of
                self._core.abort(output.id)
        running.generation.put(event)
        self._health.trust()

    def _abort(self, request_id: str) -> None:
        if self._forget(request_id) is not None:
            self._core.abort(request_id)

    def _fail(self, request_id: str, error: InferenceError) -> None:
        running = self._forget(request_id)
        if running is not None:
            running.generation.fail(error)

    def _fail_all(self, message: str) -> None:
        self._looks.fail_all(message)
        self.adapters.fail_all(message)
        for request_id in list(self._running):
            self._core.abort(request_id)
            self._fail(request_id, GenerationFailed(message))

    def _shut(self, message: str) -> None:
        self._closed = True
        self._fail_all(message)

    def _forget(self, request_id: str) -> Running | None:
        running = self._running.pop(request_id, None)
        if running is not None:
            for meter in self._meters:
                meter(running.generation.request.owner, running.assembler.tokens)
        self._check_idle()
        return running

    def _check_idle(self) -> None:
        if not self._running and not self._admission.in_flight:
            self._idle.set()

    async def _watch_core(self) -> None:
        while self._core.alive:  # noqa: ASYNC110 - a thread that dies sets no event
            await asyncio.sleep(WATCH_SECONDS)
        # Frames that the core sent before it died are in the loop's queue: let them go first
        asyncio.get_running_loop().call_soon(self._on_life, Life.GONE, None)

    def _on_life(self, life: Life, model: ModelInfo | None) -> None:
        """Hear of a core that died and comes back, or doesn't; called on the event loop."""
        if life is Life.GONE:
            self._mourn()
        elif life is Life.DOWN:
            self._readiness.lost()
        else:
            self._model = model
            self._readiness.ready()
        for listener in self._life_listeners:
            listener(life, model)

    def _mourn(self) -> None:
        if self._closed:
            return
        log.critical("the engine's loop has ended; this server serves no more requests")
        self._readiness.fail()
        self._fail_all(STOPPED)

    def _close_text(self) -> None:
        for each in (self._compiler, self._text):
            if each is not None:
                each.close()

    def _ready_text(self) -> TextPipeline:
        if self._text is None or self._model is None or self.state is EngineState.FAILED or self._closed:
            raise self._readiness.refusal()
        return self._text
