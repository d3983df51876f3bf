"""Rows of which nobody asks more than the likeliest token: nothing but their statistics is looked at."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from inference.grammar.masks import Endings  # noqa: E402
from inference.sampling.recipe import Recipe  # noqa: E402
from inference.sampling.rows import Statistics  # noqa: E402
from inference.sampling.sampler import NOT_FINITE, TorchSampler  # noqa: E402
from inference.sequences.state import Chunk, Decodes, Pieces, Sequence, SlotTable, pack  # noqa: E402
from inference.sequences.work import Work  # noqa: E402
from inference.types import LogprobsMode, Sampling  # noqa: E402
from tests.unit.inference.sampled import EOS, PROCESSED, RAW, seat, sequence  # noqa: E402
from tests.unit.inference.sampling.test_sampler import guide  # noqa: E402

NONE = LogprobsMode.NONE
TABLE = SlotTable(8, 8)
ENDINGS = Endings(40, (EOS,))


def pieces_of(*decoding: Sequence, beside: tuple[Chunk, ...] = ()) -> Pieces:
    """Return a step in which some sequences decode, beside pieces of prompts."""
    TABLE.clear()
    decodes = Decodes()
    for each in (*decoding, *(chunk.sequence for chunk in beside)):
        seat(TABLE, each)
    for each in decoding:
        decodes.add(each)
    return pack(TABLE, decodes, beside)


def untouchable() -> Any:
    """Return logits that nothing can be read of."""
    return object()


def finding(tokens: list[int], best: list[float]) -> TorchSampler:
    """Return a sampler over a runner that knows no more than the likeliest tokens."""
    found = Statistics(np.array(tokens), np.array(best), np.array(best))

    def find(logits: Tensor) -> Statistics:
        return found

    return TorchSampler(ENDINGS, find=find)


@pytest.mark.parametrize(
    ("decoding", "expected"),
    [
        ([{}], True),
        ([{}, {"sampling": Sampling(seed=3)}], True),
        ([{"mode": RAW}], False),
        ([{"mode": PROCESSED}], False),
        ([{}, {"mode": RAW}], False),
        ([{"top": 1}], False),
        ([{"min_tokens": 2}], False),
        ([{"guide": guide(1)}], False),
        ([{"sampling": Sampling(sample=True)}], False),
        ([{"sampling": Sampling(temperature=0.5)}], False),
        ([{}, {"sampling": Sampling(repetition_penalty=1.5)}], False),
        ([], False),
    ],
)
def test_only_likeliest_tokens_are_asked_for_if_nobody_asks_for_more(
    decoding: list[dict[str, Any]], expected: bool
) -> None:
    sequences = [sequence(**{"mode": NONE, **each}) for each in decoding]
    sampler, pieces = TorchSampler(ENDINGS), pieces_of(*sequences)
    assert [sampler.tokens_only(pieces) for _ in range(2)] == [expected] * 2
    assert Recipe(tuple(sequences)).asks_nothing is expected


@pytest.mark.parametrize(
    ("stop", "scored", "expected"), [(2, False, True), (4, False, False), (2, True, False), (4, True, False)]
)
def test_piece_of_a_prompt_beside_them_counts_if_it_has_logits(
    stop: int, scored: bool, expected: bool
) -> None:
    prompt = sequence(mode=NONE, prompt=(1, 2, 3, 4), prompt_logprobs=scored)
    pieces = pieces_of(sequence(mode=NONE), beside=(Chunk(prompt, 0, stop),))
    assert TorchSampler(ENDINGS).tokens_only(pieces) is expected
    assert (pieces.sampling is pieces.decodes) is expected or stop < 4


def test_prompt_alone_is_no_such_step() -> None:
    pieces = pieces_of(beside=(Chunk(sequence(mode=NONE, prompt=(1, 2, 3)), 0, 2),))
    assert not TorchSampler(ENDINGS).tokens_only(pieces)


@pytest.mark.parametrize("beside", [False, True])
def test_nothing_of_the_logits_is_read_but_their_statistics(beside: bool) -> None:
    prompt = sequence(mode=RAW, prompt=(1, 2, 3, 4))
    chunks = (Chunk(prompt, 0, 2),) if beside else ()
    pieces = pieces_of(sequence(mode=NONE), sequence(mode=NONE), beside=chunks)
    sampler = finding([7, 5], [3.5, -2.0])
    for _ in range(2):
        assert sampler.tokens_only(pieces)
        chosen = sampler.choose(Work(pieces), untouchable())
        assert chosen.tokens.tolist() == [7, 5]
        assert chosen.logprobs == [0.0, 0.0]
        assert (chosen.top, chosen.prompts, chosen.failures) == (None, {}, {})


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_best_that_is_not_finite_is_its_own_sequences_failure(bad: float) -> None:
    broken = sequence(mode=NONE)
    pieces = pieces_of(sequence(mode=NONE), broken)
    sampler = finding([7, 5], [3.5, bad])
    assert sampler.tokens_only(pieces)
    assert sampler.choose(Work(pieces), untouchable()).failures == {broken: NOT_FINITE}


def test_those_that_come_and_go_are_looked_at_anew() -> None:
    first, second, asking = sequence(mode=NONE), sequence(mode=NONE), sequence(mode=RAW)
    sampler = TorchSampler(ENDINGS)
    crowds = [(first, second), (first, second, asking), (first, second), (asking,), (second,)]
    assert [sampler.tokens_only(pieces_of(*crowd)) for crowd in crowds] == [True, False, True, False, True]


def test_row_that_is_told_nothing_gets_the_token_that_it_gets_in_any_mode() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    shaped = Sampling(sample=True, temperature=2.0, top_k=7, seed=4)
    for sampling in (Sampling(), shaped, Sampling(repetition_penalty=1.5)):
        found = []
        for mode in LogprobsMode:
            work = Work(pieces_of(*(sequence(sampling, mode=mode) for _ in range(5))))
            found.append(TorchSampler(ENDINGS).choose(work, logits).tokens.tolist())
        assert found[0] == found[1] == found[2]


def test_own_scores_of_shaped_rows_are_not_read_for_nobody() -> None:
    def find(logits: Tensor) -> Statistics:
        pytest.fail("the statistics of the model's own scores were asked for")

    work = Work(pieces_of(sequence(Sampling(sample=True), mode=NONE)))
    chosen = TorchSampler(ENDINGS, find=find).choose(work, torch.zeros(1, 40))
    assert not chosen.failures
