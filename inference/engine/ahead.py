"""One step ahead: a step is begun before the tokens of the one before it are read.

The device knows those tokens; the host only counts them. What it learns too late is that a text has
ended with EOS, or was aborted: then the step that has been begun computes one token too many, which
nobody gets. Its pages may be another's by then, as later steps come later on the device, too; and a
page is shared only once all of its tokens are known.

A step in which the host has to choose a token (grammars, alternatives) is read before the next
one is begun, and so is one after which there aren't pages enough: preemption needs whole texts.

A step that can't be begun, or after which the host fails, is computed again in parts. One that can't be
read is lost with all that was begun upon it: then it is the device that has failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from inference.engine.step import Stepper
from inference.gpu.runner import Drawn
from inference.gpu.sampling import chosen_by_device
from inference.grammar.masks import MaskPool
from inference.sampling.recipe import drawn_by_device
from inference.scheduling.scheduler import Batch, Scheduler
from inference.sequences.chosen import Chosen
from inference.sequences.computing import Runner, Sampler
from inference.sequences.sight import Sight
from inference.sequences.state import Integers, Sequence
from inference.sequences.work import Work
from inference.types import CoreFailure, CoreOutput, CoreRequest, Frame

LOG = logging.getLogger(__name__)

Outputs = tuple[CoreOutput | CoreFailure, ...]

_BROKEN = "the step before it failed on the device"


class Readable(Protocol):
    """What a runner returns of a step that it has queued."""

    def read(self) -> Drawn:
        """Return what the device has chosen, once it is there; raise what went wrong."""


Launch = TypeVar("Launch", bound=Readable)


@dataclass(slots=True, eq=False)
class Flight(Generic[Launch]):
    """A step that was begun."""

    batch: Batch
    sequences: tuple[Sequence, ...]  # that it gives a token
    started: float
    launched: Launch | None = None  # None: it couldn't be begun, or what it was begun upon has failed
    error: Exception | None = None  # why
    positions: Integers | None = None  # where their tokens belong; None: the host chooses, and counts then
    gone: set[Sequence] = field(default_factory=set)  # who has ended since
    computed: bool = False  # and all of it was read
    resumed: tuple[Sequence, ...] = ()  # whose held rows give a token beside it

    @property
    def blocks_next(self) -> bool:
        """Return whether it must be read before another is begun."""
        return self.positions is None

    @property
    def repeatable(self) -> bool:
        """Return whether it can be computed again: the device never began it, or computed all of it."""
        return self.blocks_next and (self.computed or self.error is not None)

    @property
    def work(self) -> Work:
        """Return whom it concerns."""
        return Work(self.batch.pieces, resumed=self.resumed, gone=frozenset(self.gone))


class AheadStepper(Stepper[Launch]):
    """A `Stepper` whose steps are begun one ahead, for a runner that only queues them."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner[Launch],
        sampler: Sampler[Launch],
        eos_token_ids: tuple[int, ...],
        masks: MaskPool,
        *,
        by_device: Callable[[CoreRequest], bool] = drawn_by_device,
    ) -> None:
        """`by_device`: whether the device chooses all of a request's tokens."""
        super().__init__(scheduler, runner, sampler, eos_token_ids, masks)
        self._by_device = by_device
        self._askers: set[Sequence] = set()  # whose tokens the host chooses
        self._flights: list[Flight[Launch]] = []  # at most two, and one between steps
        self._read = 0.0  # time.monotonic() when a step was read last

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do, and nothing on its way."""
        return not self._flights and super().idle

    @property
    def stuck(self) -> bool:
        """Return whether nothing can be done before a mask is ready, or sequences come or go."""
        return not self._flights and super().stuck

    def add(self, request: CoreRequest, sight: Sight | None = None) -> None:
        """Queue a request."""
        super().add(request, sight)
        if not self._by_device(request):
            self._askers.add(self._sequences[request.id])

    def step(self) -> Frame:
        """Begin a batch, and another one if that can be done ahead; read the first."""
        if not self._flights:
            batch = self._next()
            if not len(batch.pieces.slots):  # at most tokens that waited for their masks
                return self._run(batch)
            self._begin(batch)
        if not (self._isolation.open or self._flights[0].blocks_next or self._scheduler.must_preempt):
            batch = self._scheduler.schedule()
            if len(batch.pieces.slots):
                self._begin(batch)
        frame = self._end(self._flights[0])
        del self._flights[0]
        return frame

    def fail_all(self, message: str) -> Frame:
        """Forget every request and tell each why; what is on its way is nobody's."""
        self._flights = []
        return super().fail_all(message)

    def _forget(self, sequence: Sequence, *, keep: bool = True) -> None:
        super()._forget(sequence, keep=keep)
        self._askers.discard(sequence)
        for flight in self._flights:
            flight.gone.add(sequence)

    def _begin(self, batch: Batch) -> None:
        """Have a batch computed."""
        pieces = batch.pieces
        flight: Flight[Launch] = Flight(batch, pieces.sampling, time.monotonic())
        self._flights.append(flight)
        self._stuck = False
        try:
            self._begin_masks(pieces)
            flight.launched = self._runner.run(pieces)
        except Exception as error:  # those before it go on: their tokens are read first
            LOG.debug("A step couldn't be begun", exc_info=True)
            flight.error = error
            return
        for chunk in pieces.prompts:
            chunk.sequence.started = chunk.sequence.started or flight.started
        self._scheduler.computed(pieces, ahead=True)
        if self._asks_host(flight):
            return
        self._scheduler.go_on(flight.sequences[len(pieces.decodes) :])
        flight.positions = self._scheduler.expect(flight.sequences)

    def _asks_host(self, flight: Flight[Launch]) -> bool:
        """Return whether the host has to choose a token of a step, or to read what it says of a prompt."""
        if not self._askers:
            return False
        scored = (chunk.sequence for chunk in flight.batch.pieces.prompts if chunk.logit_rows)
        some = not self._askers.isdisjoint(flight.sequences) or not self._askers.isdisjoint(scored)
        return some or bool(self._resumable())

    def _end(self, flight: Flight[Launch]) -> Frame:
        """Return what a step that was begun says."""
        begun = max(flight.started, self._read)
        try:
            if flight.launched is None:
                raise RuntimeError(_BROKEN) if flight.error is None else flight.error
            drawn = flight.launched.read()
            self._read, flight.computed = time.monotonic(), True
            say = self._choose(flight, flight.launched, drawn)
            chosen = time.monotonic()
        except Exception as error:  # whatever it is, the requests must hear of it and the loop go on
            return self._end_in_failure(flight, error)
        self._isolation.failures = 0
        outputs = say()
        said = time.monotonic()
        return Frame(
            outputs, self._stats(flight.batch, self._read - begun, chosen - self._read, said - chosen)
        )

    def _end_in_failure(self, flight: Flight[Launch], error: Exception) -> Frame:
        work, repeatable = flight.work, flight.repeatable
        flight.error = None  # it knows its frames, and one of them this flight
        if repeatable:
            if flight.computed:  # and counts as such, though nobody knows what came of it
                self._scheduler.take_back(work.pieces, work.gone)
            return self._recover(flight.batch, work, error)
        for later in self._flights[1:]:  # it reads what this one should have written
            later.launched = later.positions = None
        return self._fail_step(flight.batch, work.touched, error)

    def _choose(self, flight: Flight[Launch], launched: Launch, drawn: Drawn) -> Callable[[], Outputs]:
        """Return what gives out the tokens, after the host has chosen those that it must."""
        pieces = flight.batch.pieces
        if flight.positions is None:
            work = self._find_masks(flight.batch, frozenset(flight.gone))
            flight.resumed = work.resumed
            by_host = self._sampler.choose(work, launched)
            return partial(self._go_on, work, by_host)
        sequences, positions = flight.sequences, flight.positions
        if flight.gone:
            left = [row for row, sequence in enumerate(sequences) if sequence not in flight.gone]
            sequences = tuple(sequences[row] for row in left)
            drawn, positions = drawn.of(left), positions[left]
        chosen = chosen_by_device(sequences, drawn)
        return partial(self._say, pieces.table, sequences, chosen, len(sequences), positions)

    def _go_on(self, work: Work, chosen: Chosen) -> Outputs:
        self._scheduler.go_on(work.sequences[work.first :], work.late)
        return self._tell(work, chosen)
