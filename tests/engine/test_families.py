"""Greedy text equals transformers' own `generate`, token for token, for many families of models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from tests.engine.cores import Session, config, request
from tests.engine.models import FAMILIES, generate, prompts, save_model

Family = tuple[str, Path, PreTrainedModel]
SEQUENTIAL = {"bloom", "gptj"}
NOTHING_PARALLEL = {"gpt2", "gpt_neox", "gpt_bigcode", "phi3"}  # their files hold merged weights already
PROMPTS = prompts(9, 4, 33, 17, 1)
TOKENS = 24


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    name: str = request.param
    directory = tmp_path_factory.mktemp(name)
    return name, directory, save_model(name, directory)


@pytest.fixture(scope="module")
def oracle(family: Family) -> list[list[int]]:
    return [generate(family[2], prompt, TOKENS) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def session(family: Family) -> Iterator[Session]:
    session = Session(config(family[1], max_batch_prefill_tokens=16, max_batch_size=8))
    yield session
    session.close()


def test_oracle_says_different_things(oracle: list[list[int]]) -> None:
    assert len({token for tokens in oracle for token in tokens}) > 10


def test_level_is_the_best_possible(session: Session, family: Family) -> None:
    name = family[0]
    best = "paged" if name in NOTHING_PARALLEL else "paged+merged"
    assert session.info.level == ("sequential" if name in SEQUENTIAL else best)


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_alone(session: Session, oracle: list[list[int]], index: int) -> None:
    heard = session.run([request("alone", PROMPTS[index], tokens=TOKENS)])
    assert heard.tokens("alone") == oracle[index]


def test_in_one_batch_with_prompts_in_pieces(session: Session, oracle: list[list[int]]) -> None:
    heard = session.run(request(str(i), prompt, tokens=TOKENS) for i, prompt in enumerate(PROMPTS))
    assert [heard.tokens(str(i)) for i in range(len(PROMPTS))] == oracle
    longest_step = max(stats.prefill_tokens + stats.decode_sequences for stats in heard.stats)
    if session.info.level == "sequential":  # whole prompts, as not every model's cache takes pieces
        assert longest_step >= 33
    else:
        assert longest_step <= 16
