"""One step of the engine: schedule, run, sample, publish. Knows neither threads nor tensors."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Several
from typing import Generic, Protocol, TypeVar

from inference.scheduler import Batch, Scheduler
from inference.state import Choice, Chosen, Chunk, Sequence
from inference.types import CoreFailure, CoreOutput, CoreRequest, FinishReason, Frame, StepStats

LOG = logging.getLogger(__name__)

Logits = TypeVar("Logits")  # the runner's form of them, which only the sampler reads
_Computed = TypeVar("_Computed", covariant=True)
_Read = TypeVar("_Read", contravariant=True)


class Runner(Protocol[_Computed]):
    """Computes keys, values and logits."""

    def run(self, chunks: Several[Chunk]) -> _Computed:
        """Compute the chunks' tokens and return `logit_rows` rows of each, in order."""


class Sampler(Protocol[_Read]):
    """Chooses tokens."""

    def choose(self, chunks: Several[Chunk], logits: _Read) -> Several[Chosen]:
        """Return what the logits say of each chunk, in order."""


class Stepper(Generic[Logits]):
    """All sequences from queue to last token, one step at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner[Logits],
        sampler: Sampler[Logits],
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._sampler = sampler
        self._eos = frozenset(eos_token_ids)
        self._sequences: dict[str, Sequence] = {}

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do."""
        return self._scheduler.idle

    def add(self, request: CoreRequest) -> None:
        """Queue a request."""
        sequence = Sequence(request)
        self._sequences[request.id] = sequence
        self._scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored, it may just have ended."""
        if request_id in self._sequences:
            self._forget(self._sequences[request_id])

    def step(self) -> Frame:
        """Compute one batch; if that fails, all of its requests have failed and the rest go on."""
        batch = self._scheduler.schedule()
        started = time.monotonic()
        try:
            logits = self._runner.run(batch.chunks)
            computed = time.monotonic()
            chosen = self._sampler.choose(batch.chunks, logits)
            sampled = time.monotonic()
        except Exception as error:  # whatever it is, the requests must hear of it and the loop go on
            LOG.exception("A step of %d sequences failed", len(batch.chunks))
            return self._fail_batch(batch, error)
        outputs = self._publish(batch, chosen, started)
        return Frame(outputs, self._stats(batch, computed - started, sampled - computed))

    def fail_all(self, message: str) -> Frame:
        """Forget every request and tell each why."""
        sequences = tuple(self._sequences.values())
        return Frame(tuple(self._fail(sequence, message) for sequence in sequences))

    def _publish(
        self, batch: Batch, chosen: Several[Chosen], started: float
    ) -> tuple[CoreOutput | CoreFailure, ...]:
        outputs: list[CoreOutput | CoreFailure] = []
        for chunk, result in zip(batch.chunks, chosen, strict=True):
            sequence = chunk.sequence
            sequence.computed = chunk.stop
            sequence.started = sequence.started or started
            sequence.prompt_logprobs += result.prompt_logprobs
            if result.failure is not None:
                outputs.append(self._fail(sequence, result.failure))
            elif result.choice is not None:
                outputs.append(self._advance(sequence, result.choice))
        return tuple(outputs)

    def _advance(self, sequence: Sequence, choice: Choice) -> CoreOutput:
        prompt_logprobs: tuple[float | None, ...] | None = None
        if sequence.wants_prompt_logprobs:
            prompt_logprobs = (None, *sequence.prompt_logprobs)
        sequence.append(choice.token_id)
        finish = self._finish_reason(sequence, choice.token_id)
        if finish is not None:
            self._forget(sequence)
        return CoreOutput(
            sequence.id,
            choice.token_id,
            choice.logprob,
            choice.top,
            finish,
            sequence.started,
            prompt_logprobs=prompt_logprobs,
        )

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        if sequence.generated >= sequence.request.max_new_tokens:  # TGI's order: length before EOS
            return FinishReason.LENGTH
        return FinishReason.EOS if token_id in self._eos else None

    def _fail_batch(self, batch: Batch, error: Exception) -> Frame:
        message = f"The engine failed on the step that held this request: {type(error).__name__}: {error}"
        return Frame(tuple(self._fail(chunk.sequence, message) for chunk in batch.chunks))

    def _fail(self, sequence: Sequence, message: str) -> CoreFailure:
        self._forget(sequence)
        return CoreFailure(sequence.id, message)

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.id]
        self._scheduler.remove(sequence)

    def _stats(self, batch: Batch, forward_seconds: float, sample_seconds: float) -> StepStats:
        decodes = sum(chunk.decodes for chunk in batch.chunks)
        return StepStats(
            prefill_tokens=sum(chunk.size for chunk in batch.chunks) - decodes,
            decode_sequences=decodes,
            admitted=batch.admitted,
            forward_seconds=forward_seconds,
            sample_seconds=sample_seconds,
            waiting=len(self._scheduler.waiting),
            running=len(self._scheduler.running),
            kv_tokens=self._scheduler.kv_tokens,
            preempted=batch.preempted,
        )
