"""A model, or a choice, that raises for one request: it fails alone, and no other number changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.sequences.state import Pieces
from inference.sequences.work import Work
from inference.types import CoreRequest, Sampling
from tests.engine.cores import Heard, Session, config, request
from tests.engine.models import VOCABULARY, generate, prompts, save_model

SIZES = (10, 40, 3, 25)
BAD = "the bad one"
POISON = VOCABULARY - 1
DRAWN = Sampling(sample=True, temperature=0.8, top_p=0.9, seed=5)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    save_model("llama", directory)
    return directory


def good(**settings: Any) -> list[CoreRequest]:
    """Return greedy and drawn requests, in whose prompts there is no poison."""
    clean = [tuple(token % POISON for token in prompt) for prompt in prompts(*SIZES)]
    return [
        request(f"{name}{at}", prompt, sampling=sampling, tokens=25, **settings)
        for at, prompt in enumerate(clean)
        for name, sampling in (("greedy", Sampling()), ("drawn", DRAWN))
    ]


def bad(**settings: Any) -> CoreRequest:
    return request(BAD, (*prompts(20)[0], POISON, 5, 9), tokens=25, ignore_eos=True, **settings)


def same(heard: Heard, other: Heard, wanted: list[CoreRequest]) -> bool:
    """Return whether both say the same of some requests; torch's own products round by the batch."""
    return all(
        heard.tokens(each.id) == other.tokens(each.id)
        and [said.logprob for said in heard.outputs[each.id]]
        == pytest.approx([said.logprob for said in other.outputs[each.id]], abs=1e-5)
        for each in wanted
    )


def comes(pieces: Pieces, generated: int) -> bool:
    """Return whether pieces are to give the bad one its token after so many."""
    return any(
        chunk.sequence.id == BAD and chunk.stop == chunk.sequence.prompt_length + generated
        for chunk in pieces.chunks
    )


def broken(run: Callable[..., Any], generated: int, *, after: bool) -> Callable[..., Any]:
    """Return a runner's `run` that raises at one token of the bad one; `after` it has computed everything."""

    def faulty(pieces: Pieces, **how: bool) -> Any:
        come = comes(pieces, generated)
        result = run(pieces, **how) if after or not come else None
        if come:
            raise ArithmeticError("a fault of the model's code")
        return result

    return faulty


def check(session: Session, wanted: list[CoreRequest], guilty: CoreRequest, generated: int) -> Heard:
    """Run with the guilty one among the others, whose texts must be what they are without it."""
    expected = session.run(wanted)
    heard = session.run([*wanted[:3], guilty, *wanted[3:]])
    assert set(heard.failures) == {BAD}
    assert BAD in heard.failures[BAD]
    assert len(heard.outputs.get(BAD, [])) == generated
    assert same(heard, expected, wanted)
    assert any(each.failed for each in heard.stats)
    assert sum(each.again for each in heard.stats) <= 8
    assert same(session.run(wanted[:2]), expected, wanted[:2])
    return heard


@pytest.fixture(params=[False, True], ids=["host", "device"])
def session(request: pytest.FixtureRequest, directory: Path) -> Iterator[Session]:
    session = Session(config(directory, max_batch_size=16), device_path=request.param)
    yield session
    session.close()


@pytest.mark.parametrize("generated", [0, 1, 6])
def test_step_that_raises_fails_one_request_and_no_other_number_changes(
    session: Session, generated: int
) -> None:
    runner: Any = session.core._stepper._runner  # type: ignore[union-attr]
    on_host = not session.core._device_path  # what a device has begun goes on there
    runner.run = broken(runner.run, generated, after=on_host)
    check(session, good(), bad(), generated)


@pytest.mark.parametrize("generated", [0, 2])
def test_choice_that_raises_fails_one_request_and_no_other_number_changes(
    session: Session, generated: int
) -> None:
    sampler: Any = session.core._stepper._sampler  # type: ignore[union-attr]
    host = getattr(sampler, "_host", sampler)
    read = host.read

    def faulty(work: Work, logits: Any) -> Any:
        if comes(work.pieces, generated):
            raise ArithmeticError("a fault of the choice")
        return read(work, logits)

    host.read = faulty
    check(session, good(prompt_logprobs=True), bad(prompt_logprobs=True), generated)


@pytest.mark.parametrize("family", ["llama", "xglm", "roformer"])
def test_models_own_code_that_raises_at_a_token_fails_who_brought_it(family: str, tmp_path: Path) -> None:
    model = save_model(family, tmp_path)
    session = Session(config(tmp_path, native_kernels=False, max_batch_size=16))
    assert session.level == {"llama": "paged+merged", "xglm": "batched", "roformer": "sequential"}[family]
    served: Any = session.core._stepper._runner._model  # type: ignore[union-attr]
    seen: list[bool] = []
    last = [each for each in served.modules() if "norm" in type(each).__name__.lower()][-1]

    def look(_: Any, given: tuple[torch.Tensor]) -> None:
        seen[:] = [bool((given[0] == POISON).any())]

    def raise_late(_: Any, given: Any) -> None:  # all layers' caches have been written by then
        if seen[0]:
            raise ArithmeticError("a token that it can't stand")

    served.get_input_embeddings().register_forward_pre_hook(look)
    last.register_forward_pre_hook(raise_late)
    wanted = [
        each for each in good() if POISON not in generate(model, each.prompt_ids, 25) and "greedy" in each.id
    ]
    assert len(wanted) > 2
    heard = check(session, wanted, bad(), 0)
    if family == "xglm":  # where each is computed alone, it is known who fails
        assert sum(each.failed for each in heard.stats) == 1
    for each in wanted:
        assert heard.tokens(each.id) == generate(model, each.prompt_ids, 25)
    session.close()
