"""Any order of events: requests come, run, wait for masks, are preempted and aborted; none may be lost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from inference.engine.step import Stepper
from inference.kv_cache.blocks import PAGE, BlockPool
from inference.scheduling.scheduler import Limits, Scheduler
from inference.sequences.state import SlotTable
from inference.types import CoreOutput, CoreRequest, Frame
from tests.unit.inference.paper_grammar import ManualPool, PaperGrammar, WillingPool
from tests.unit.inference.paper_model import (
    EOS,
    VOCABULARY,
    PaperRunner,
    PaperSampler,
    Prophet,
    kept,
    request,
    whole_text,
)

GRAMMARS = (
    PaperGrammar(lambda text: {10 + len(text), 30, EOS} if len(text) < 12 else {EOS}, EOS),
    PaperGrammar(lambda text: range(VOCABULARY), EOS),
)
PATIENCE = 3000  # steps by which everything must have ended


class Lives(RuleBasedStateMachine):
    """Requests come, run, are preempted and aborted in any order; none may be lost or disturbed.

    Prompts share prefixes, and their ids repeat, so that the whole of a prompt may be known. What
    the paper model finds in the blocks decides its tokens: a hit that is wrong changes the text.
    """

    live: Bundle[str] = Bundle("live")
    forgets = False  # whether one page may be forgotten, and the next one found within a piece

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
        self.pool = BlockPool(blocks)
        self.table = SlotTable(4, blocks)
        self.budget = budget
        self.chunked = chunked
        self.caching = caching and chunked
        limits = Limits(tokens=budget, sequences=4, logit_rows=10, chunked=chunked)
        self.scheduler = Scheduler(self.pool, limits, self.table, prefix_caching=caching)
        self.runner = PaperRunner()
        self.masks = (WillingPool if willing else ManualPool)(VOCABULARY, (EOS,))
        sampler, guesses = PaperSampler(), None
        if errs is not None and chunked:
            guesses = Prophet(self.scheduler, sampler, 5, min(8, budget), errs)
        self.stepper = Stepper(self.scheduler, self.runner, sampler, (EOS,), self.masks, guesses)
        self.requests: dict[str, CoreRequest] = {}
        self.said: dict[str, list[CoreOutput]] = {}
        self.aborted: set[str] = set()

    @rule(
        target=live,
        prefix=st.sampled_from([0, 16, 32, 40]),
        length=st.integers(1, 50),
        new=st.integers(1, 40),
        logprobs=st.sampled_from([False, False, True]),
        grammar=st.sampled_from([None, None, *GRAMMARS]),
        min_tokens=st.sampled_from([0, 0, 6]),
        ignore_eos=st.booleans(),
        salt=st.sampled_from(["", "", "salt"]),
        owner=st.sampled_from("abc"),
    )
    def submit(
        self,
        prefix: int,
        length: int,
        new: int,
        logprobs: bool,
        grammar: PaperGrammar | None,
        min_tokens: int,
        ignore_eos: bool,
        salt: str,
        owner: str,
    ) -> str:
        capacity = self.pool.size * PAGE
        length = min(length, capacity - 1)
        wanted = request(
            str(len(self.requests)),
            length,
            min(new, capacity - length),
            prompt_logprobs=logprobs,
            top=int(logprobs),
            grammar=grammar,
            min_tokens=min_tokens,
            ignore_eos=ignore_eos,
            prefix=prefix,
            salt=salt,
            owner=owner,
        )
        self.requests[wanted.id] = wanted
        self.said[wanted.id] = []
        self.stepper.add(wanted)
        return wanted.id

    @rule(id=consumes(live))
    def abort(self, id: str) -> None:
        if not self.said[id] or self.said[id][-1].finish is None:
            self.aborted.add(id)
        self.stepper.abort(id)

    @rule(times=st.integers(1, 30))
    def step(self, times: int) -> None:
        for _ in range(times):
            if not self.stepper.idle:
                self.hear(self.stepper.step())

    @rule(at=st.integers(0, 7))
    def fill_a_mask(self, at: int) -> None:
        if self.masks.asked:
            self.masks.fill(at % len(self.masks.asked))

    def hear(self, frame: Frame) -> None:
        for output in frame.outputs:
            assert isinstance(output, CoreOutput)
            assert output.id not in self.aborted
            said = self.said[output.id]
            assert not said or said[-1].finish is None
            said.append(output)

    @invariant()
    def blocks_are_conserved(self) -> None:
        assert self.scheduler.check() == []
        held = self.pool.held
        assert len(held) + self.pool.free + self.pool.idle == self.pool.size
        assert not any(sequence.blocks for sequence in self.scheduler.waiting)
        if not self.caching:
            assert self.pool.idle == 0
            assert set(held.values()) <= {1}

    @invariant()
    def the_table_says_what_the_sequences_are(self) -> None:
        for sequence in self.scheduler.running:
            text = [output.token_id for output in self.said[sequence.id]]
            assert sequence.ids.tolist() == [*sequence.request.prompt_ids, *text]
            assert self.table.blocks[sequence.slot, : len(sequence.blocks)].tolist() == sequence.blocks
            assert sequence.computed <= self.table.room[sequence.slot] == len(sequence.blocks) * PAGE
        assert len({sequence.slot for sequence in self.scheduler.running}) == len(self.scheduler.running)

    @invariant()
    def what_counts_as_computed_is_in_the_cache(self) -> None:
        for sequence in self.scheduler.running:
            if self.chunked:
                assert kept(self.runner, sequence) == sequence.ids[: sequence.computed].tolist()
            assert sequence.computed <= sequence.length

    @invariant()
    def salts_share_nothing(self) -> None:
        held = {
            salt: {b for s in self.scheduler.running if s.request.salt == salt for b in s.blocks}
            for salt in ("", "salt")
        }
        assert held[""].isdisjoint(held["salt"])

    @invariant()
    def limits_are_kept(self) -> None:
        assert len(self.scheduler.running) <= 4
        if self.chunked:
            assert all(sum(sizes) <= self.budget for sizes in self.runner.steps)
            assert all(rows <= 10 + 4 for rows in self.runner.rows)
        assert all(sizes for sizes in self.runner.steps)

    @invariant()
    def only_who_waits_for_a_mask_is_parked(self) -> None:
        assert all(sequence.held is None for sequence in self.scheduler.waiting)
        for sequence in self.scheduler.running:
            assert (sequence.held is not None) == (sequence.remaining == 0)

    @invariant()
    def stuck_means_that_a_step_would_do_nothing(self) -> None:
        if self.stepper.stuck:
            assert self.masks.asked
            assert self.stepper.step() == Frame(())

    def teardown(self) -> None:
        for _ in range(PATIENCE):
            if self.stepper.idle:
                break
            self.hear(self.stepper.step())
            if self.masks.asked:
                self.masks.fill()
        assert self.stepper.check_idle() == ()
        assert self.scheduler.check() == []
        assert self.pool.available == self.pool.size
        for id, wanted in self.requests.items():
            self.told(wanted, whole_text(wanted), self.said[id])

    def told(self, wanted: CoreRequest, expected: list[int], said: list[CoreOutput]) -> None:
        heard = [output.token_id for output in said]
        if wanted.id in self.aborted:
            assert heard == expected[: len(heard)]
            return
        assert heard == expected
        assert [output.finish is not None for output in said].count(True) == 1
        assert self.forgets or {output.cached_tokens % PAGE for output in said} == {0}
        assert all(output.cached_tokens < len(wanted.prompt_ids) for output in said)
        assert self.caching or said[0].cached_tokens == 0
        if wanted.prompt_logprobs:
            assert said[0].cached_tokens == 0
            places = range(1, len(wanted.prompt_ids))
            assert said[0].prompt_logprobs == (None, *(-float(at) for at in places))
            assert said[0].prompt_top is not None
            assert said[0].prompt_top.pairs() == ((), *(((at, -float(at)),) for at in places))


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
