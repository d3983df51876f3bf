"""Tokens guessed ahead: fewer steps, the same texts; and where nothing is guessed, it is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.config import EngineConfig, ModelConfig
from inference.grammar.masks import MaskPool
from inference.types import LogprobsMode, Sampling
from tests.engine.cores import SECONDS, Session, best, config, request
from tests.engine.grammars import compiled, text_of
from tests.engine.models import save_model

ROWS = {
    "type": "array",
    "minItems": 6,
    "maxItems": 6,
    "items": {
        "type": "object",
        "properties": {"first_name": {"enum": ["Ada", "Alan"]}, "amount": {"enum": [1, 2]}},
        "required": ["first_name", "amount"],
        "additionalProperties": False,
    },
}
PROMPT = tuple(3 + at % 7 for at in range(40))
SAID = "No tokens are guessed ahead"
# Six tokens by turns: each falls behind the others by its penalty, and all by as much
REPEATS = Sampling(logit_bias=tuple((3 + at, 2000.0 - 20 * at) for at in range(6)), frequency_penalty=120.0)


def test_a_text_that_repeats_itself_takes_fewer_steps(directory: Path) -> None:
    asked = request("r", PROMPT, tokens=60, sampling=REPEATS, top=2, ignore_eos=True)
    said, steps = [], []
    for guesses in (0, 4):
        session = Session(config(directory, speculate=guesses))
        heard = session.run([asked])
        session.close()
        said.append([(each.token_id, each.top, each.finish) for each in heard.outputs["r"]])
        steps.append(len(heard.stats))
        assert sum(each.confirmed for each in heard.stats) == 60 - len(heard.stats)
        assert bool(guesses) == any(each.guessed for each in heard.stats)
    assert said[0] == said[1]
    assert steps[0] == 60
    assert steps[1] < 24


def test_texts_of_a_model_that_attends_by_itself_take_fewer_steps(tmp_path: Path) -> None:
    save_model("xglm", tmp_path)
    asked = request("r", PROMPT, tokens=60, sampling=REPEATS, ignore_eos=True)
    said, steps = [], []
    for guesses in (0, 4):
        session = Session(config(tmp_path, speculate=guesses))
        assert session.level == "batched"
        heard = session.run([asked])
        session.close()
        said.append(heard.tokens("r"))
        steps.append(len(heard.stats))
    assert said[0] == said[1]
    assert steps[0] == 60
    assert steps[1] < 24


def test_a_step_has_no_more_tokens_than_it_may(directory: Path) -> None:
    session = Session(config(directory, speculate=7, max_batch_prefill_tokens=4, max_batch_size=2))
    heard = session.run([request("r", PROMPT, tokens=60, sampling=REPEATS, ignore_eos=True)])
    session.close()
    assert max(each.guessed + each.decode_sequences for each in heard.stats) == 4


@pytest.mark.parametrize("mode", [LogprobsMode.NONE, LogprobsMode.RAW, LogprobsMode.PROCESSED])
def test_texts_that_say_what_the_prompt_says_are_guessed_by_it(directory: Path, mode: LogprobsMode) -> None:
    """Each text is made the prompt of the next request, which says it again: all of it can be guessed."""
    plain, guessing = (Session(config(directory, speculate=guesses)) for guesses in (0, 6))
    asked = [
        request(str(at), PROMPT[at:], tokens=30, sampling=sampling, logprobs=mode, ignore_eos=True)
        for at, sampling in enumerate((Sampling(), Sampling(sample=True, seed=5, top_k=3), Sampling()))
    ]
    expected, heard = plain.run(asked), guessing.run(asked)
    for each in asked:
        assert heard.tokens(each.id) == expected.tokens(each.id)
        assert [o.logprob for o in heard.outputs[each.id]] == pytest.approx(
            [o.logprob for o in expected.outputs[each.id]], abs=1e-4
        ) or mode is LogprobsMode.NONE
    plain.close()
    guessing.close()


def test_objects_of_a_schema_are_guessed_by_those_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = MaskPool.wait  # for longer than a busy machine takes
    monkeypatch.setattr(MaskPool, "wait", lambda pool, guides: wait(pool, guides, SECONDS))
    monkeypatch.setattr("inference.engine.speculation.GRACE_SECONDS", SECONDS)
    said, steps = [], []
    for guesses in (0, 4):
        model = EngineConfig(model=ModelConfig(), threads=1, separate_process=False, speculate=guesses)
        session = Session(model)
        asked = [request(str(at), (30 + at, 7, 9), tokens=400, grammar=compiled(ROWS)) for at in range(2)]
        heard = session.run(asked)
        session.close()
        said.append([heard.tokens(each.id) for each in asked])
        steps.append(len(heard.stats))
    assert said[0] == said[1]
    assert [len(json.loads(text_of(text[:-1]))) for text in said[1]] == [6, 6]
    assert steps[1] < 0.7 * steps[0]


@pytest.mark.parametrize(
    ("family", "levels"),
    [
        ("roformer", ["sequential", "sequential"]),
        ("qwen3_next", ["fused", "paged+merged"]),
    ],
)
def test_what_can_take_nothing_back_says_that_it_guesses_nothing(
    family: str, levels: list[str], tmp_path: Path
) -> None:
    save_model(family, tmp_path)
    session = Session(config(tmp_path, speculate=3))
    assert any(SAID in line for line in session.progress)
    assert session.level == best(*levels)
    heard = session.run([request("r", PROMPT, tokens=20, ignore_eos=True)])
    assert len(heard.tokens("r")) == 20
    assert all(each.guessed == 0 for each in heard.stats)
    session.close()


def test_the_device_path_says_that_it_guesses_nothing(directory: Path) -> None:
    session = Session(config(directory, speculate=3), device_path=True)
    assert any(SAID in line for line in session.progress)
    heard = session.run([request("r", PROMPT, tokens=20, ignore_eos=True)])
    assert len(heard.tokens("r")) == 20
    session.close()
