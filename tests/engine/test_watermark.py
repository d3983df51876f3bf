"""Texts of the embedded model bear the watermark that they were generated with, and no other do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from inference.config import EngineConfig, ModelConfig
from inference.sampling.watermark import detect
from inference.types import Sampling, Watermark
from tests.engine.cores import Session, request

PROMPT = (5, 80, 300, 41)
SEEDS = range(3)
PROOF = 4.0  # by chance, one text in 30,000 has this z-score


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    session = Session(EngineConfig(model=ModelConfig(), threads=1, max_total_tokens=512))
    yield session
    session.close()


def texts(session: Session, mark: Watermark | None) -> list[list[int]]:
    """Return texts that were generated with a mark, the prompt's last token before each."""
    # A small model is too sure of its words to be moved much: hence the temperature
    samplings = [Sampling(sample=True, temperature=1.5, seed=seed, watermark=mark) for seed in SEEDS]
    requests = [request(f"{mark}-{each.seed}", PROMPT, tokens=150, sampling=each) for each in samplings]
    heard = session.run(replace(each, ignore_eos=True) for each in requests)
    return [[PROMPT[-1], *heard.tokens(each.id)] for each in requests]


def test_marked_texts_are_found_and_others_are_not(session: Session) -> None:
    marked, plain = texts(session, Watermark(gamma=0.25, delta=4.0)), texts(session, None)
    for ids in marked:
        assert detect(ids, gamma=0.25).z_score > PROOF
    for ids in (*plain, *(ids[::-1] for ids in marked)):  # read backwards, the mark is gone
        assert detect(ids, gamma=0.25).z_score < PROOF


def test_a_larger_delta_leaves_more_green_tokens(session: Session) -> None:
    shares = []
    for delta in (0.0, 1.0, 4.0):
        found = [detect(ids, gamma=0.5) for ids in texts(session, Watermark(gamma=0.5, delta=delta))]
        shares.append(sum(each.green_tokens for each in found) / sum(each.scored_tokens for each in found))
    assert shares == sorted(shares)
    assert shares[-1] > shares[0] + 0.2
