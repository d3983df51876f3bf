"""The whole path of a GPU under CUDA's rules: where tensors are, what waits, what graphs read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch import device as Device  # noqa: E402
from triton.runtime.interpreter import GridExecutor  # noqa: E402

from benchmarks.gpu.clock import Clock  # noqa: E402
from benchmarks.gpu.correct import greedy  # noqa: E402
from benchmarks.gpu.driving import Job, driver  # noqa: E402
from benchmarks.gpu.models import SMALL, make_model  # noqa: E402
from inference.engine.ahead import AheadStepper  # noqa: E402
from inference.gpu.graphs import capture_stream  # noqa: E402
from inference.gpu.model import DeviceModel  # noqa: E402
from inference.gpu.ops import Ops, torch_ops, triton_ops  # noqa: E402
from inference.gpu.runner import GpuRunner, Launched  # noqa: E402
from inference.gpu.sampling import GpuSampler  # noqa: E402
from inference.gpu.slots import MirroredTable  # noqa: E402
from inference.gpu.torch_ops import TorchOps  # noqa: E402
from inference.grammar.masks import MaskPool  # noqa: E402
from inference.kv_cache.blocks import BlockPool, blocks_for  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.sampling.sampler import TorchSampler  # noqa: E402
from inference.scheduling.scheduler import Limits, Scheduler  # noqa: E402
from inference.types import CoreFailure, CoreRequest, LogprobsMode, Sampling  # noqa: E402
from tests.unit.inference.gpu.device_models import device_toy  # noqa: E402
from tests.unit.inference.gpu.paper_cuda import GPU, PaperCuda, paper_cuda  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to ask itself")

CPU = Device("cpu")
LONGEST = 96
VOCABULARY = 97
CAPTURED: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "bloom": {},
    "mixtral": {"experts_implementation": "eager"},  # which waits, and could not be captured
    "falcon": {},  # each key for two heads, as in 40B
    "falcon of 7B": {},  # one for all
    "falcon with a key for each head": {"multi_query": False},
}
_KERNELS = (
    "rms_norm", "add_rms_norm", "rope_and_write", "write", "paged_attention", "gated", "sample", "shape",
    "gated_by", "route", "expert_linear", "combine",
)  # fmt: skip


class KernelOps(TorchOps):
    """Torch's operations, each one kernel: what it does inside is no matter to the device."""

    captures = True

    def __init__(self, cuda: PaperCuda) -> None:
        for name in _KERNELS:
            setattr(self, name, partial(cuda.compute, getattr(TorchOps(), name)))


class Bench:
    """A stepper over a model on a device."""

    def __init__(self, model: DeviceModel, *, sequences: int = 4, sizes: tuple[int, ...] = (1, 4)) -> None:
        blocks = sequences * blocks_for(LONGEST)
        table = MirroredTable(sequences, blocks_for(LONGEST))
        self.masks = MaskPool(VOCABULARY, ())
        self.runner = GpuRunner(model, table, sizes, vocabulary=VOCABULARY)
        sampler = GpuSampler(TorchSampler(self.masks.endings), self.runner.state)
        limits = Limits(tokens=32, sequences=sequences, logit_rows=8)
        scheduler = Scheduler(BlockPool(blocks), limits, table)
        self.stepper = AheadStepper[Launched](
            scheduler, self.runner, sampler, (), self.masks, by_device=self.runner.state.chooses
        )
        self.said: dict[str, list[int]] = {}

    def step(self) -> None:
        for output in self.stepper.step().outputs:
            assert not isinstance(output, CoreFailure), output
            self.said.setdefault(output.id, []).append(output.token_id)

    def run(self, *requests: CoreRequest) -> dict[str, list[int]]:
        for each in requests:
            self.stepper.add(each)
        while not self.stepper.idle:
            self.step()
        return self.said


def request(
    id: str, length: int, tokens: int = 7, *, sampling: Sampling | None = None, top: int = 0
) -> CoreRequest:
    return CoreRequest(
        id=id,
        prompt_ids=tuple((7 * at + length) % VOCABULARY for at in range(length)),
        max_new_tokens=tokens,
        sampling=sampling or Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=top,
        prompt_logprobs=bool(top),
    )


