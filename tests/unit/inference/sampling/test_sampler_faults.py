"""A choice that raises: it is the failure of the rows that it raises for, and of no other."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from inference.sampling.sampler import Columns  # noqa: E402
from inference.sampling.warpers import warp  # noqa: E402
from inference.sequences.faults import RequestFault  # noqa: E402
from inference.sequences.state import Chunk  # noqa: E402
from inference.types import Sampling  # noqa: E402
from tests.unit.inference.sampled import choose, run, sequence  # noqa: E402

BAD = 0.25  # the temperature of rows whose choice raises
LOGITS = torch.randn(6, 40, generator=torch.Generator().manual_seed(3))
SAMPLINGS = [
    Sampling(),
    Sampling(sample=True, seed=1, top_p=0.8),
    Sampling(sample=True, seed=2, temperature=BAD),
    Sampling(sample=True, seed=3, temperature=1.5),
    Sampling(temperature=BAD),
    Sampling(repetition_penalty=1.3, seed=5),
]


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> type[Exception]:
    """Have the bad rows raise."""

    def stages(logits: Tensor, samplings: list[Sampling], *rest: Any) -> Tensor:
        if any(sampling.temperature == BAD for sampling in samplings):
            raise FloatingPointError("of a stage")
        return warp(logits, samplings, *rest)

    monkeypatch.setattr("inference.sampling.sampler.warp", stages)
    return FloatingPointError


def test_rows_that_raise_fail_alone_and_the_others_get_what_they_would_have(
    faulty: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    rows = [sequence(sampling, top=at) for at, sampling in enumerate(SAMPLINGS)]
    results = choose(LOGITS, *rows)
    bad = [at for at, sampling in enumerate(SAMPLINGS) if sampling.temperature == BAD]
    for at in bad:
        failure = results[at]
        assert isinstance(failure, str)
        assert faulty.__name__ in failure
        assert "of a stage" not in failure
    good = [at for at in range(len(rows)) if at not in bad]
    assert [results[at] for at in good] == choose(LOGITS[good], *(rows[at] for at in good))
    assert caplog.text.count("No token can be chosen") == len(bad)


def test_choice_that_raises_for_every_row_is_a_failure_of_the_step(faulty: type[Exception]) -> None:
    with pytest.raises(faulty):
        choose(LOGITS[:2], *(sequence(Sampling(temperature=BAD)) for _ in range(2)))


@pytest.mark.parametrize("calls", [1, 3])
def test_want_of_memory_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    seen: list[int] = []

    def stages(logits: Tensor, *rest: Any) -> Tensor:
        seen.append(len(logits))
        if len(seen) == 1 < calls:
            raise FloatingPointError("of a stage")
        if len(seen) == calls:
            raise MemoryError("none left")
        return warp(logits, *rest)

    monkeypatch.setattr("inference.sampling.sampler.warp", stages)
    with pytest.raises(MemoryError):
        choose(LOGITS, *map(sequence, SAMPLINGS))
    assert len(seen) == calls


def test_prompt_whose_log_probabilities_raise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = (sequence(prompt=tuple(range(5)), prompt_logprobs=True, top=top) for top in (0, 2))

    def tops(*_: Any) -> list[Any]:
        raise FloatingPointError("of the best")

    monkeypatch.setattr("inference.sampling.sampler.of_prompt", tops)
    with pytest.raises(RequestFault) as raised:
        run(LOGITS[:4].repeat(2, 1), Chunk(good, 0, 4), Chunk(bad, 0, 4))
    assert raised.value.sequence is bad
    assert isinstance(raised.value.__cause__, FloatingPointError)


def test_failures_keep_their_rows_when_they_are_put_among_others() -> None:
    some, all_of_them = Columns(2), Columns(4)
    some.failures[1] = "why"
    all_of_them.put(torch.tensor([3, 0]).numpy(), some)
    assert all_of_them.failures == {0: "why"}
