"""Any order of events, faults among them: whose steps raise fails, and nobody else is lost or disturbed."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from inference.types import CoreFailure, CoreOutput, CoreRequest, Frame
from tests.unit.inference.engine.test_step_lives import Lives
from tests.unit.inference.faulty_paper import Fault, Faults, FaultyRunner, FaultySampler, Where
from tests.unit.inference.paper_model import PaperSampler


class FaultyFates(Lives):
    """The same lives, some of which break their steps from some moment on: they fail, and no other does."""

    forgets = True  # what a failed request had found or computed, and nobody else holds

    def arm(self) -> None:
        """Have faults come about in the stepper's work."""
        self.faults = Faults()
        self.failed: set[str] = set()
        sampler = self.stepper._sampler
        assert isinstance(sampler, PaperSampler)
        self.stepper._runner = FaultyRunner(self.runner, self.faults)
        faulty = FaultySampler(sampler, self.faults, getattr(self.runner, "newest", None))
        self.stepper._sampler = faulty
        if self.stepper._speculation is not None:
            self.stepper._speculation._sampler = faulty

    @precondition(lambda self: len(self.faults) < 6)  # or many together look like a model that is broken
    @rule(id=Lives.live, where=st.sampled_from(Where))
    def break_from_now_on(self, id: str, where: Where) -> None:
        self.faults[id] = Fault(where, -1)

    def hear(self, frame: Frame) -> None:
        failures = {output.id for output in frame.outputs if isinstance(output, CoreFailure)}
        assert failures <= self.faults.keys() - self.failed - self.aborted
        assert all(not self.said[id] or self.said[id][-1].finish is None for id in failures)
        assert not any(output.id in self.failed for output in frame.outputs)
        self.failed |= failures
        super().hear(Frame(tuple(output for output in frame.outputs if output.id not in failures)))

    def told(self, wanted: CoreRequest, expected: list[int], said: list[CoreOutput]) -> None:
        if wanted.id not in self.failed:
            super().told(wanted, expected, said)
            return
        assert [output.token_id for output in said] == expected[: len(said)]
        assert all(output.finish is None for output in said)


class FaultyLives(FaultyFates):
    """One step at a time."""

    @initialize(
        blocks=st.integers(3, 12),
        budget=st.integers(4, 40),
        chunked=st.booleans(),
        caching=st.booleans(),
        errs=st.sampled_from([None, 0, 1, 3]),
        willing=st.booleans(),
    )
    def begin(
        self, blocks: int, budget: int, chunked: bool, caching: bool, errs: int | None, willing: bool
    ) -> None:
        super().begin(blocks, budget, chunked, caching, errs, willing)
        self.arm()


TestFaultyLives = FaultyLives.TestCase
TestFaultyLives.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
