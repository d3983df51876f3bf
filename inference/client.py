"""The engine as its callers see it: admit, submit, iterate; everything here runs on one event loop.

The core calls back from its own thread; each of its frames crosses to the event loop once and is
turned into events there. Every accepted request ends in exactly one terminal event: its last
token, or an InferenceError.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from inference.config import EngineConfig
from inference.core import Core
from inference.errors import GenerationFailed, InferenceError, InvalidInput, ModelUnavailable, NotReady, Overloaded
from inference.generation import EventAssembler, Generation
from inference.types import (
    CoreFailure,
    CoreOutput,
    CoreRequest,
    EngineState,
    Frame,

    Messages,
    ModelInfo,
    Request,
    StepStats,
    TextToken,
)

if TYPE_CHECKING:
    from inference.text.pipeline import TextPipeline

__all__ = ["EngineClient", "Generation", "Permit"]

log = logging.getLogger(__name__)

SLICE_TOKENS = 1024  # TGI checks at most this many new tokens against the context, and clamps the rest
PROBE_SECONDS = 10.0  # a real one-token generation that takes longer counts as unhealthy
WATCH_SECONDS = 1.0  # how often a silent death of the core is looked for
LOADING_RETRY_SECONDS = 5.0
DRAINING_RETRY_SECONDS = 10.0
FAILED_RETRY_SECONDS = 60.0
COMPLETIONS_REMEMBERED = 64


class Permit:
    """Room for some sequences; give it back with `release` once the response has ended."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give the room back; further calls do nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Admission:
    """Counts the sequences in flight and guesses from recent completions when there is room."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self._completions: deque[float] = deque(maxlen=COMPLETIONS_REMEMBERED)  # time.monotonic seconds

    def admit(self, sequences: int) -> Permit:
        """Return a permit for `sequences`; raise Overloaded if they don't all fit now."""
        if self.in_flight + sequences > self.limit:
            raise Overloaded(self.retry_after(sequences))
        self.in_flight += sequences
        return Permit(lambda: self._release(sequences))

    def retry_after(self, sequences: int) -> float:
        """Return the seconds in which `sequences` are likely to complete, between 1 and 60."""
        if not self._completions:
            return 1.0
        elapsed = time.monotonic() - self._completions[0]
        return min(60.0, max(1.0, elapsed * sequences / len(self._completions)))

    def _release(self, sequences: int) -> None:
        self.in_flight -= sequences
        self._completions.extend([time.monotonic()] * sequences)


@dataclass(frozen=True, slots=True)
class Running:
    """A request that the core works on."""

    generation: Generation
    assembler: EventAssembler


