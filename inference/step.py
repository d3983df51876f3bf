"""One step of the engine: schedule, run, sample, publish. Knows neither threads nor tensors."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Several
from typing import Generic, Protocol, TypeVar

from inference.masks import MaskPool
from inference.scheduler import Batch, Scheduler
from inference.state import Choice, Chosen, Chunk, Sequence, TopTokens, Work
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

    def choose(self, work: Work, logits: _Read | None) -> Several[Chosen]:
        """Return what the logits say of each of the work's sequences; None if there are no chunks.

        The rows of those that are late are kept in their `held`, and no token is chosen.
        """


class Stepper(Generic[Logits]):
    """All sequences from queue to last token, one step at a time.

    A sequence whose grammar mask isn't there when its logits are is parked: it keeps its row of
    them and its blocks, and takes part in no step until the mask has come. Then its token is
    chosen beside those of the step that runs.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner[Logits],
        sampler: Sampler[Logits],
        eos_token_ids: tuple[int, ...],
        masks: MaskPool,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._sampler = sampler
        self._eos = frozenset(eos_token_ids)
        self._masks = masks
        self._sequences: dict[str, Sequence] = {}
        self._stuck = False  # the last step found nothing to do, and nothing was added or removed since

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do."""
        return self._scheduler.idle

    @property
    def stuck(self) -> bool:
        """Return whether nothing can be done before a mask is ready, or sequences come or go."""
        return self._stuck and not self._resumable()

    def add(self, request: CoreRequest) -> None:
        """Queue a request."""
        guide = None if request.grammar is None else self._masks.guide(request.grammar)
        sequence = Sequence(request, guide)
        self._sequences[request.id] = sequence
        self._scheduler.add(sequence)
        self._stuck = False

    def abort(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored, it may just have ended."""
        if request_id in self._sequences:
            self._forget(self._sequences[request_id])

    def step(self) -> Frame:
        """Compute one batch; if that fails, all of its requests have failed and the rest go on."""
        batch = self._scheduler.schedule()
        work = Work(batch.chunks)
        started = time.monotonic()
        try:
            self._begin_masks(batch)
            logits = self._runner.run(batch.chunks) if batch.chunks else None
            computed = time.monotonic()
            work = self._find_masks(batch)
            chosen = self._sampler.choose(work, logits) if work.sequences else ()
            sampled = time.monotonic()
        except Exception as error:  # whatever it is, the requests must hear of it and the loop go on
            LOG.exception("A step of %d sequences failed", len(work.sequences))
            return self._fail_step(work, error)
        self._stuck = not work.sequences
        outputs = self._publish(work, chosen, started)
        if self._stuck and not batch.preempted:
            return Frame(())
        return Frame(outputs, self._stats(batch, computed - started, sampled - computed))

    def fail_all(self, message: str) -> Frame:
        """Forget every request and tell each why."""
        sequences = tuple(self._sequences.values())
        return Frame(tuple(self._fail(sequence, message) for sequence in sequences))

    def _begin_masks(self, batch: Batch) -> None:
        for chunk in batch.chunks:
            guide = chunk.sequence.guide
            if guide is not None and not guide.begun:
                guide.begin()

    def _find_masks(self, batch: Batch) -> Work:
        """Return whose tokens can be chosen, after waiting a moment for masks that are nearly there."""
        guided = [chunk.sequence for chunk in batch.chunks if chunk.samples and chunk.sequence.guide]
        self._masks.wait([sequence.guide for sequence in guided if sequence.guide])
        late = frozenset(sequence for sequence in guided if not sequence.has_mask)
        return Work(batch.chunks, late, self._resumable())

    def _resumable(self) -> tuple[Sequence, ...]:
        return tuple(s for s in self._scheduler.running if s.held is not None and s.has_mask)

    def _publish(
        self, work: Work, chosen: Several[Chosen], started: float
    ) -> tuple[CoreOutput | CoreFailure, ...]:
        for chunk in work.chunks:
            chunk.sequence.computed = chunk.stop
            chunk.sequence.started = chunk.sequence.started or started
        outputs: list[CoreOutput | CoreFailure] = []
        for sequence, result in zip(work.sequences, chosen, strict=True):
            sequence.prompt_logprobs += result.prompt_logprobs
            sequence.prompt_top += result.prompt_top
            failure = (sequence.guide and sequence.guide.failure) or result.failure
            if failure is not None:
                outputs.append(self._fail(sequence, failure))
            elif result.choice is not None:
                outputs.append(self._advance(sequence, result.choice))
        return tuple(outputs)

    def _advance(self, sequence: Sequence, choice: Choice) -> CoreOutput:
        prompt_logprobs, prompt_top = _of_prompt(sequence)
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
            prompt_top=prompt_top,
        )

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        """Return why the text ends here, or None after its guide was told of the token."""
        request, guide = sequence.request, sequence.guide
        if sequence.generated >= request.max_new_tokens:  # TGI's order: length before EOS
            return FinishReason.LENGTH
        if guide is None:
            return FinishReason.EOS if token_id in self._eos and not request.ignore_eos else None
        if token_id in self._eos:
            return FinishReason.EOS
        guide.advance(token_id)
        # Not EOS: its token would be no part of the text
        return FinishReason.STOP if guide.complete else None

    def _fail_step(self, work: Work, error: Exception) -> Frame:
        message = f"The engine failed on the step that held this request: {type(error).__name__}: {error}"
        return Frame(tuple(self._fail(sequence, message) for sequence in work.sequences))

    def _fail(self, sequence: Sequence, message: str) -> CoreFailure:
        self._forget(sequence)
        return CoreFailure(sequence.id, message)

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.id]
        self._scheduler.remove(sequence)
        if sequence.guide is not None:
            sequence.guide.close()
        self._stuck = False

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


def _of_prompt(sequence: Sequence) -> tuple[tuple[float | None, ...] | None, tuple[TopTokens, ...]]:
    """Return the prompt's log-probabilities and top tokens, once: with the first generated token."""
    if not sequence.wants_prompt_logprobs:
        return None, ()
    top = ((), *sequence.prompt_top) if sequence.request.top_n_tokens else ()
    return (None, *sequence.prompt_logprobs), top