def drawn(seed: int = 3, **changes: Any) -> Sampling:
    return Sampling(sample=True, temperature=0.9, seed=seed, **changes)


def crowd() -> list[CoreRequest]:
    return [
        request("greedy", 20),
        request("drawn", 37, 14, sampling=drawn()),
        request("filtered", 9, sampling=drawn(top_p=0.8, top_k=9, typical_p=0.9)),
        request("penalised", 12, sampling=Sampling(repetition_penalty=1.3, presence_penalty=0.4)),
        request("biased", 5, sampling=Sampling(logit_bias=((3, 2.0), (4, -5.0)))),
        request("scored", 15, top=3),
    ]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[PaperCuda]:
    capture_stream.cache_clear()
    with paper_cuda(monkeypatch) as cuda:
        call = GridExecutor.__call__

        def launch(executor: GridExecutor, *args: Any, **kwargs: Any) -> None:
            cuda.compute(partial(call, executor), *args, **kwargs)

        monkeypatch.setattr(GridExecutor, "__call__", launch)
        yield cuda
    capture_stream.cache_clear()


def brought_up(ops: Ops, device: Device, family: str = "llama", **changes: Any) -> DeviceModel:
    model = device_toy(family, **changes).to(device)
    served = bring_up(model, Options(library=None, ops=ops, max_total_tokens=LONGEST))
    assert served.make_model is not None
    return served.make_model(4 * blocks_for(LONGEST))


def warm(model: DeviceModel, **settings: Any) -> Bench:
    bench = Bench(model, **settings)
    bench.runner.warm_up(lambda line: None, tune=False)
    return bench


@pytest.fixture
def expected(request: pytest.FixtureRequest) -> dict[str, list[int]]:
    """Return what a family's toy says on a CPU, where nothing but numbers matters: named before `cuda`."""
    family, requests = request.param
    return Bench(brought_up(torch_ops(), CPU, family, **CAPTURED[family])).run(*requests)


@pytest.mark.parametrize(
    ("expected", "family"),
    [((family, crowd()), family) for family in CAPTURED],
    ids=CAPTURED,
    indirect=["expected"],
)
def test_texts_of_graphs_are_those_of_the_cpu(
    expected: dict[str, list[int]], cuda: PaperCuda, family: str
) -> None:
    changes = CAPTURED[family]
    bench = warm(brought_up(KernelOps(cuda), GPU, family, **changes))
    assert bench.runner.graphs._graphs.keys() == {1, 4}
    assert bench.run(*crowd()) == expected


def test_steady_decodes_wait_for_nothing_and_only_their_results_are_copied(cuda: PaperCuda) -> None:
    bench = warm(brought_up(KernelOps(cuda), GPU))
    for each in (request("a", 3, 12), request("b", 4, 12, sampling=drawn()), request("c", 2, 12)):
        bench.stepper.add(each)
    for _ in range(3):
        bench.step()
    cuda.waits.clear()
    cuda.copies.clear()
    for _ in range(5):
        bench.step()
    assert cuda.waits == []
    assert cuda.copies == {"to the host": 5}


def test_prompts_beside_decodes_wait_for_nothing(cuda: PaperCuda) -> None:
    bench = warm(brought_up(KernelOps(cuda), GPU))
    bench.stepper.add(request("a", 3, 20))
    for _ in range(3):
        bench.step()
    cuda.waits.clear()
    cuda.copies.clear()
    bench.stepper.add(request("b", 70, sampling=drawn()))
    for _ in range(4):
        bench.step()
    assert cuda.waits == []
    assert cuda.copies["to the device"] <= 4 * 3
    bench.run()


TWO = (request("greedy", 18, 5), request("drawn", 2, 4, sampling=drawn()))


@pytest.mark.slow
@pytest.mark.parametrize("expected", [("llama", TWO)], ids=["llama"], indirect=True)
def test_steps_of_tritons_kernels_are_captured_and_say_the_same(
    expected: dict[str, list[int]], cuda: PaperCuda
) -> None:
    """By the interpreter: a graph replays the very launches that were captured."""
    model = brought_up(KernelOps(cuda), GPU)
    model.ops = model._multiply.ops = triton_ops()  # type: ignore[attr-defined, misc]
    bench = warm(model, sizes=(2,))
    cuda.waits.clear()
    assert bench.run(*TWO) == expected
    assert cuda.waits == []


