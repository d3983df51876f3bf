"""Steps by a runner that knows no more than the likeliest tokens, where nobody asks for more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from inference.engine.step import Stepper  # noqa: E402
from inference.sampling.rows import Statistics, statistics  # noqa: E402
from inference.sampling.sampler import TorchSampler  # noqa: E402
from inference.scheduling.scheduler import Limits  # noqa: E402
from inference.sequences.state import Pieces, Sequence  # noqa: E402
from inference.types import CoreFailure, CoreOutput, CoreRequest, LogprobsMode, Sampling  # noqa: E402
from tests.unit.inference.faulty_paper import Fault, Faults, FaultyRunner, Where  # noqa: E402
from tests.unit.inference.paper_grammar import ManualPool, PaperGrammar  # noqa: E402
from tests.unit.inference.paper_model import (  # noqa: E402
    EOS,
    VOCABULARY,
    PaperRunner,
    make_scheduler,
    pick,
    request,
    whole_text,
)

RULE = PaperGrammar(lambda text: {10 + len(text), 30} if len(text) < 6 else {EOS}, EOS)


class Sieve(PaperRunner):
    """Gives logits that mean nothing, and right statistics of them, in steps that ask for no more."""

    def __init__(self) -> None:
        super().__init__()
        self.sieved: list[tuple[Sequence, ...]] = []  # the sequences of those steps
        self.others = 0
        self._found: Statistics | None = None

    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Any:
        """Return logits (rows, vocabulary) whose best is the paper model's token."""
        best = [pick(value, range(VOCABULARY), hides_eos=False) for value in super().run(pieces)]
        self._found = None
        if not tokens_only:
            self.others += 1
            return 3 * torch.nn.functional.one_hot(torch.tensor(best, dtype=torch.long), VOCABULARY).float()
        self.sieved.append(pieces.decodes)
        scores = np.full(len(best), 3.0)
        self._found = Statistics(np.array(best, dtype=np.int64), scores, scores)
        return torch.full((len(best), VOCABULARY), torch.nan)

    def statistics(self, logits: Tensor) -> Statistics:
        """Return the statistics of what `run` returned."""
        return statistics(logits) if self._found is None else self._found


class Bench:
    """A stepper with the engine's own sampler over such a runner, and what it said."""

    def __init__(self, faults: Faults | None = None, limits: tuple[int, int] = (64, 8)) -> None:
        tokens, sequences = limits
        self.sieve = Sieve()
        self.again = 0  # steps that computed a part of one that had failed
        self.masks = ManualPool(VOCABULARY, (EOS,))
        self.stepper: Stepper[Tensor] = Stepper(
            make_scheduler(60, Limits(tokens=tokens, sequences=sequences, logit_rows=64)),
            FaultyRunner(self.sieve, faults or Faults()),
            TorchSampler(self.masks.endings, find=self.sieve.statistics),
            (EOS,),
            self.masks,
        )

    def run(self, *wanted: CoreRequest) -> dict[str, list[CoreOutput | CoreFailure]]:
        """Return what is said to requests, each of which comes a step after the one before it."""
        said: dict[str, list[CoreOutput | CoreFailure]] = {each.id: [] for each in wanted}
        coming = list(wanted)
        while coming or not self.stepper.idle:
            if coming:
                self.stepper.add(coming.pop(0))
            if self.masks.asked and (self.stepper.stuck or len(self.sieve.steps) % 3 == 0):
                self.masks.fill()
            before = len(self.sieve.sieved)
            frame = self.stepper.step()
            if frame.stats is not None and frame.stats.again:
                self.again += 1
                assert len(self.sieve.sieved) == before
            for output in frame.outputs:
                said[output.id].append(output)
        assert self.stepper.check_idle() == ()
        return said


def untold(id: str, length: int, tokens: int, **members: Any) -> CoreRequest:
    return replace(request(id, length, tokens, **members), logprobs=LogprobsMode.NONE)


def texts(said: dict[str, list[CoreOutput | CoreFailure]]) -> dict[str, list[int]]:
    return {
        id: [output.token_id for output in outputs if isinstance(output, CoreOutput)]
        for id, outputs in said.items()
    }


def expected(*wanted: CoreRequest) -> dict[str, list[int]]:
    return {each.id: whole_text(each) for each in wanted}


