from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.gpu.graphs import Graphs, capture_stream, chosen_sizes, default_sizes
from inference.gpu.linears import graph_seconds

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fresh_stream() -> Iterator[None]:
    capture_stream.cache_clear()
    yield
    capture_stream.cache_clear()  # a paper stream is none for the tests that come later in this process


def test_default_sizes_go_up_by_eights_to_the_most_sequences() -> None:
    assert default_sizes(20) == (1, 2, 4, 8, 16, 20)
    assert default_sizes(1) == (1,)
    assert default_sizes(256)[-3:] == (240, 248, 256)
    assert len(default_sizes(256)) == 3 + 32


@given(st.integers(1, 5000))
def test_no_size_pads_a_batch_by_much(most: int) -> None:
    sizes = default_sizes(most)
    assert sizes[-1] == most
    assert list(sizes) == sorted(set(sizes))
    graphs = Graphs(lambda size: None, sizes, CPU, captures=False)
    for count in range(1, most + 1, 1 + most // 100):
        assert count <= graphs.padded(count) <= max(count + 8, count * 9 // 8 + 8)


@pytest.mark.parametrize(
    ("asked", "sizes"), [((0,), ()), ((), ()), ((8, 2, 2, 300), (2, 8)), (None, (1, 2, 4, 8, 16))]
)
def test_sizes_that_are_asked_for_are_captured_as_far_as_there_are_sequences(
    asked: tuple[int, ...] | None, sizes: tuple[int, ...]
) -> None:
    assert chosen_sizes(asked, 16) == sizes


def test_the_biggest_size_is_captured_first_and_batches_run_at_the_next_size() -> None:
    ran: list[int] = []
    graphs = Graphs(ran.append, (4, 1, 2), CPU, captures=True)
    graphs.capture()
    assert ran == [4, 2, 1]
    ran.clear()
    for count in (1, 2, 3, 4, 5):
        graphs.run(count)
    assert ran == [1, 2, 4, 4, 5]  # none is as big as the last: it runs as it is


class PaperCuda:
    """What graphs ask of torch.cuda, put down in order; a capture that `refuses` fails as CUDA's do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[Any] = []
        self.refuses = False
        paper = self

        class Graph:
            def capture_begin(self, pool: object, capture_error_mode: str) -> None:
                paper.said.append(("begin", pool, gc.isenabled()))

            def capture_end(self) -> None:
                paper.said.append("end")
                if paper.refuses:
                    raise RuntimeError("operation failed due to a previous error during capture")

            def replay(self) -> None:
                paper.said.append("replay" if torch.is_inference_mode_enabled() else "replay as ever")

        stream = SimpleNamespace(wait_stream=lambda other: None)
        generator = SimpleNamespace(
            clone_state=lambda: None, graphsafe_set_state=self.tells("graphsafe_set_state")
        )
        for name, value in {
            "CUDAGraph": Graph,
            "graph_pool_handle": lambda: (0, 1),
            "Stream": lambda device: stream,
            "current_stream": lambda device=None: stream,
            "current_device": lambda: 0,
            "stream": lambda stream: nullcontext(),
            "synchronize": self.tells("synchronize"),
            "empty_cache": self.tells("empty_cache"),
            "default_generators": [generator],
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            monkeypatch.setattr(torch._C, name, self.tells(name))

    def tells(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.said.append(name)


def test_memory_is_given_back_before_each_capture_and_nothing_collected_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = PaperCuda(monkeypatch)
    graphs = Graphs(cuda.said.append, (1, 2), torch.device("cuda"), captures=True)
    graphs.capture()
    begin = ("begin", (0, 1), False)  # both in one pool
    once = ["synchronize", "empty_cache", begin]
    assert cuda.said == [2, *once, 2, "end", 1, *once, 1, "end"]
    assert gc.isenabled()
    cuda.said.clear()
    with torch.inference_mode():
        graphs.run(2)
    assert cuda.said == ["replay"]


def test_what_is_captured_to_be_measured_is_replayed_in_the_same_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some versions of torch write to their generator's tensors then, which were made in inference mode."""
    cuda = PaperCuda(monkeypatch)
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda stop: 5.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    monkeypatch.setattr("inference.gpu.linears._washer", lambda device: cuda.tells("wash"))
    assert not torch.is_inference_mode_enabled()
    assert graph_seconds(cuda.tells("run")) == 0.005
    assert [each for each in cuda.said if each in ("wash", "replay")] == ["wash", "replay"] * 6


def test_allocator_leaves_a_capture_that_fails_and_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cuda = PaperCuda(monkeypatch)
    capturing: list[int] = []

    def step(size: int) -> None:
        capturing.append(size)
        if len(capturing) == 2:
            cuda.refuses = True
            raise RuntimeError("operation not permitted when stream is capturing")

    graphs = Graphs(step, (1, 2), torch.device("cuda"), captures=True)
    graphs.capture()
    left = ["end", "_cuda_endAllocateToPool", "_cuda_releasePool", "graphsafe_set_state"]
    assert cuda.said[-5:] == [*left, "synchronize"]  # which raises if the device is broken
    assert "not permitted when stream is capturing" in caplog.text
    assert capturing == [2, 2, 1]
    graphs.run(1)
    assert capturing[-1] == 1
    assert not any("replay" in str(each) for each in cuda.said)


def test_memory_that_ends_in_a_capture_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = PaperCuda(monkeypatch)
    left = [1]

    def step(size: int) -> None:
        if not left:
            raise torch.OutOfMemoryError("CUDA out of memory")
        left.pop()

    with pytest.raises(torch.OutOfMemoryError):
        Graphs(step, (1,), torch.device("cuda"), captures=True).capture()
    assert "end" in cuda.said
    assert gc.isenabled()


@pytest.mark.gpu
def test_what_cannot_be_captured_is_run_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    device = torch.device("cuda")
    seen = torch.zeros(1, device=device)

    def step(size: int) -> None:
        seen.add_(1)
        seen.item()  # waits for the device

    graphs = Graphs(step, (1, 2), device, captures=True)
    graphs.capture()
    assert "can't be captured" in caplog.text
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()  # other tests of this process have some, and so have libraries
    kept = torch.empty(64 * 2**20, device=device)
    del kept
    torch.cuda.empty_cache()  # the capture that failed doesn't stand in its way
    assert torch.cuda.memory_reserved() <= reserved
    assert torch.randn(1, device=device).isfinite()  # nor does torch's generator think it is in it
    before = seen.item()
    graphs.run(2)
    assert seen.item() == before + 1


@pytest.mark.gpu
@torch.inference_mode()  # as steps are run
def test_captured_steps_compute_what_the_function_does() -> None:
    device = torch.device("cuda")
    given, found = (torch.zeros(8, device=device) for _ in range(2))

    def step(size: int) -> None:
        given[:size] += 1
        found[:size] = given[:size] * 2

    graphs = Graphs(step, (2, 8), device, captures=True)
    graphs.capture()
    given.zero_()
    graphs.run(1)
    graphs.run(3)
    assert given.tolist() == [2, 2, 1, 1, 1, 1, 1, 1]
    assert found.tolist() == [4, 4, 2, 2, 2, 2, 2, 2]