class EngineClient:
    """Submits requests to a core and routes what comes back; one per process and event loop."""

    def __init__(self, core: Core, config: EngineConfig, load_text: Callable[[], TextPipeline]) -> None:
        self.config = config
        self._core = core
        self._load_text = load_text
        self._state = EngineState.LOADING
        self._model: ModelInfo | None = None
        self._text: TextPipeline | None = None
        self._admission = Admission(config.max_concurrent_requests)
        self._running: dict[str, Running] = {}
        self._listeners: list[Callable[[StepStats], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.Task[None] | None = None
        self._healthy = True  # false from the first failed generation to the next good probe
        self._probe: asyncio.Task[bool] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    # --- life -------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        """Return where the engine stands."""
        return self._state

    @property
    def model(self) -> ModelInfo:
        """Return what was loaded; raise NotReady before."""
        if self._model is None:
            raise self._not_ready()
        return self._model

    async def start(self, progress: Callable[[str], None]) -> None:
        """Load text and model off the event loop, then admit requests.

        Raises ModelUnavailable, and the state is FAILED. `progress` is called from another thread.
        """
        self._loop = asyncio.get_running_loop()
        try:
            # The text side loads in a moment: a broken tokenizer shows before the weights are read
            self._text = await asyncio.to_thread(self._load_text)
            self._model = await asyncio.to_thread(self._core.load, progress)
            self._core.start(self._sink)
        except ModelUnavailable:
            self._state = EngineState.FAILED
            raise
        except Exception as error:
            self._state = EngineState.FAILED
            raise ModelUnavailable(f"The model can't be loaded: {type(error).__name__}: {error}") from error
        self._watch = asyncio.create_task(self._watch_core())
        self._state = EngineState.READY

    async def drain(self, timeout_seconds: float) -> None:
        """Admit nothing more, wait for what runs, then fail the rest."""
        if self._state is not EngineState.FAILED:
            self._state = EngineState.DRAINING
        deadline = time.monotonic() + timeout_seconds
        while self._running or self._admission.in_flight:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(min(left, 0.05))
        self._closed = True
        self._fail_all("The server shuts down")

    async def close(self) -> None:
        """Fail what still runs, stop the core and free what is held."""
        if self._state is not EngineState.FAILED:
            self._state = EngineState.DRAINING
        self._closed = True
        self._fail_all("The server shuts down")
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.to_thread(self._core.stop)
        if self._text is not None:
            self._text.close()

    def add_listener(self, listener: Callable[[StepStats], None]) -> None:
        """Have `listener` called on the event loop after every step that reports its numbers."""
        self._listeners.append(listener)

    # --- requests ---------------------------------------------------------------------------

    def admit(self, sequences: int = 1) -> Permit:
        """Reserve room for `sequences`; raise NotReady, or Overloaded, at once."""
        if self._state is not EngineState.READY:
            raise self._not_ready()
        return self._admission.admit(sequences)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> tuple[TextToken, ...]:
        """Return the tokens of a text with their places in it; raise NotReady or InvalidInput."""
        return await self._ready_text().tokenize(text, add_special_tokens=add_special_tokens)

    async def render_chat(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt for a conversation; a last message of the assistant is left open to go on.

        Raises NotReady or TemplateFailed.
        """
        return await self._ready_text().render_chat(messages, tools=tools, template_kwargs=template_kwargs)

    async def submit(self, request: Request) -> Generation:
        """Tokenise and check a request, and queue it; raise NotReady or InvalidInput."""
        submitted = time.monotonic()
        text = self._ready_text()
        check_prompt(request, self.model)
        ids = await text.encode(request.prompt, add_special_tokens=request.add_special_tokens)
        if request.truncate is not None:
            ids = ids[-request.truncate :]
        max_new_tokens = fit_context(len(ids), request.max_new_tokens, self.model)
        if self._closed or self._state is EngineState.FAILED:
            raise self._not_ready()
        return self._queue(request, tuple(ids), max_new_tokens, text, submitted)

    async def probe(self) -> bool:
        """Return whether the engine can generate.

        While nothing failed, that is whether the core lives; after a failure, whether one token
        can really be generated within PROBE_SECONDS.
        """
        if self._state is not EngineState.READY or not self._core.alive:
            return False
        if self._healthy:
            return True
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._generate_one())
        return await asyncio.shield(self._probe)

    # --- below ------------------------------------------------------------------------------

    def _queue(
        self, request: Request, ids: tuple[int, ...], max_new_tokens: int, text: TextPipeline, submitted: float
    ) -> Generation:
        if request.id in self._running:
            raise ValueError(f"request id {request.id!r} is in use")
        eos = frozenset(self.model.eos_token_ids)
        assembler = EventAssembler(request, ids, text, eos, submitted, time.monotonic())
        generation = Generation(request, len(ids), lambda: self._abort(request.id))
        self._running[request.id] = Running(generation, assembler)
        self._core.submit(
            CoreRequest(
                id=request.id,
                prompt_ids=ids,
                max_new_tokens=max_new_tokens,
                sampling=request.sampling,
                logprobs=request.logprobs,
                top_n_tokens=request.top_n_tokens,
                prompt_logprobs=request.prompt_logprobs and self.config.enable_prefill_logprobs,
            )
        )
        return generation

    def _sink(self, frame: Frame) -> None:
        """Take a frame to the event loop; called from the core's thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver, frame)
        except RuntimeError:  # the event loop was closed before the core: nobody is left to tell
            log.debug("a frame came after the event loop had been closed")

    def _deliver(self, frame: Frame) -> None:
        for output in frame.outputs:
            running = self._running.get(output.id)
            if running is None:  # aborted while the step ran
                continue
            if isinstance(output, CoreFailure):
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
            log.exception("request %s: the text of token %d failed", output.id, output.token_id)
            self._core.abort(output.id)
            self._fail(output.id, GenerationFailed(f"Detokenisation failed: {error}"))
            return
        if event.finish is not None:
            del self._running[output.id]
            if output.finish is None:
                self._core.abort(output.id)
        running.generation.put(event)

    def _abort(self, request_id: str) -> None:
        if self._running.pop(request_id, None) is not None:
            self._core.abort(request_id)

    def _fail(self, request_id: str, error: InferenceError) -> None:
        running = self._running.pop(request_id, None)
        if running is None:
            return
        self._healthy = False
        log.error("request %s failed: %s", request_id, error)
        running.generation.fail(error)

    def _fail_all(self, message: str) -> None:
        for request_id in list(self._running):
            self._core.abort(request_id)
            self._fail(request_id, GenerationFailed(message))

    async def _watch_core(self) -> None:
        while self._core.alive:
            await asyncio.sleep(WATCH_SECONDS)
        assert self._loop is not None
        # Frames that the core sent before it died are in the loop's queue: let them go first
        self._loop.call_soon(self._mourn)

    def _mourn(self) -> None:
        if self._closed:
            return
        log.critical("the engine's loop has ended; no request can be served until the server is restarted")
        self._state = EngineState.FAILED
        self._fail_all("The engine stopped")

    async def _generate_one(self) -> bool:
        request = Request(id=f"probe-{time.monotonic_ns()}", prompt="liveness", max_new_tokens=1)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                generation = await self.submit(request)
                try:
                    await generation.collect()
                finally:
                    await generation.aclose()
        except (InferenceError, TimeoutError) as error:
            log.warning("health probe failed: %s", error)
            return False
        self._healthy = True
        return True

    def _ready_text(self) -> TextPipeline:
        if self._text is None or self._model is None or self._state is EngineState.FAILED or self._closed:
            raise self._not_ready()
        return self._text

    def _not_ready(self) -> NotReady:
        if self._state is EngineState.LOADING:
            return NotReady("The model is loading", LOADING_RETRY_SECONDS)
        if self._state is EngineState.FAILED:
            return NotReady("The engine has failed", FAILED_RETRY_SECONDS)
        return NotReady("The server shuts down", DRAINING_RETRY_SECONDS)


def check_prompt(request: Request, model: ModelInfo) -> None:
    """Raise InvalidInput, in TGI's words, for what can be seen before the prompt is tokenised."""
    if not request.prompt:
        raise InvalidInput("`inputs` cannot be empty")
    truncate, limit = request.truncate, model.max_input_tokens
    if truncate is not None and not 0 < truncate <= limit:
        raise InvalidInput(
            f"`truncate` must be strictly positive and less than {limit}. Given: {truncate}"
        )
    if "" in request.stop:
        raise InvalidInput("`stop` must not contain an empty string. Given: \"\"")


def fit_context(prompt_tokens: int, max_new_tokens: int | None, model: ModelInfo) -> int:
    """Return how many tokens to generate: at most what was asked for and what the context leaves.

    Raises InvalidInput, in TGI's words and order. As TGI does, only the first SLICE_TOKENS of
    `max_new_tokens` must fit the context; a larger wish is cut to what fits.
    """
    if prompt_tokens == 0:
        raise InvalidInput("`inputs` cannot be empty")
    total = model.max_total_tokens
    room = max(total - prompt_tokens, 0)
    wanted = room if max_new_tokens is None else max_new_tokens
    checked = min(wanted, SLICE_TOKENS)
    if prompt_tokens + checked > total:
        raise InvalidInput(
            f"`inputs` tokens + `max_new_tokens` must be <= {total}. "
            f"Given: {prompt_tokens} `inputs` tokens and {checked} `max_new_tokens`"
        )
    if prompt_tokens > model.max_input_tokens:
        raise InvalidInput(
            f"`inputs` must have less than {model.max_input_tokens} tokens. Given: {prompt_tokens}"
        )
    return min(wanted, room)