def test_texts_are_right_though_the_logits_mean_nothing() -> None:
    wanted = [untold(str(at), 9 + at, 30, ignore_eos=bool(at % 2)) for at in range(6)]
    bench = Bench()
    said = bench.run(*wanted)
    assert texts(said) == expected(*wanted)
    assert len(bench.sieve.sieved) > 20
    assert bench.sieve.others == len(wanted)  # the steps in which a prompt ends


def test_pieces_of_a_long_prompt_stand_beside_them() -> None:
    wanted = [untold("0", 5, 40, ignore_eos=True), untold("1", 200, 5, ignore_eos=True)]
    bench = Bench(limits=(24, 8))
    assert texts(bench.run(*wanted)) == expected(*wanted)
    beside = [sizes for sizes in bench.sieve.steps if len(sizes) == 2 and max(sizes) > 1]
    assert len(beside) > 5
    assert bench.sieve.others == 2


def test_whoever_is_told_log_probabilities_is_told_the_right_ones() -> None:
    told = replace(request("1", 8, 12, ignore_eos=True), logprobs=LogprobsMode.RAW)
    wanted = [untold("0", 5, 40, ignore_eos=True), told]
    bench = Bench()
    said = bench.run(*wanted)
    assert texts(said) == expected(*wanted)
    one = float(torch.nn.functional.one_hot(torch.tensor(3), VOCABULARY).mul(3.0).log_softmax(0).max())
    logprobs = [output.logprob for output in said["1"] if isinstance(output, CoreOutput)]
    assert logprobs == pytest.approx([one] * 12)
    assert not [crowd for crowd in bench.sieve.sieved if any(each.id == "1" for each in crowd)]
    assert len(bench.sieve.sieved) > 20


@pytest.mark.parametrize(
    "change", [{"min_new_tokens": 3}, {"prompt_logprobs": True}, {"sampling": Sampling(sample=True, seed=1)}]
)
def test_whoever_asks_for_more_is_in_no_such_step(change: dict[str, Any]) -> None:
    asking = replace(request("1", 40, 12, ignore_eos=True), **change)
    wanted = [untold("0", 5, 40, ignore_eos=True), asking]
    bench = Bench()
    said = bench.run(*wanted)
    assert texts(said)["0"] == whole_text(wanted[0])
    assert len(said["1"]) == 12
    assert not [output for output in said["1"] if isinstance(output, CoreFailure)]
    assert not [crowd for crowd in bench.sieve.sieved if any(each.id == "1" for each in crowd)]


def test_no_step_is_such_a_one_while_a_grammar_is_about() -> None:
    guided = replace(request("1", 8, 12, grammar=RULE), logprobs=LogprobsMode.NONE)
    bench = Bench()
    held: list[bool] = []
    run = bench.sieve.run

    def noting(pieces: Pieces, *, tokens_only: bool = False) -> Any:
        held.append(tokens_only and bool(bench.stepper._guided))
        return run(pieces, tokens_only=tokens_only)

    bench.sieve.run = noting  # type: ignore[method-assign]
    said = bench.run(untold("0", 5, 40, ignore_eos=True), guided)
    assert texts(said)["0"] == whole_text(untold("0", 5, 40, ignore_eos=True))
    assert len(texts(said)["1"]) == 7
    assert texts(said)["1"][-1] == EOS
    assert not any(held)
    assert len(held) > 20
    assert bench.sieve.sieved  # once it had ended


@pytest.mark.parametrize("where", [Where.RUNNER, Where.RUNNER_SAYS_WHO])
@pytest.mark.parametrize("generated", [0, 1, 6])
def test_parts_of_a_step_that_failed_give_the_right_texts(where: Where, generated: int) -> None:
    wanted = [untold(str(at), 9, 20, ignore_eos=True) for at in range(6)]
    bench = Bench(Faults({"2": Fault(where, generated)}))
    said = bench.run(*wanted)
    assert isinstance(said.pop("2")[-1], CoreFailure)
    assert texts(said) == expected(*(each for each in wanted if each.id != "2"))
    assert bench.sieve.sieved
    assert bench.again or where is Where.RUNNER_SAYS_WHO or generated == 0
