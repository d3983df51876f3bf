"""Steps in which tokens are guessed ahead, on the paper model: another text, or a lost token, would show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inference.engine.speculation import MOST_TOKENS, Speculation
from inference.engine.step import Stepper
from inference.kv_cache.blocks import PAGE
from inference.scheduling.scheduler import Limits
from inference.sequences.chosen import Chosen
from inference.sequences.state import Integers, Sequence
from inference.step_stats import StepStats
from inference.types import CoreFailure, CoreOutput, CoreRequest, FinishReason
from tests.unit.inference.paper_grammar import ManualPool, PaperGrammar, WillingPool
from tests.unit.inference.paper_model import (
    EOS,
    VOCABULARY,
    PaperRunner,
    PaperSampler,
    Prophet,
    kept,
    make_scheduler,
    request,
    whole_text,
)

MOST = 4
FREE = PaperGrammar(lambda text: range(VOCABULARY), EOS)
LONG = [request(str(at), 5 + at, 30, ignore_eos=True) for at in range(8)]


class Bench:
    """A stepper that guesses, and what it said."""

    def __init__(
        self,
        errs: int = 0,
        *,
        blocks: int = 50,
        sequences: int = 8,
        runner: PaperRunner | None = None,
        sampler: PaperSampler | None = None,
        willing: bool = False,
    ) -> None:
        self.scheduler = make_scheduler(blocks, Limits(tokens=32, sequences=sequences, logit_rows=64))
        self.runner, sampler = runner or PaperRunner(), sampler or PaperSampler()
        self.masks = (WillingPool if willing else ManualPool)(VOCABULARY, (EOS,))
        guesses = Prophet(self.scheduler, sampler, MOST, MOST_TOKENS, errs)
        self.stepper = Stepper(self.scheduler, self.runner, sampler, (EOS,), self.masks, guesses)
        self.stats: list[StepStats] = []

    def run(self, *wanted: CoreRequest) -> dict[str, list[CoreOutput | CoreFailure]]:
        said: dict[str, list[CoreOutput | CoreFailure]] = {each.id: [] for each in wanted}
        for each in wanted:
            self.stepper.add(each)
        while not self.stepper.idle:
            if self.masks.asked:
                self.masks.fill()
            frame = self.stepper.step()
            self.stats += [frame.stats] if frame.stats else []
            for output in frame.outputs:
                said[output.id].append(output)
            self._check()
        return said

    def _check(self) -> None:
        assert self.scheduler.check() == []
        for sequence in self.scheduler.running:
            assert kept(self.runner, sequence) == sequence.ids[: sequence.computed].tolist()
            assert sequence.generated == 0 or sequence.remaining <= 1

    @property
    def guessed(self) -> int:
        return sum(each.guessed for each in self.stats)

    @property
    def confirmed(self) -> int:
        return sum(each.confirmed for each in self.stats)


def tokens(outputs: list[CoreOutput | CoreFailure]) -> list[int]:
    return [output.token_id for output in outputs if isinstance(output, CoreOutput)]


@pytest.mark.parametrize("errs", [0, 1, 2, 5])
@pytest.mark.parametrize("texts", [1, 2, 3, 8])
def test_texts_are_those_without_guesses(texts: int, errs: int) -> None:
    wanted = [request(str(at), 5 + 9 * at, 40, ignore_eos=at % 2 > 0) for at in range(texts)]
    said = Bench(errs).run(*wanted)
    assert [tokens(said[each.id]) for each in wanted] == [whole_text(each) for each in wanted]
    ends = [[output for output in said[each.id] if output.finish is not None] for each in wanted]  # type: ignore[union-attr]
    assert all(len(found) == 1 for found in ends)


def test_a_step_gives_as_many_tokens_as_were_guessed_and_one_more() -> None:
    bench = Bench()
    bench.run(request("1", 5, 60, ignore_eos=True))
    assert bench.confirmed == bench.guessed > 0
    assert [each.guessed for each in bench.stats[:6]] == [0, 2, 3, 4, 4, 4]  # more, as they are right
    assert len(bench.stats) == 60 - bench.confirmed


def test_guessing_rests_after_wrong_guesses_and_longer_each_time() -> None:
    bench = Bench(errs=1)
    bench.run(request("1", 5, 130, ignore_eos=True))
    assert bench.confirmed == 0
    at = {step: each.guessed for step, each in enumerate(bench.stats) if each.guessed}
    assert at == {1: 2, 2: 2, 3: 1, 4: 1, 37: 2, 38: 2, 39: 1, 40: 1, 105: 2, 106: 2, 107: 1, 108: 1}


def test_with_more_texts_more_guesses_have_to_be_right() -> None:
    rights = [sum(each.guessed for each in _run_beside(texts, errs=2)) for texts in (1, 6)]
    assert rights[0] > 5 * rights[1] > 0


def _run_beside(texts: int, errs: int) -> list[StepStats]:
    bench = Bench(errs=errs)
    bench.run(*(request(str(at), 5, 80, ignore_eos=True) for at in range(texts)))
    return bench.stats


def test_guesses_and_texts_together_are_no_more_than_pays() -> None:
    bench = Bench()
    said = bench.run(*LONG[:3])
    assert [3, 3, 2] in bench.runner.steps
    assert max(map(sum, bench.runner.steps[3:])) == MOST_TOKENS
    assert [tokens(said[each.id]) for each in LONG[:3]] == [whole_text(each) for each in LONG[:3]]


def test_nothing_is_guessed_where_so_many_texts_go_on() -> None:
    bench = Bench()
    bench.run(*LONG)
    assert [each for each in bench.stats if each.decode_sequences == MOST_TOKENS and each.guessed] == []


def test_nothing_is_guessed_beside_prompts() -> None:
    bench = Bench()
    bench.stepper.add(LONG[0])
    bench.stepper.step()
    bench.stepper.add(LONG[1])
    stats = bench.stepper.step().stats
    assert stats is not None
    assert not stats.failed
    assert (stats.decode_sequences, stats.prefill_tokens, stats.guessed) == (1, 6, 0)


@pytest.mark.parametrize("willing", [False, True])
def test_a_guess_at_a_guided_text_goes_as_far_as_masks_are_there(willing: bool) -> None:
    bench = Bench(willing=willing)
    guided = request("9", 5, 30, grammar=FREE)
    assert tokens(bench.run(guided)["9"]) == whole_text(guided)
    assert bench.guessed > 0
    assert (bench.confirmed > 0) == willing


def test_where_masks_take_long_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.engine.speculation.GRACE_SECONDS", -1.0)
    bench = Bench(willing=True)
    bench.run(request("9", 5, 30, grammar=FREE))
    assert bench.guessed == 0


def test_texts_with_grammars_and_without_are_guessed_beside_each_other() -> None:
    bench = Bench(errs=3, willing=True)
    wanted = (LONG[0], request("9", 5, 30, grammar=FREE), LONG[1])
    said = bench.run(*wanted)
    assert [tokens(each) for each in said.values()] == [whole_text(each) for each in wanted]
    assert any(each.confirmed and each.decode_sequences == 3 for each in bench.stats)


def test_a_text_ends_within_a_guess_at_its_length() -> None:
    said = Bench().run(request("3", 5, 4, ignore_eos=True))["3"]
    assert [output.finish for output in said if isinstance(output, CoreOutput)] == [
        *([None] * 3),
        FinishReason.LENGTH,
    ]


def test_a_text_ends_within_a_guess_at_eos() -> None:
    (wanted,) = (each for each in (request(str(at), 5, 200) for at in range(3, 4)))
    expected = whole_text(wanted)
    assert expected[-1] == EOS
    bench = Bench()
    said = bench.run(wanted)["3"]
    assert tokens(said) == expected
    last = said[-1]
    assert isinstance(last, CoreOutput)
    assert last.finish is FinishReason.EOS


def test_nobody_gives_way_for_a_guess() -> None:
    bench = Bench(blocks=4, sequences=2)
    wanted = [request(str(at), PAGE - 1, PAGE + 1, ignore_eos=True) for at in range(2)]
    said = bench.run(*wanted)
    assert [tokens(said[each.id]) for each in wanted] == [whole_text(each) for each in wanted]
    assert sum(each.preempted for each in bench.stats) == 0
    assert bench.guessed > 0


def test_a_failure_behind_a_guess_is_the_next_steps() -> None:
    class Stumbling(PaperSampler):
        calls = 0

        def choose_rows(self, sequences: tuple[Sequence, ...], logits: list[int], rows: Integers) -> Chosen:
            self.calls += 1
            if self.calls % 3 == 0:
                raise RuntimeError("tripped")
            return super().choose_rows(sequences, logits, rows)

    assert tokens(Bench(sampler=Stumbling()).run(LONG[0])["0"]) == whole_text(LONG[0])


@pytest.mark.parametrize("error", [RuntimeError("one token at a time"), MemoryError()])
@pytest.mark.parametrize("texts", [1, 2])
def test_what_fails_with_a_guess_is_computed_without(
    texts: int, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Single(PaperRunner):
        def run(self, pieces: Any, *, tokens_only: bool = False) -> list[int]:
            if len(pieces.ids) > len(pieces.decodes) and not pieces.prompts:
                raise error
            return super().run(pieces, tokens_only=tokens_only)

    wanted, bench = LONG[:texts], Bench(runner=Single())
    said = bench.run(*wanted)
    assert [tokens(said[each.id]) for each in wanted] == [whole_text(each) for each in wanted]
    assert "A step with guesses failed, and is computed again without" in caplog.text
    assert sum(each.failed for each in bench.stats) == 1  # nobody guesses at once again


@pytest.mark.parametrize("errs", [0, 2, 3])
def test_what_was_guessed_wrongly_is_found_in_no_cache(errs: int) -> None:
    bench, first = Bench(errs), request("4", 5, 60, ignore_eos=True)
    bench.run(first)
    for known in range(1, 60):
        prompt = (*first.prompt_ids, *whole_text(first)[:known])
        again = replace(request("4", 5, 3, ignore_eos=True), prompt_ids=prompt)
        said = bench.run(again)["4"]
        assert tokens(said) == whole_text(again)
    assert isinstance(said[0], CoreOutput)
    assert said[0].cached_tokens > 2 * PAGE


def test_a_block_is_taken_for_guesses_only_where_one_is_left_for_each_text() -> None:
    bench = Bench(blocks=4, sequences=2)
    for at in range(2):
        bench.stepper.add(request(str(at), PAGE - 1, PAGE + 1, ignore_eos=True))
    bench.stepper.step()
    one, other = bench.scheduler.running
    assert bench.scheduler.room_for(one, 9) == 0  # its page is full, and each may soon need one of two
    bench.stepper.abort(other.id)
    assert bench.scheduler.room_for(one, 9) == 9
    assert len(one.blocks) == 2


def test_a_row_that_is_no_number_fails_its_text_alone() -> None:
    class Odd(PaperSampler):
        def choose_rows(self, sequences: tuple[Sequence, ...], logits: list[int], rows: Integers) -> Chosen:
            chosen = super().choose_rows(sequences, logits, rows)
            odd = {each: "broken" for each in sequences if each.id == "1" and each.generated > 6}
            return Chosen(chosen.tokens, chosen.logprobs, failures=odd)

    said = Bench(sampler=Odd()).run(*LONG[:2])
    assert tokens(said["0"]) == whole_text(LONG[0])
    assert tokens(said["1"]) == whole_text(LONG[1])[:7]
    assert said["1"][-1] == CoreFailure("1", "broken", own=False)


def test_a_text_that_repeats_itself_is_guessed_by_what_it_said() -> None:
    class Parrot(PaperSampler):
        """Says the numbers up to six, over and over."""

        def choose(self, work: Any, logits: list[int] | None) -> Chosen:
            chosen = super().choose(work, logits)
            return Chosen(self._next(work.sequences), chosen.logprobs, None, chosen.prompts)

        def choose_rows(self, sequences: tuple[Sequence, ...], logits: list[int], rows: Integers) -> Chosen:
            return Chosen(self._next(sequences), [-0.5] * len(sequences))

        def _next(self, sequences: tuple[Sequence, ...]) -> Integers:
            return np.array([each.generated % 6 for each in sequences], dtype=np.int64)

    scheduler = make_scheduler(50, Limits(tokens=32, sequences=8, logit_rows=64))
    sampler = Parrot()
    guesses: Speculation[list[int]] = Speculation(scheduler, sampler, MOST, MOST_TOKENS)
    masks = ManualPool(VOCABULARY, (EOS,))
    stepper = Stepper(scheduler, PaperRunner(), sampler, (EOS,), masks, guesses)
    stepper.add(request("1", 5, 60, ignore_eos=True))
    said: list[int] = []
    steps = 0
    while not stepper.idle:
        said += tokens(list(stepper.step().outputs))
        steps += 1
    assert said == [at % 6 for at in range(60)]
    assert steps <= 1 + 8 + -(-(60 - 9) // (MOST + 1))
