"""One step of the engine: schedule, run, sample, publish. Knows neither threads nor tensors."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Generic, TypeVar

from inference.engine.drafts import Drafts
from inference.engine.isolation import Isolation
from inference.engine.outputs import Outputs
from inference.engine.speculation import Speculation
from inference.grammar.masks import MaskPool
from inference.scheduling.scheduler import Batch, Scheduler
from inference.sequences.chosen import Chosen
from inference.sequences.computing import IdleWork, Runner, Sampler
from inference.sequences.faults import EngineLost, StepLost, explain, working_for
from inference.sequences.sight import Sight
from inference.sequences.state import Integers, Pieces, Sequence, SlotTable
from inference.sequences.work import Work
from inference.shortage import is_shortage
from inference.step_stats import StepStats
from inference.types import CoreFailure, CoreOutput, CoreRequest, Frame

LOG = logging.getLogger(__name__)

Logits = TypeVar("Logits")  # the runner's form of them, which only the sampler reads


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
        speculation: Speculation[Logits] | None = None,
        idle_work: IdleWork | None = None,
    ) -> None:
        self._scheduler = scheduler
        self.pace = scheduler.pace
        self._runner = runner
        self._sampler = sampler
        self._outputs = Outputs(eos_token_ids)
        self._masks = masks
        self._speculation = speculation
        self._idle_work = idle_work
        self._sequences: dict[str, Sequence] = {}
        self._guided: dict[Sequence, None] = {}  # those with a grammar, in order of arrival
        self._isolation = Isolation()
        self._stuck = False  # the last step found nothing to do, and nothing was added or removed since

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do."""
        return self._scheduler.idle

    @property
    def stuck(self) -> bool:
        """Return whether nothing can be done before a mask is ready, or sequences come or go."""
        return self._stuck and not self._resumable() and not self.pace.released

    def add(self, request: CoreRequest, sight: Sight | None = None) -> None:
        """Queue a request; `sight`, what its prompt sees, is released when it is forgotten."""
        guide = None if request.grammar is None else self._masks.guide(request.grammar)
        sequence = Sequence(request, guide, sight)
        self._sequences[request.id] = sequence
        if guide is not None:
            self._guided[sequence] = None
        self._scheduler.add(sequence)
        self._stuck = False

    def uses(self, adapter: int) -> bool:
        """Return whether a request is there that an adapter computes, by its number."""
        return any(each.request.adapter == adapter for each in self._sequences.values())

    def abort(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored, it may just have ended."""
        if request_id in self._sequences:
            self._forget(self._sequences[request_id])

    def step(self) -> Frame:
        """Compute one batch; if that fails, the next ones are its parts, until who fails is alone."""
        return self._run(self._next())

    def _next(self) -> Batch:
        """Return what is left of steps that failed, part by part, and then what the scheduler says."""
        part = self._isolation.take(self._scheduler.running)
        return self._scheduler.schedule() if part is None else part

    def _run(self, batch: Batch) -> Frame:
        pieces = batch.pieces
        work = Work(pieces)
        drafts: Drafts | None = None
        started = time.monotonic()
        try:
            if pieces.prompts:  # what has nothing to do isn't called: it would have to come from memory first
                self._begin_masks(pieces)
            if self._speculation is not None and not batch.again:  # what failed may have failed by a guess
                drafts = self._speculation.draft(pieces)
            logits = self._compute(batch, drafts) if len(pieces.slots) else None
            computed = time.monotonic()
            if self._guided:
                work = self._find_masks(batch)
            self._stuck = not len(pieces.slots) and not work.resumed
            chosen = None if self._stuck else self._pick(work, logits, drafts)
            sampled = time.monotonic()
        except EngineLost:
            raise
        except Exception as error:  # whatever it is, the requests must hear of it and the loop go on
            return self._recover(batch, work, error, drafts)
        outputs = () if chosen is None else self._publish(work, chosen, started)
        if drafts is not None and logits is not None:
            outputs += self._verify(drafts, logits)
        if self._stuck and not batch.preempted:
            return Frame(())
        self._stuck = False  # who gave way may be let in by the next step
        self._isolation.failures = 0
        published = time.monotonic()
        stats = self._stats(batch, computed - started, sampled - computed, published - sampled)
        return Frame(outputs, stats if drafts is None else self._learn(stats, drafts))

    def at_rest(self) -> Frame:
        """Say that nothing runs or waits any more, where no step is left to say so; took no time."""
        assert self.idle, "whatever runs or waits has a step to say so"
        return Frame((), self._stats(self._scheduler.schedule(), 0.0, 0.0))

    def work_while_idle(self) -> bool:
        """Make a little ready for later steps, in milliseconds; return false if there was nothing to do."""
        assert self.idle, "whoever waits for a token comes first"
        return self._idle_work is not None and self._idle_work.advance(self._scheduler.high_water)

    def fail_all(self, message: str) -> Frame:
        """Forget every request and tell each why."""
        self._isolation.drop()
        sequences = tuple(self._sequences.values())
        return Frame(tuple(self._fail(sequence, message) for sequence in sequences))

    def check_idle(self) -> tuple[str, ...]:
        """Return what the books have wrong now that nothing is left to do; say it loudly, and repair it."""
        assert self.idle, "only an idle engine's books have to balance"
        faults = self._scheduler.check_idle()
        if self._sequences or self._guided:
            faults.append(
                f"{len(self._sequences)} requests are remembered, {len(self._guided)} with grammars"
            )
        if faults:
            LOG.error("The idle engine's books don't balance and are begun anew: %s", "; ".join(faults))
            self._scheduler.reset()
            self._sequences.clear()
            self._guided.clear()
        return tuple(faults)

    def _compute(self, batch: Batch, drafts: Drafts | None) -> Logits:
        # With a grammar about, a row that was held may come beside the pieces'. What has failed is computed
        # again without this, too: it may have failed by it
        tokens_only = not (self._guided or batch.again) and self._sampler.tokens_only(batch.pieces)
        return self._runner.run(drafts.pieces if drafts else batch.pieces, tokens_only=tokens_only)

    def _pick(self, work: Work, logits: Logits | None, drafts: Drafts | None) -> Chosen:
        if self._speculation is None or drafts is None or logits is None:
            return self._sampler.choose(work, logits)
        return self._speculation.choose(work, drafts, logits)

    def _verify(self, drafts: Drafts, logits: Logits) -> tuple[CoreOutput | CoreFailure, ...]:
        assert self._speculation is not None, "who drafts, verifies"
        said: tuple[CoreOutput | CoreFailure, ...] = ()
        for sequences, chosen in self._speculation.verify(drafts, logits, self._masks):
            said += self._say(drafts.pieces.table, sequences, chosen, len(sequences))
        return said

    def _learn(self, stats: StepStats, drafts: Drafts) -> StepStats:
        assert self._speculation is not None, "who drafts, learns"
        return replace(stats, guessed=drafts.count, confirmed=self._speculation.learn(drafts))

    def _begin_masks(self, pieces: Pieces) -> None:
        for chunk in pieces.prompts:
            guide = chunk.sequence.guide
            if guide is not None and not guide.begun:
                with working_for(chunk.sequence):
                    guide.begin()

    def _find_masks(self, batch: Batch, gone: frozenset[Sequence] = frozenset()) -> Work:
        """Return whose tokens can be chosen, after waiting a moment for masks that are nearly there."""
        pieces = batch.pieces
        if not self._guided:
            return Work(pieces, gone=gone)
        try:
            guided = [sequence for sequence in pieces.sampling if sequence.guide and sequence not in gone]
            self._masks.wait([sequence.guide for sequence in guided if sequence.guide])
            late = frozenset(sequence for sequence in guided if not sequence.has_mask)
            return Work(pieces, late, self._resumable() if batch.resumed is None else batch.resumed, gone)
        except Exception as error:  # a device that chooses has gone on, and nobody would tell it otherwise
            raise StepLost("it isn't known whose masks are there") from error

    def _resumable(self) -> tuple[Sequence, ...]:
        return tuple(s for s in self._guided if s.held is not None and s.has_mask)

    def _publish(self, work: Work, chosen: Chosen, started: float) -> tuple[CoreOutput | CoreFailure, ...]:
        _note_start(work.pieces, started)
        self._scheduler.complete(work.pieces, work.sequences[work.first :], work.late)
        return self._tell(work, chosen)

    def _tell(self, work: Work, chosen: Chosen) -> tuple[CoreOutput | CoreFailure, ...]:
        for sequence, scored in chosen.prompts.items():
            sequence.prompt_logprobs += scored.logprobs
            if scored.top is not None:
                sequence.prompt_top.append(scored.top)
        for sequence in work.resumed:
            sequence.held = None
        return self._say(work.pieces.table, work.sequences, chosen, work.first)

    def _say(
        self,
        table: SlotTable,
        sequences: tuple[Sequence, ...],
        chosen: Chosen,
        first: int,
        positions: Integers | None = None,
    ) -> tuple[CoreOutput | CoreFailure, ...]:
        """Return what the chosen tokens tell the sequences' requests, as `Outputs.publish` takes them."""
        own = self._grammar_failures(sequences)
        known = chosen.failures | own
        outputs, finishes, failures = self._outputs.publish(table, sequences, chosen, first, known, positions)
        for sequence in finishes:
            self._forget(sequence)
        if not failures:
            return tuple(outputs)
        said = (output for output, of in zip(outputs, sequences, strict=True) if of not in failures)
        return (*said, *(self._fail(of, message, own=of in own) for of, message in failures.items()))

    def _grammar_failures(self, sequences: tuple[Sequence, ...]) -> dict[Sequence, str]:
        guided = [(sequence, sequence.guide) for sequence in sequences] if self._guided else []
        return {sequence: guide.failure for sequence, guide in guided if guide and guide.failure is not None}

    def _recover(self, batch: Batch, work: Work, error: Exception, drafts: Drafts | None = None) -> Frame:
        """Have what a step should have computed be computed again, in smaller steps or in parts of it.

        Or all at once, if it had `drafts`, without what may have made it fail.

        Of all this nothing is known: no token, no mask, no row that was to be held. What keys and values
        were written will be again, to the same places.
        """
        for sequence in batch.pieces.sampling:
            sequence.held = None
        self._stuck = False
        if drafts is not None and self._speculation is not None:
            self._speculation.rest(drafts)
            self._isolation.repeat(batch, work)
            LOG.warning("A step with guesses failed, and is computed again without: %s", type(error).__name__)
            return Frame((), replace(self._stats(batch, 0.0, 0.0), failed=True))
        back = self._scheduler.ease(batch.pieces) if is_shortage(error) else None
        if back is None:
            return self._fail_step(batch, self._isolation.blame(batch, work, error), error)
        self._isolation.drop()
        LOG.warning(
            "Memory was too short for a step, which is made smaller, and %d sequences wait: %s", back, error
        )
        return Frame((), self._stats(replace(batch, preempted=batch.preempted + back), 0.0, 0.0))

    def _fail_step(self, batch: Batch, guilty: tuple[Sequence, ...], error: Exception) -> Frame:
        """Return what a step says that has failed, and with it those who are to blame."""
        alone = len(guilty) == 1
        if guilty:
            ids = ", ".join(sequence.id for sequence in guilty)
            LOG.error("A step failed, and with it %s", ids, exc_info=error)
        else:
            count, kind = len(batch.pieces.slots), type(error).__name__
            LOG.warning("A step of %d sequences failed, and is computed again in parts: %s", count, kind)
        running = (sequence for sequence in guilty if sequence in self._scheduler.running)
        failures = tuple(self._fail(each, explain(each.id, error, alone=alone)) for each in running)
        return Frame(failures, replace(self._stats(batch, 0.0, 0.0), failed=True))

    def _fail(self, sequence: Sequence, message: str, *, own: bool = False) -> CoreFailure:
        self._forget(sequence, keep=False)  # what it computed may be what went wrong
        return CoreFailure(sequence.id, message, own)

    def _forget(self, sequence: Sequence, *, keep: bool = True) -> None:
        del self._sequences[sequence.id]
        self._scheduler.remove(sequence, keep=keep)
        sequence.close()
        self._guided.pop(sequence, None)
        self._stuck = False

    def _stats(self, batch: Batch, forward: float, sample: float, publish: float = 0.0) -> StepStats:
        return StepStats(
            prefill_tokens=sum(chunk.size for chunk in batch.pieces.prompts),
            decode_sequences=len(batch.pieces.decodes),
            admitted=batch.admitted,
            cached_tokens=batch.cached_tokens,
            forward_seconds=forward,
            sample_seconds=sample,
            waiting=len(self._scheduler.waiting),
            running=len(self._scheduler.running),
            kv_tokens=self._scheduler.kv_tokens,
            held_tokens=self._scheduler.held_tokens,
            preempted=batch.preempted,
            obstacle=self._scheduler.obstacle,
            waiting_prefix=self._scheduler.awaiting,
            schedule_seconds=batch.seconds,
            publish_seconds=publish,
            again=batch.again,
        )


def _note_start(pieces: Pieces, started: float) -> None:
    for chunk in pieces.prompts:
        chunk.sequence.started = chunk.sequence.started or started
