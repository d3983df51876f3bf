"""A core that generates without a model: deterministic, instant, torch not needed.

It answers the same prompt, seed and parameters with the same tokens, in any company. Contract
tests and demonstrations of the HTTP side run on it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from inference.config import EngineConfig
from inference.core import FrameSink
from inference.errors import ModelUnavailable
from inference.failures import STOPPED
from inference.fakes.adapters import FakeAdapters
from inference.fakes.memory import FakePrefixes
from inference.fakes.prompts import by_prompt
from inference.fakes.text import (
    LENGTH,
    LOGPROB,
    FakeSequence,
    FakeVocabulary,
    draw,
    prompt_logprobs,
    request_key,
    top_tokens,
)
from inference.fakes.vision import SeeingClient
from inference.files.adapters import parse_adapters
from inference.frontend.client import EngineClient
from inference.step_stats import StepStats
from inference.text.pipeline import TextPipeline
from inference.text.stand_in import plausible_tokens, stand_in_text
from inference.types import (
    AdapterChange,
    CoreFailure,
    CoreOutput,
    CoreRequest,
    Frame,
    LogprobsMode,
    ModelInfo,
    VisionInfo,
)

MEANINGLESS = 1e9  # in the place of a log-probability that nobody is told: no answer may show it
Script = Callable[[CoreRequest], Sequence[int] | None]  # the ids to answer with, or None: make some up


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModel:
    """What a FakeCore pretends to be, and how it misbehaves on request."""

    tokens: Sequence[int]  # ids to choose from, none of them special
    eos_token_id: int
    texts: Sequence[str] = ()  # of all ids: by them, texts under a grammar find an end
    id: str = "fake"
    adapters: tuple[str, ...] = ()
    adapter_directory: str | None = None  # below which more are loaded later
    vision: VisionInfo | None = None  # what it sees needs a SeeingClient
    max_input_tokens: int = 1024
    max_total_tokens: int = 2048
    max_batch_size: int = 32
    step_seconds: float = 0.0  # pause after each step; 0: everything is said within `submit`
    shortest: int = 8  # generated tokens before EOS
    longest: int = 40
    script: Script = field(default=lambda request: None)
    fails: Callable[[CoreRequest], str | None] = field(default=lambda request: None)  # the message, or None
    fails_after: int = 0  # tokens that a failing request generates first
    unavailable: str | None = None  # `load` raises ModelUnavailable with this message


class FakeCore:
    """Implements `Core` with tokens from a hash of the request."""

    def __init__(self, model: FakeModel) -> None:
        self._model = model
        self._vocabulary = FakeVocabulary(model.tokens, model.eos_token_id, model.texts)
        self._waiting: deque[CoreRequest] = deque()
        self._running: dict[str, FakeSequence] = {}
        self._prefixes = FakePrefixes()
        self._adapters = FakeAdapters(model.adapters, model.id, model.adapter_directory)
        self._aborted: set[str] = set()
        self._changed = threading.Condition()
        self._stopping = False
        self._crash = False
        self._started = False
        self._thread: threading.Thread | None = None
        self._sink: FrameSink | None = None
        self._steps = 0  # begun so far
        self._stepping = False  # one of them goes on

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        """Return what the core pretends to be."""
        model = self._model
        if model.unavailable is not None:
            raise ModelUnavailable(model.unavailable)
        progress("nothing to load")
        return ModelInfo(
            id=model.id,
            sha=None,
            pipeline_tag="image-text-to-text" if model.vision is not None else "text-generation",
            dtype="torch.float32",
            device_type="cpu",
            max_input_tokens=model.max_input_tokens,
            max_total_tokens=model.max_total_tokens,
            max_batch_prefill_tokens=model.max_total_tokens,
            max_batch_total_tokens=model.max_total_tokens * model.max_batch_size,
            level="fake",
            eos_token_ids=(model.eos_token_id,),
            vocabulary_size=self._vocabulary.size,
            adapters=self._adapters.numbers,
            vision=model.vision,
        )

    def start(self, sink: FrameSink) -> None:
        """Begin to step."""
        self._sink = sink
        self._started = True
        if self._instant:
            return
        self._thread = threading.Thread(target=self._run, name="fake-core", daemon=True)
        self._thread.start()

    def submit(self, request: CoreRequest) -> None:
        """Queue a request."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify_all()
        if self._instant and self._started:
            self._run_instantly()

    def abort(self, request_id: str) -> None:
        """Forget a request by the next step."""
        with self._changed:
            self._aborted.add(request_id)
            if self._instant:  # there is no thread that would do it
                self._forget_aborted()
            self._changed.notify_all()

    def change(self, change: AdapterChange) -> None:
        """Have an adapter loaded or unloaded: its files are read, and nothing is computed by them."""
        assert self._sink is not None, "start comes first"
        self._sink(self._adapters.change(change))

    def heard(self, edition: int) -> None:
        """Know that nobody asks any more for an adapter that isn't in an edition."""
        self._adapters.heard(edition)

    def join(self) -> None:
        """Wait until the loop has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._crash)
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """End the loop."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def crash(self) -> None:
        """End the loop as if it had died; for tests of what happens then."""
        with self._changed:
            self._crash = True
            self._changed.notify_all()

    @property
    def alive(self) -> bool:
        """Return whether the loop runs."""
        if self._instant:
            return self._started and not (self._stopping or self._crash)
        return self._thread is not None and self._thread.is_alive()

    @property
    def step(self) -> int | None:
        """Return the number of the step that goes on, None between steps."""
        return self._steps if self._stepping else None

    @property
    def _instant(self) -> bool:
        # A thread of its own would cost more than all that it does: two switches for each frame
        return not self._model.step_seconds

    def _run_instantly(self) -> None:
        assert self._sink is not None
        while (self._running or self._waiting) and self.alive:
            self._sink(self._step())

    def _run(self) -> None:
        assert self._sink is not None
        while self._wait_for_work():
            self._steps += 1
            self._stepping = True
            self._sink(self._step())
            time.sleep(self._model.step_seconds)
            self._stepping = False
        if self._crash:
            lost = [*self._running, *(request.id for request in self._waiting)]
            self._sink(Frame(tuple(CoreFailure(request_id, STOPPED) for request_id in lost)))

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._forget_aborted()
            while not (self._running or self._waiting or self._stopping or self._crash):
                self._changed.wait()
                self._forget_aborted()
            return not (self._stopping or self._crash)

    def _forget_aborted(self) -> None:
        for request_id in self._aborted:
            self._running.pop(request_id, None)
        self._waiting = deque(request for request in self._waiting if request.id not in self._aborted)
        self._aborted.clear()

    def _step(self) -> Frame:
        begin = time.monotonic()
        decoding = len(self._running)
        admitted = self._admit()
        outputs = [self._advance(sequence) for sequence in list(self._running.values())]
        held = sum(len(each.request.prompt_ids) + each.generated for each in self._running.values())
        stats = StepStats(
            prefill_tokens=sum(len(each.request.prompt_ids) - each.cached for each in admitted),
            decode_sequences=decoding,
            admitted=len(admitted),
            cached_tokens=sum(each.cached for each in admitted),
            forward_seconds=time.monotonic() - begin,
            sample_seconds=0.0,
            waiting=len(self._waiting),
            running=len(self._running),
            kv_tokens=held,
            held_tokens=held,
            preempted=0,
        )
        return Frame(tuple(outputs), stats)

    def _admit(self) -> list[FakeSequence]:
        admitted = []
        with self._changed:
            while self._waiting and len(self._running) < self._model.max_batch_size:
                request = self._waiting.popleft()
                self._running[request.id] = self._sequence(request)
                admitted.append(self._running[request.id])
        return admitted

    def _sequence(self, request: CoreRequest) -> FakeSequence:
        key, model = request_key(request), self._model
        scripted = model.script(request)
        made_up = model.shortest + draw(key, LENGTH, 0, model.longest - model.shortest + 1)
        length = max(made_up if scripted is None else len(scripted), request.min_new_tokens)
        failure, after = model.fails(request), model.fails_after
        sequence = FakeSequence(request, scripted or (), length, failure, after, time.monotonic(), key)
        sequence.cached = self._prefixes.take(request)
        if request.grammar is not None:
            try:
                sequence.guide = self._vocabulary.guide(request.grammar)
            except Exception as error:  # whatever is wrong with one request, the others go on
                sequence.failure, sequence.fails_after = f"The request could not be queued: {error}", 0
        return sequence

    def _advance(self, sequence: FakeSequence) -> CoreOutput | CoreFailure:
        request, guide, at = sequence.request, sequence.guide, sequence.generated
        failure = sequence.failure if at >= sequence.fails_after else None
        by_grammar = guide.failure if guide is not None else None
        if failure is not None or by_grammar is not None:
            del self._running[request.id]
            return CoreFailure(request.id, by_grammar or failure or "", own=by_grammar is not None)
        token_id, among = self._vocabulary.next_token(sequence)
        untold = request.logprobs is LogprobsMode.NONE
        logprob = MEANINGLESS if untold else -(1 + draw(sequence.key, LOGPROB, at, 2000)) / 1000
        top = top_tokens(sequence, among, token_id, logprob)
        asks = at == 0 and request.prompt_logprobs
        sequence.generated += 1
        finish = self._vocabulary.finish(sequence, token_id)
        if finish is not None:
            del self._running[request.id]
        elif guide is not None:
            guide.advance(token_id)
        return CoreOutput(
            id=request.id,
            token_id=token_id,
            logprob=logprob,
            top=top,
            finish=finish,
            started=sequence.started,
            cached_tokens=sequence.cached,
            prompt_logprobs=prompt_logprobs(sequence) if asks else None,
            prompt_top=self._vocabulary.prompt_top(sequence) if asks else None,
        )


