"""Greedy text equals transformers' own `generate`, token for token, for many families of models.

Each family is loaded once, with a cache that holds little more than one of the longest texts, and
runs its prompts alone, in batches, in pieces, preempted, and from the prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from inference.kv_cache.blocks import PAGE
from tests.engine.cores import Heard, Session, config, request
from tests.engine.models import FAMILIES, VOCABULARY, generate, prompts, save_model

PROMPTS = prompts(15, 17, 40, 14, 1)
GROWING = (PROMPTS[0], PROMPTS[3], *prompts(13))  # a block each, which will be three
SHARED = (*PROMPTS[2][:20], *prompts(11)[0])  # begins as another prompt does: one block is the same
TOKENS = 24
STEP_TOKENS = 16  # longer prompts are computed in pieces
CACHE_TOKENS = 112
WHOLE = {"sequential", "uncached"}  # levels that compute prompts whole, and share nothing
# Of layers that keep a state: where others begin alike, one is kept from the second time on
STATEFUL = set(
    "qwen3_next qwen3_5_text olmo_hybrid lfm2 mamba mamba2 jamba granitemoehybrid nemotron_h "
    "falcon_h1".split()
)


@dataclass(frozen=True, slots=True)
class Family:
    """A family's toy, saved in a directory."""

    name: str
    directory: Path
    model: PreTrainedModel


@pytest.fixture(scope="module", params=[(name, at % 3) for at, name in enumerate(FAMILIES)], ids=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    name, seed = request.param
    directory = tmp_path_factory.mktemp(name)
    return Family(name, directory, save_model(name, directory, seed))


@pytest.fixture(scope="module")
def oracle(family: Family) -> dict[tuple[int, ...], list[int]]:
    never = VOCABULARY + 1
    return {
        text: generate(family.model, text, TOKENS, eos_token_id=never)
        for text in (*PROMPTS, *GROWING, SHARED)
    }


@pytest.fixture(scope="module")
def session(family: Family) -> Iterator[Session]:
    session = Session(
        config(
            family.directory,
            max_batch_prefill_tokens=STEP_TOKENS,
            max_batch_size=8,
            max_batch_total_tokens=CACHE_TOKENS,
            max_total_tokens=80,
        )
    )
    yield session
    session.close()


def run(session: Session, *texts: tuple[int, ...], salt: str) -> Heard:
    """Return what is said to prompts that come at once, and find nothing that others left in the cache."""
    return session.run(
        request(str(at), text, tokens=TOKENS, ignore_eos=True, salt=salt) for at, text in enumerate(texts)
    )


def said(heard: Heard) -> list[list[int]]:
    return [heard.tokens(str(at)) for at in range(len(heard.outputs))]


def longest_step(heard: Heard) -> int:
    return max(stats.prefill_tokens + stats.decode_sequences for stats in heard.stats)


Oracle = dict[tuple[int, ...], list[int]]


def test_oracle_says_different_things(oracle: Oracle) -> None:
    assert len({token for tokens in oracle.values() for token in tokens}) > 10


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_alone(session: Session, oracle: Oracle, index: int) -> None:
    assert said(run(session, PROMPTS[index], salt=f"alone {index}")) == [oracle[PROMPTS[index]]]


def test_in_one_batch(session: Session, oracle: Oracle) -> None:
    texts = PROMPTS[:2]
    heard = run(session, *texts, salt="batch")
    assert max(stats.running for stats in heard.stats) == 2
    assert said(heard) == [oracle[text] for text in texts]


def test_in_one_batch_with_prompts_in_pieces(session: Session, oracle: Oracle) -> None:
    texts = (PROMPTS[0], PROMPTS[2])
    heard = run(session, *texts, salt="pieces")
    assert (longest_step(heard) <= STEP_TOKENS) is (session.level not in WHOLE)
    assert said(heard) == [oracle[text] for text in texts]


def test_preempted(session: Session, oracle: Oracle) -> None:
    heard = run(session, *GROWING, salt="preempted")
    assert sum(stats.preempted for stats in heard.stats) > 0
    assert said(heard) == [oracle[text] for text in GROWING]


def test_from_the_prefix_cache(family: Family, session: Session, oracle: Oracle) -> None:
    stateful = family.name in STATEFUL
    run(session, PROMPTS[2], salt="prefix")
    for text, shared in ((PROMPTS[2], 2 * PAGE), (SHARED, PAGE)):
        if stateful:
            assert run(session, text, salt="prefix").outputs["0"][0].cached_tokens == 0
        heard = run(session, text, salt="prefix")
        assert said(heard) == [oracle[text]]
        cached = 0 if session.level in WHOLE else shared
        assert heard.outputs["0"][0].cached_tokens == cached
        assert sum(stats.cached_tokens for stats in heard.stats) == cached
