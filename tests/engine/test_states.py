"""Texts of layers that keep a state begin where others were: states are kept where beginnings end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from inference.kv_cache.blocks import PAGE
from tests.engine.cores import Heard, Session, config, request
from tests.engine.models import VOCABULARY, generate, prompts, save_model

FAMILIES = ["qwen3_5_text", "lfm2", "mamba2"]
LONG, OTHER, NEXT = prompts(200, 100, 30)
TOKENS = 24
NEVER = VOCABULARY + 1
WHOLE_BLOCKS = (len(LONG) - 1) // PAGE * PAGE


@pytest.fixture(scope="module", params=FAMILIES)
def toy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, PreTrainedModel]:
    directory = tmp_path_factory.mktemp(request.param)
    return directory, save_model(request.param, directory)


@pytest.fixture(scope="module", params=["host", "device"])
def on_device(request: pytest.FixtureRequest) -> bool:
    """Return whether it is the path that GPUs take, which is a step ahead."""
    return bool(request.param == "device")


def begin(directory: Path, *, on_device: bool, **settings: int) -> Session:
    settings = {"max_batch_prefill_tokens": 40, **settings}
    found = config(directory, max_batch_size=4, max_total_tokens=256)
    # On a GPU it would be computed in 16 bits if nobody said otherwise
    model = replace(found.model, device="auto" if on_device else "cpu", dtype="float32")
    found = replace(found, model=model, **settings)  # type: ignore[arg-type]
    return Session(found, device_path=on_device)


@pytest.fixture(scope="module", params=[40, 256], ids=["in steps", "in one step"])
def session(
    toy: tuple[Path, PreTrainedModel], on_device: bool, request: pytest.FixtureRequest
) -> Iterator[Session]:
    session = begin(toy[0], on_device=on_device, max_batch_prefill_tokens=request.param)
    yield session
    session.close()


def ask(session: Session, *texts: tuple[int, ...], salt: str) -> Heard:
    return session.run(
        request(str(at), text, tokens=TOKENS, ignore_eos=True, salt=salt) for at, text in enumerate(texts)
    )


def cached(heard: Heard) -> list[int]:
    return [heard.outputs[str(at)][0].cached_tokens for at in range(len(heard.outputs))]


@cache  # either path is asked for the same texts
def oracle(toy: tuple[Path, PreTrainedModel], text: tuple[int, ...]) -> list[int]:
    return generate(toy[1], text, TOKENS, eos_token_id=NEVER)


def test_long_prompt_that_comes_again_is_read_from_its_last_block_on(
    toy: tuple[Path, PreTrainedModel], session: Session
) -> None:
    for expected in (0, WHOLE_BLOCKS):
        heard = ask(session, LONG, salt="again")
        assert cached(heard) == [expected]
        assert heard.tokens("0") == oracle(toy, LONG)


def test_conversation_goes_on_where_its_last_answer_ended(
    toy: tuple[Path, PreTrainedModel], session: Session
) -> None:
    first = ask(session, OTHER, salt="talk")
    text = (*OTHER, *first.tokens("0"), *NEXT)
    heard = ask(session, text, salt="talk")
    assert cached(heard) == [(len(OTHER) + TOKENS - 1) // PAGE * PAGE]  # the last token wasn't read
    assert heard.tokens("0") == oracle(toy, text)


def test_texts_that_begin_alike_and_come_at_once_wait_for_the_first_one(
    toy: tuple[Path, PreTrainedModel], session: Session
) -> None:
    texts = [(*LONG[:120], *tail) for tail in prompts(20, 21, 22, 23)]
    texts = [(*LONG[:120], at + 5, *text[121:]) for at, text in enumerate(texts)]  # the first differs, too
    heard = ask(session, *texts, salt="at once")
    assert cached(heard) == [0, *[120 // PAGE * PAGE] * 3]
    for at, text in enumerate(texts):
        assert heard.tokens(str(at)) == oracle(toy, text)


def test_where_a_second_text_leaves_the_first_the_third_begins(
    toy: tuple[Path, PreTrainedModel], session: Session
) -> None:
    for at, expected in enumerate((0, 0, 64)):
        text = (*LONG[:70], at + 5, *NEXT)
        heard = ask(session, text, salt="branches")
        assert cached(heard) == [expected]
        assert heard.tokens("0") == oracle(toy, text)


def test_salts_share_nothing(session: Session) -> None:
    ask(session, LONG, salt="mine")
    assert cached(ask(session, LONG, salt="yours")) == [0]


def test_without_a_prefix_cache_nothing_is_kept(toy: tuple[Path, PreTrainedModel], on_device: bool) -> None:
    session = begin(toy[0], on_device=on_device, prefix_caching=False)
    for _ in range(2):
        heard = ask(session, LONG, salt="")
        assert cached(heard) == [0]
        assert heard.tokens("0") == oracle(toy, LONG)
    session.close()


def test_states_and_texts_hold_among_many_that_branch_and_give_way(
    toy: tuple[Path, PreTrainedModel], on_device: bool
) -> None:
    """With places for few of the states, and blocks for few of the texts."""
    session = begin(toy[0], on_device=on_device, max_batch_total_tokens=400)
    generator = random.Random(0)
    texts: list[tuple[int, ...]] = [LONG, OTHER]
    expected = {text: oracle(toy, text) for text in texts}
    preempted = found = 0
    for turn in range(12):
        asked = []
        for _ in range(4):
            text = generator.choice(texts)
            cut = generator.randrange(1, len(text) + 1)
            whole = (*text, *expected[text])
            new = generator.choice([text, (*text[:cut], *NEXT[: generator.randrange(1, 9)]), (*whole, 9, 8)])
            asked.append(new[:220])
        for text in asked:
            expected.setdefault(text, oracle(toy, text))
        heard = ask(session, *asked, salt="")
        for at, text in enumerate(asked):
            assert heard.tokens(str(at)) == expected[text], (turn, at)
        preempted += sum(stats.preempted for stats in heard.stats)
        found += sum(stats.cached_tokens for stats in heard.stats)
        texts += [each for each in asked if len(each) < 180]
    assert preempted > 0
    assert found > 0
    session.close()