def fake_client(
    config: EngineConfig | None = None,
    *,
    fail_prompts: Collection[str] = (),
    fails_after: int = 0,
    replies: Mapping[str, str] | None = None,
    step_seconds: float = 0.0,
    max_batch_size: int = 32,
    unavailable: str | None = None,
    vision: VisionInfo | None = None,
) -> EngineClient:
    """Return a client of a FakeCore, not started, with the embedded model's tokenizer and template.

    A request whose prompt contains one of `fail_prompts` fails after `fails_after` tokens; one whose
    prompt contains a key of `replies` is answered with its value. The first that matches counts. With
    `vision` it sees.
    """
    config = config or EngineConfig()
    tokenizer, template, eos = stand_in_text()
    total = config.max_total_tokens or 2048
    model = FakeModel(
        tokens=plausible_tokens(tokenizer),
        eos_token_id=eos,
        texts=tuple(map(tokenizer.token_text, range(tokenizer.vocabulary_size))),
        id=config.model.name,
        adapters=tuple(source.name for source in parse_adapters(config.model.adapters)),
        adapter_directory=config.model.adapter_directory,
        max_input_tokens=config.max_input_tokens or total - 1,
        max_total_tokens=total,
        max_batch_size=config.max_batch_size or max_batch_size,
        step_seconds=step_seconds,
        script=by_prompt(tokenizer, replies or {}, partial(tokenizer.encode, add_special_tokens=False)),
        fails=by_prompt(tokenizer, {text: text for text in fail_prompts}, "injected failure: {}".format),
        fails_after=fails_after,
        unavailable=unavailable,
        vision=vision,
    )
    pipeline = partial(TextPipeline, tokenizer, template, workers=config.validation_workers)
    if vision is None:
        return EngineClient(FakeCore(model), config, pipeline)
    return SeeingClient(FakeCore(model), config, pipeline, plausible=model.tokens)
