"""Requests with filters and penalties on a device: the texts are those of the host."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from inference.engine.ahead import AheadStepper
from inference.gpu.runner import Launched
from inference.gpu.torch_ops import TorchOps
from inference.gpu.wishes import SlotWishes, Wishes
from inference.sampling.sampler import TorchSampler
from inference.sequences.state import Pieces
from inference.types import CoreRequest, LogprobsMode, Sampling
from tests.unit.inference.gpu.runner_bench import Bench, request


def filtered() -> list[CoreRequest]:
    """Return requests that the device chooses for, all with something beyond temperature but one."""
    kinds = [
        Sampling(sample=True, top_p=0.8, seed=1),
        Sampling(sample=True, top_k=5, temperature=1.5, frequency_penalty=1.0, seed=2),
        Sampling(repetition_penalty=3.0),
        Sampling(),
        Sampling(sample=True, min_p=0.05, presence_penalty=2.0, seed=3),
        Sampling(sample=True, repetition_penalty=0.5, temperature=0.7, seed=4),
    ]
    prompts = [tuple((at * 11 + each) % 60 for each in range(3 + 7 * at)) for at in range(6)]
    return [
        replace(request(str(at), prompts[at], 25, sampling=kind), logprobs=list(LogprobsMode)[at % 2])
        for at, kind in enumerate(kinds)
    ]


def said(bench: Bench) -> dict[str, list[tuple[int, float]]]:
    return {id: [(each.token_id, each.logprob) for each in outputs] for id, outputs in bench.said.items()}


@pytest.fixture(scope="module")
def by_host() -> dict[str, list[tuple[int, float]]]:
    bench = Bench(filters=False)
    bench.run(*filtered())
    return said(bench)


def assert_same(bench: Bench, expected: dict[str, list[tuple[int, float]]]) -> None:
    assert not bench.failed
    for id, outputs in said(bench).items():
        assert [token for token, _ in outputs] == [token for token, _ in expected[id]]
        assert [logprob for _, logprob in outputs] == pytest.approx(
            [each for _, each in expected[id]], abs=2e-5
        )


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("sizes", [None, (), (3,)])
@pytest.mark.parametrize("tokens", [64, 9])
def test_filters_and_penalties_choose_the_same_on_the_device_and_by_the_host(
    by_host: dict[str, list[tuple[int, float]]],
    monkeypatch: pytest.MonkeyPatch,
    sizes: tuple[int, ...] | None,
    tokens: int,
    *,
    ahead: bool,
) -> None:
    bench = Bench(sizes=sizes, ahead=ahead, tokens=tokens)
    monkeypatch.setattr(TorchSampler, "pick", lambda *_: pytest.fail("the host was asked"))
    bench.run(*filtered())
    assert_same(bench, by_host)


def test_filters_and_penalties_go_on_as_before_after_a_preemption(
    by_host: dict[str, list[tuple[int, float]]],
) -> None:
    bench = Bench(blocks=6)
    bench.run(*filtered())
    assert bench.preempted
    assert_same(bench, by_host)


@pytest.mark.parametrize("at", [1, 2, 5, 20])
def test_device_that_has_no_memory_to_filter_changes_no_text(
    by_host: dict[str, list[tuple[int, float]]], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    bench, calls = Bench(), 0
    shape = TorchOps.shape

    def short(ops: TorchOps, logits: Tensor, wishes: Wishes, drawn: Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        shape(ops, logits, wishes, drawn)

    monkeypatch.setattr(TorchOps, "shape", short)
    bench.run(*filtered())
    assert calls > at
    assert bench.preempted
    assert_same(bench, by_host)


@pytest.mark.parametrize("at", [1, 2, 5, 20])
def test_device_that_has_no_memory_to_count_changes_no_text(
    by_host: dict[str, list[tuple[int, float]]], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    bench, calls = Bench(tokens=20), 0
    count = SlotWishes.count

    def short(slots: SlotWishes, rows: Tensor, tokens: Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        count(slots, rows, tokens)

    monkeypatch.setattr(SlotWishes, "count", short)
    bench.run(*filtered())
    assert calls > at
    assert_same(bench, by_host)


def test_requests_that_filter_do_not_keep_the_next_step_from_being_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, sent = Bench(), []
    for each in filtered()[:4]:
        bench.stepper.add(each)
    while any(not bench.said.get(each.id) for each in filtered()[:4]):
        bench.step()
    run = bench.runner.run

    def counted(pieces: Pieces) -> Launched:
        sent.append(min(len(outputs) for outputs in bench.said.values()))
        return run(pieces)

    monkeypatch.setattr(bench.runner, "run", counted)
    before = min(len(outputs) for outputs in bench.said.values())
    bench.step()
    bench.step()
    assert sent == [before, before + 1]  # begun before the step before is read
    assert isinstance(bench.stepper, AheadStepper)
    assert len(bench.stepper._flights) == 1


def test_nothing_is_done_beyond_temperature_where_nobody_wishes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchOps, "shape", lambda *_: pytest.fail("a row was shaped"))
    bench = Bench()
    bench.run(request("a", (1, 2)), request("b", (3,), sampling=Sampling(sample=True, seed=2)))
    assert bench.text("a") == bench.model.text((1, 2), 10)
