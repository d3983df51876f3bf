"""The path that GPUs take: on the CPU with torch's operations, the same code but for kernels and capture.

Where there is a GPU the same tests run on it, by Triton's kernels and graphs, in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.config import EngineConfig, ModelConfig
from inference.types import CoreRequest, LogprobsMode, Sampling
from tests.engine.cores import Heard, Session, request
from tests.engine.cores import config as plain_config
from tests.engine.models import generate, make_model, prompts, save_model

FAMILIES = ("llama", "qwen2", "gemma2", "gpt2")
PROMPTS = prompts(10, 40, 3, 70, 25, 18)
DRAWN = Sampling(sample=True, temperature=0.8, seed=2**63 + 5)
FILTERED = Sampling(sample=True, temperature=0.8, top_p=0.9, seed=7)
PENALISED = Sampling(sample=True, top_k=40, min_p=0.01, repetition_penalty=1.3, frequency_penalty=0.2, seed=8)


def config(directory: Path, *, device: str = "auto", **settings: Any) -> EngineConfig:
    model = ModelConfig(model_id=str(directory), dtype="float32", device=device)
    return replace(plain_config(directory, **settings), model=model)


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / request.param
    save_model(request.param, directory)
    return directory


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    save_model("llama", directory)
    return directory


@pytest.fixture
def session(directory: Path) -> Iterator[Session]:
    session = Session(config(directory, max_batch_size=4), device_path=True)
    yield session
    session.close()


def said(heard: Heard, id: str) -> list[tuple[int, float]]:
    return [(output.token_id, output.logprob) for output in heard.outputs[id]]


def test_greedy_text_is_the_models_own_alone_and_in_a_batch(session: Session, directory: Path) -> None:
    model = make_model(directory.name)
    requests = [request(str(at), prompt) for at, prompt in enumerate(PROMPTS)]
    heard = session.run(requests)
    for at, prompt in enumerate(PROMPTS):
        assert heard.tokens(str(at)) == generate(model, prompt, 20)
    alone = session.run([request("again", PROMPTS[1])])
    assert alone.tokens("again") == heard.tokens("1")


def various() -> list[tuple[str, Sampling]]:
    return [("greedy", Sampling()), ("drawn", DRAWN), ("filtered", FILTERED), ("penalised", PENALISED)]


def crowd() -> list[CoreRequest]:
    return [
        request(f"{name}{at}", prompt, sampling=sampling, tokens=40)
        for at, prompt in enumerate(PROMPTS[:4])
        for name, sampling in various()
    ]


def texts(directory: Path, **settings: Any) -> tuple[dict[str, list[tuple[int, float]]], int]:
    """Return what a crowd of requests is told, and how often one of them was preempted."""
    session = Session(config(directory, max_batch_size=8, **settings), device_path=True)
    heard = session.run(crowd())
    session.close()
    return {each.id: said(heard, each.id) for each in crowd()}, sum(each.preempted for each in heard.stats)


@pytest.fixture(scope="module")
def expected(llama: Path) -> dict[str, list[tuple[int, float]]]:
    return texts(llama)[0]


@pytest.mark.parametrize(
    ("settings", "preempts"),
    [
        ({"one_step_ahead": False}, False),
        ({"filter_on_device": False}, False),
        ({"cuda_graphs": (0,)}, False),
        ({"cuda_graphs": (3,)}, False),
        ({"max_batch_total_tokens": 160, "max_total_tokens": 112}, True),
        ({"prefix_caching": False, "max_batch_prefill_tokens": 32}, False),
    ],
    ids=str,
)
def test_texts_are_the_same_whatever_is_switched_off(
    llama: Path, expected: dict[str, list[tuple[int, float]]], settings: dict[str, Any], *, preempts: bool
) -> None:
    found, preempted = texts(llama, **settings)
    for id, text in found.items():
        assert [token for token, _ in text] == [token for token, _ in expected[id]]
        assert [logprob for _, logprob in text] == pytest.approx([each for _, each in expected[id]], abs=1e-5)
    assert bool(preempted) == preempts


def test_greedy_and_filtered_texts_are_those_of_the_cpus_path(llama: Path) -> None:
    def both(*, device_path: bool) -> list[list[int]]:
        device = "auto" if device_path else "cpu"
        session = Session(config(llama, device=device), device_path=device_path)
        heard = session.run(
            [
                request("greedy", PROMPTS[0]),
                request("filtered", PROMPTS[1], sampling=FILTERED),
                request("penalised", PROMPTS[2], sampling=PENALISED),
            ]
        )
        session.close()
        return [heard.tokens("greedy"), heard.tokens("filtered"), heard.tokens("penalised")]

    assert both(device_path=True) == both(device_path=False)


def test_requests_that_want_the_host_and_those_that_dont_go_together(llama: Path) -> None:
    session = Session(config(llama), device_path=True)
    model = make_model("llama")
    expected = generate(model, PROMPTS[0], 20)
    heard = session.run(
        [
            request("plain", PROMPTS[0]),
            request("tops", PROMPTS[0], top=3),
            request("scored", PROMPTS[0], prompt_logprobs=True),
            request("late", PROMPTS[0], min_tokens=2),
            request("processed", PROMPTS[0], sampling=DRAWN, logprobs=LogprobsMode.PROCESSED),
        ]
    )
    session.close()
    for id in ("plain", "tops", "scored"):
        assert heard.tokens(id) == expected
    first = heard.outputs["scored"][0]
    assert first.prompt_logprobs is not None
    assert len(first.prompt_logprobs) == len(PROMPTS[0])
    assert all(len(output.top) >= 3 for output in heard.outputs["tops"])
    raw = [output.logprob for output in heard.outputs["tops"]]
    assert [output.logprob for output in heard.outputs["plain"]] == pytest.approx(raw, abs=1e-4)


def test_seeded_request_draws_the_same_beside_any_others(llama: Path) -> None:
    session = Session(config(llama), device_path=True)
    drawn = request("drawn", PROMPTS[3], sampling=DRAWN, tokens=40)
    alone = session.run([drawn])
    crowd = [request(str(at), prompt, top=at % 2, tokens=30) for at, prompt in enumerate(PROMPTS)]
    beside = session.run([*crowd, drawn])
    session.close()
    assert beside.tokens("drawn") == alone.tokens("drawn")


def test_aborted_request_says_no_more_and_others_go_on(llama: Path) -> None:
    session = Session(config(llama), device_path=True)
    heard = Heard()
    session.submit(request("long", PROMPTS[0], tokens=200, ignore_eos=True))
    session.submit(request("other", PROMPTS[1], ignore_eos=True))
    while "other" not in heard.outputs:
        session.listen(heard)
    session.core.abort("long")
    while not heard.ended("other"):
        session.listen(heard)
    session.close()
    outputs = heard.outputs["long"]
    assert all(output.finish is None for output in outputs)
    assert len(heard.tokens("other")) == 20
