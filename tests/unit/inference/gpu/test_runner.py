"""Steps on a device: what a small model is told, what is sent there, and what comes back."""

from __future__ import annotations

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.gpu import packing, runner, slots, wishes
from inference.gpu.batch import DeviceBatch
from inference.sampling.sampler import Columns, TorchSampler
from inference.sequences.state import Sequence
from inference.types import CoreRequest, Sampling
from tests.unit.inference.gpu.runner_bench import Bench, request


def test_step_with_prompts_has_no_padding_and_decodes_ids_come_from_the_device() -> None:
    bench = Bench()
    first, second = request("a", (1, 2, 3)), request("b", tuple(range(7)))
    bench.stepper.add(first)
    bench.step()
    bench.step()
    bench.stepper.add(second)
    bench.step()
    mixed = next(batch for batch in bench.model.batches if batch.longest == 7)
    assert len(mixed.ids) == 8
    assert mixed.starts.tolist() == [0, 1, 8]
    assert mixed.lengths.tolist()[1] == 7
    assert mixed.query_blocks.tolist() == [[0, 1, 1], [0, 0, 4]]
    assert mixed.tile == 4
    assert mixed.rows is not None
    assert mixed.rows.tolist() == [0, 7]
    bench.run()
    assert bench.text("a") == bench.model.text((1, 2, 3), 10)
    assert bench.text("b") == bench.model.text(tuple(range(7)), 10)


def test_steady_decodes_send_nothing_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for id in "abc":
        bench.stepper.add(request(id, (1, 2, ord(id) % 60), 20))
    for _ in range(3):
        bench.step()
    sent = 0
    upload = packing.upload

    def counted(*arguments: object) -> object:
        nonlocal sent
        sent += 1
        return upload(*arguments)  # type: ignore[arg-type]

    for module in (runner, slots, wishes):
        monkeypatch.setattr(module, "upload", counted)
    for _ in range(5):
        bench.step()
    assert sent == 0
    bench.run()
    assert sent == 1  # at the 16th token each of them takes another page
    assert all(bench.text(id) == bench.model.text((1, 2, ord(id) % 60), 20) for id in "abc")


def test_batch_between_sizes_is_padded_with_rows_that_are_nobodys() -> None:
    bench = Bench(sequences=4, sizes=(4,))
    bench.run(*(request(id, (5, ord(id) % 60), 6) for id in "abc"))
    padded = [batch for batch in bench.model.batches if batch.longest == 1]
    assert {len(batch.ids) for batch in padded} == {4}
    assert padded[0].slots.tolist()[3] == bench.runner.state.padding
    assert padded[0].places.tolist()[3] == -1
    assert padded[0].lengths.tolist()[3] == 0
    assert bench.runner.state.lengths[bench.runner.state.padding] == 0
    assert all(bench.text(id) == bench.model.text((5, ord(id) % 60), 6) for id in "abc")


def test_linears_are_measured_for_the_sizes_and_steps_are_run_once_before_any_request() -> None:
    bench = Bench(sizes=(1, 4))
    lines: list[str] = []
    bench.runner.warm_up(lines.append)
    assert bench.model.tuned == (1, 4)
    assert lines == ["tuned"]
    assert [len(batch.ids) for batch in bench.model.batches] == [4, 1]
    assert all((batch.lengths == 0).all() for batch in bench.model.batches)
    bench.run(request("a", (1, 2)))
    assert bench.text("a") == bench.model.text((1, 2), 10)


def test_linears_are_not_measured_if_that_is_switched_off() -> None:
    bench = Bench(sizes=(4,))
    bench.runner.warm_up(pytest.fail, tune=False)
    assert bench.model.tuned == ()
    assert len(bench.model.batches) == 1


def test_row_that_is_not_a_number_fails_its_request_alone() -> None:
    bench = Bench()
    reach = bench.model.text((1, 2, 3), 3)
    value = sum((at + 1) * (token + 1) for at, token in enumerate((1, 2, 3, *reach))) % 997
    bench.model.table[value] = torch.nan
    bench.run(request("bad", (1, 2, 3)), request("good", (4, 5)), request("top", (9,), top=2))
    assert "not a number" in bench.failed["bad"]
    assert bench.text("bad") == reach
    assert len(bench.text("good")) == len(bench.text("top")) == 10


def various() -> list[CoreRequest]:
    kinds = [
        Sampling(),
        Sampling(sample=True, temperature=0.9, seed=11),
        Sampling(sample=True, top_k=5, seed=12, repetition_penalty=1.3),
    ]
    return [
        request(str(at), tuple(range(at, at + 20)), 8, sampling=kinds[at % 3], top=at % 4 // 3)
        for at in range(6)
    ]


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("at", [1, 2, 5, 8])
def test_host_that_has_no_memory_to_choose_changes_no_text(
    monkeypatch: pytest.MonkeyPatch, at: int, ahead: bool
) -> None:
    expected = Bench()
    expected.run(*various())
    bench = Bench(ahead=ahead)
    pick, calls = TorchSampler.pick, 0

    def short(sampler: TorchSampler, sequences: tuple[Sequence, ...], logits: Tensor) -> Columns:
        nonlocal calls
        calls += 1
        if calls == at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return pick(sampler, sequences, logits)

    monkeypatch.setattr(TorchSampler, "pick", short)
    bench.run(*various())
    assert calls > at
    assert bench.preempted
    assert not bench.failed
    assert all(bench.text(each.id) == expected.text(each.id) for each in various())


def test_step_that_fails_keeps_no_tensor_of_its_own_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, made = Bench(), []

    def forward(batch: DeviceBatch) -> Tensor:
        activations = torch.zeros(8)
        made.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    bench.stepper.add(request("a", (1, 2, 3)))
    pieces = bench.stepper._scheduler.schedule().pieces
    monkeypatch.setattr(bench.model, "forward", forward)
    with pytest.raises(torch.OutOfMemoryError) as kept:
        bench.runner.run(pieces)
    assert kept.value.__traceback__ is not None
    assert [reference() for reference in made] == [None]


@settings(deadline=None, max_examples=12)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 30),
            st.integers(1, 12),
            st.sampled_from(["greedy", "drawn", "filtered", "penalised"]),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=7,
    ),
    st.sampled_from([8, 17, 64]),
)
def test_company_changes_no_text(wanted: list[tuple[int, int, str, int]], tokens: int) -> None:
    kinds = {
        "greedy": Sampling(),
        "drawn": Sampling(sample=True, temperature=0.9, seed=11),
        "filtered": Sampling(sample=True, top_k=5, seed=12),
        "penalised": Sampling(repetition_penalty=1.5, frequency_penalty=0.5),
    }
    requests = [
        request(str(at), tuple((at * 7 + each) % 60 for each in range(length)), new, sampling=kinds[kind])
        for at, (length, new, kind, _) in enumerate(wanted)
    ]
    together = Bench(sequences=3, tokens=tokens)
    for each, (_, _, _, pause) in zip(requests, wanted, strict=True):
        together.stepper.add(each)
        for _ in range(pause):
            if not together.stepper.idle:
                together.step()
    together.run()
    for each, (_, _, kind, _) in zip(requests, wanted, strict=True):
        alone = Bench(sequences=1)
        alone.run(each)
        assert together.text(each.id) == alone.text(each.id)
        if kind == "greedy":
            assert alone.text(each.id) == alone.model.text(each.prompt_ids, each.max_new_tokens)