@pytest.mark.slow
def test_engine_is_loaded_measured_and_right_on_a_device(
    cuda: PaperCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.loading.source.choose_device", lambda config, progress: GPU)
    monkeypatch.setattr("inference.gpu.ops.triton_ops", lambda deterministic, overlaps: KernelOps(cuda))
    settings = {"max_batch_size": 2, "max_total_tokens": 64, "cuda_graphs": (2,)}
    jobs = [Job(tuple(range(3, 3 + length)), 4) for length in (20, 5)]
    with driver(SMALL, GPU, torch.float32, Clock(600), **settings) as engine:
        texts, level = engine.do(jobs).texts, engine.info.level
    model = make_model(SMALL, GPU, torch.float32)
    assert texts == [greedy(model, job) for job in jobs]
    assert level == "fused"
    assert any("are left for the KV cache" in line for line in engine.said)


class TestRules:
    """That what a GPU doesn't allow is found."""

    def test_operands_are_on_one_device(self, cuda: PaperCuda) -> None:
        there = torch.zeros(3, device="cuda")
        with pytest.raises(RuntimeError, match="on the same device"):
            there + torch.ones(3)
        assert (there + torch.tensor(1.0)).cpu().tolist() == [1, 1, 1]

    @pytest.mark.parametrize(
        "ask",
        [
            lambda x: x.sum().item(),
            lambda x: bool(x[0] > 0),
            lambda x: x.tolist(),
            lambda x: x[x > 0],
            lambda x: x[torch.tensor([0])],
            lambda x: x.nonzero(),
            lambda x: x + torch.tensor([1.0, 2.0], device=x.device),
            lambda x: x + torch.from_numpy(np.ones(2, dtype=np.float32)).to(x.device, non_blocking=True),
        ],
    )
    def test_what_makes_the_host_wait_is_seen(self, cuda: PaperCuda, ask: Callable[[Any], Any]) -> None:
        x = torch.arange(2.0, device="cuda")
        assert cuda.waits == []
        ask(x)
        assert len(cuda.waits) == 1

    def test_what_is_read_before_it_has_come_is_no_number(self, cuda: PaperCuda) -> None:
        result, done = torch.zeros(2, pin_memory=True), torch.cuda.Event()
        result.copy_(torch.ones(2, device="cuda"), non_blocking=True)
        done.record()
        assert result.isnan().all()
        done.synchronize()
        assert result.tolist() == [1, 1]

    def test_pinned_memory_stays_as_it_is_until_it_is_copied(self, cuda: PaperCuda) -> None:
        staged = torch.ones(2, pin_memory=True)
        staged.to(GPU, non_blocking=True)
        staged.zero_()
        with pytest.raises(AssertionError, match="before it was copied"):
            torch.cuda.synchronize()

    def test_graph_computes_from_the_same_memory_and_keeps_nothing_of_its_own(self, cuda: PaperCuda) -> None:
        given, found = [torch.zeros(2, device="cuda")], torch.zeros(2, device="cuda")
        graph, left = torch.cuda.CUDAGraph(), []

        def step() -> None:
            between = given[0] + 1
            left.append(between.view(2))
            found.copy_(between * 2)

        graph.capture_begin(pool=None, capture_error_mode="")
        step()
        graph.capture_end()
        given[0].fill_(4)
        graph.replay()
        assert found.tolist() == [10, 10]
        assert left[0].tolist() == [5, 5]
        numbers = left.pop().elem
        graph.replay()
        assert found.tolist() == [10, 10]
        assert numbers.isnan().all()
        given.clear()
        with pytest.raises(AssertionError, match="nobody holds"):
            graph.replay()

    def test_nothing_waits_inside_a_capture(self, cuda: PaperCuda) -> None:
        x, graph = torch.ones(2, device="cuda"), torch.cuda.CUDAGraph()
        graph.capture_begin(pool=None, capture_error_mode="")
        with pytest.raises(RuntimeError, match="when stream is capturing"):
            x.sum().item()
