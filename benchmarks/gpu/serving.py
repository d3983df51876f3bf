"""How fast a model is served: decodes, prompts, whole workloads, and each optimisation switched off."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu import timeline
from benchmarks.gpu.ceilings import Ceilings, floor_seconds, prefill_ceiling
from benchmarks.gpu.clock import Clock
from benchmarks.gpu.driving import Done, Driver, Job, driver
from benchmarks.gpu.models import Shape
from inference.types import Sampling

Row = dict[str, Any]

_FIRST = 24  # requests, and their tokens, before a workload: kernels are compiled for new forms of steps
_LOAD_SECONDS = 10  # of a model, about

# What each optimisation is without; the benchmark's own name for it beside the engine's setting
SWITCHES: dict[str, dict[str, Any]] = {
    "everything on": {},
    "no CUDA graphs": {"cuda_graphs": ()},
    "not one step ahead": {"one_step_ahead": False},
    "linears not measured": {"tune_linears": False},
    "kernels not overlapped": {"overlap_kernels": False},
    "layers not fused": {"fuse_layers": False},
    "neither fused nor merged": {"fuse_layers": False, "merge_linears": False},
    "torch, not Triton": {"native_kernels": False},
    "deterministic": {"deterministic": True},
    "filters by the host": {"filter_on_device": False},
}
FILTERED = {  # what is asked of tokens in steps that are measured beside greedy ones
    "decode, top-k 50, top-p 0.9, penalty": Sampling(
        sample=True, top_k=50, top_p=0.9, repetition_penalty=1.1, seed=1
    ),
    "decode, top-p 0.9": Sampling(sample=True, top_p=0.9, seed=1),  # of flat rows, so many tokens are left
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    decodes: dict[int, tuple[int, ...]]  # context: batch sizes
    steps: int
    prompts: tuple[int, int]  # how many, of how many tokens
    requests: int  # of the mixed workload
    lengths: tuple[int, int]  # of its prompts and texts
    shared: tuple[int, int, int]  # of the shared prefix: how many requests, tokens shared, tokens of each
    switched: tuple[int, ...]  # batch sizes that the switches are measured at
    total_tokens: int  # of a sequence

    @property
    def settings(self) -> dict[str, Any]:
        """Return what the engine is started with."""
        most = max(max(batches) for batches in self.decodes.values())
        return {"max_batch_size": most, "max_total_tokens": self.total_tokens}


FULL = Sizes(
    decodes={768: (256,), 512: (64, 8, 1)},
    steps=64,
    prompts=(32, 1024),
    requests=256,
    lengths=(100, 1024),
    shared=(64, 2048, 64),
    switched=(64, 1),
    total_tokens=4096,
)
QUICK = Sizes(
    decodes={512: (64, 1)},
    steps=24,
    prompts=(8, 1024),
    requests=64,
    lengths=(100, 512),
    shared=(16, 1024, 64),
    switched=(1,),
    total_tokens=4096,
)
TINY = Sizes(
    decodes={24: (4, 1)},
    steps=4,
    prompts=(2, 32),
    requests=4,
    lengths=(4, 12),
    shared=(3, 32, 4),
    switched=(1,),
    total_tokens=64,
)


def serve(
    shape: Shape, device: torch.device, dtype: torch.dtype, sizes: Sizes, ceilings: Ceilings, clock: Clock
) -> Iterator[Row]:
    """Yield what is found of one model, a row for each number."""
    with driver(shape, device, dtype, clock, **sizes.settings) as engine:
        yield {"what": "level", "level": engine.info.level, "said": engine.said[-12:]}
        for context, batches in sorted(sizes.decodes.items()):
            for batch, mean, seconds in engine.decode(list(batches), context, sizes.steps):
                yield decode_row(shape, ceilings, dtype, batch, mean, seconds)
        yield prefill(engine, shape, ceilings, sizes)
        jobs = mixed_jobs(engine, sizes)
        engine.do([Job(job.prompt[::-1], min(job.tokens, _FIRST)) for job in jobs[:_FIRST]])
        yield {"what": "mixed", **workload(engine.do(jobs))}
        yield shared_prefix(engine, sizes)
        for batch in sizes.switched:
            if (found := idle(engine, shape, batch, sizes)) is not None:
                yield found


def switches(
    shape: Shape, device: torch.device, dtype: torch.dtype, sizes: Sizes, ceilings: Ceilings, clock: Clock
) -> Iterator[Row]:
    """Yield decodes with each optimisation off in turn."""
    context = min(sizes.decodes)
    for name, off in SWITCHES.items():
        if device.type == "cpu" and name == "deterministic":
            continue  # the operations on the CPU have no such mode
        clock.need(_LOAD_SECONDS if device.type == "cuda" else 0, name)
        settings = {**sizes.settings, "max_batch_size": max(sizes.switched), **off}
        with driver(shape, device, dtype, clock, **settings) as engine:
            for batch, mean, seconds in engine.decode(list(sizes.switched), context, sizes.steps):
                row = decode_row(shape, ceilings, dtype, batch, mean, seconds)
                yield {**row, "without": name, "level": engine.info.level}
            if name in ("everything on", "filters by the host"):
                for what, sampling in FILTERED.items():
                    clock.need(0, what)
                    for batch, mean, seconds in engine.decode(
                        list(sizes.switched), context, sizes.steps, sampling
                    ):
                        row = decode_row(shape, ceilings, dtype, batch, mean, seconds)
                        yield {**row, "what": what, "without": name}
            if name in ("everything on", "deterministic"):
                yield {**prefill(engine, shape, ceilings, sizes), "without": name}


def decode_row(
    shape: Shape, ceilings: Ceilings, dtype: torch.dtype, batch: int, context: float, seconds: float
) -> Row:
    """Return a step of decodes beside its floor."""
    floor, bound = floor_seconds(shape, ceilings, batch, context, dtype.itemsize)
    return {
        "what": "decode",
        "batch": batch,
        "context": round(context),
        "step_ms": round(1e3 * seconds, 4),
        "tokens_per_second": round(batch / seconds, 1),
        "floor_ms": round(1e3 * floor, 4),
        "bound": bound,
        "share": round(floor / seconds, 4),
    }


def prefill(engine: Driver, shape: Shape, ceilings: Ceilings, sizes: Sizes) -> Row:
    """Return the rate at which prompts are computed, each of them another, with one token each."""
    count, tokens = sizes.prompts
    random_ = random.Random("prefill")
    for _ in range(2):  # steps of these forms come for the first time, and kernels are compiled
        done = engine.do([Job(engine.prompt(random_, tokens), 1) for _ in range(count)])
    rate = count * tokens / done.seconds
    row = {
        "what": "prefill",
        "prompt": tokens,
        "tokens_per_second": round(rate, 1),
        "share": round(rate / prefill_ceiling(shape, ceilings), 4),
    }
    if timeline.available(engine.device):  # prompts are no graphs: whether the device waited for launches
        jobs = [Job(engine.prompt(random_, tokens), 1) for _ in range(count)]
        if found := timeline.timeline(lambda: engine.do(jobs)):
            row["busy"] = round(found.busy / done.seconds, 4)
    return row


def idle(engine: Driver, shape: Shape, batch: int, sizes: Sizes) -> Row | None:
    """Return how long the GPU rests in steady decodes, and its kernels; None where there is no GPU."""
    if not timeline.available(engine.device):
        return None
    context, steps = min(sizes.decodes), sizes.steps
    found, step = None, 0.0
    for _, _, seconds in engine.decode([batch], context, steps):
        step = seconds
        found = timeline.timeline(lambda: engine.steps(steps))
    if found is None:
        return {"what": "idle", "batch": batch, "complaint": "the profiler saw no kernel"}
    return {
        "what": "idle",
        "batch": batch,
        "idle": round(1 - found.busy / steps / step, 4),  # beside a step that wasn't watched
        "idle_watched": round(found.idle, 4),
        "kernels_per_step": round(found.kernels / steps, 1),
        "kernels_per_layer": round(found.kernels / steps / shape.layers, 2),
        "slowest_us": {name: round(1e6 * seconds / steps, 2) for name, seconds in found.slowest.items()},
    }


def mixed_jobs(engine: Driver, sizes: Sizes) -> list[Job]:
    """Return nano-vllm's workload: prompts and texts of random lengths, all there at once."""
    random_ = random.Random(0)
    low, high = sizes.lengths
    lengths = [(random_.randint(low, high), random_.randint(low, high)) for _ in range(sizes.requests)]
    return [Job(engine.prompt(random_, prompt), tokens) for prompt, tokens in lengths]


def shared_prefix(engine: Driver, sizes: Sizes) -> Row:
    """Return a workload whose prompts begin alike, after one of them was computed."""
    count, shared, own = sizes.shared
    random_ = random.Random("shared")
    prefix = engine.prompt(random_, shared)
    jobs = [Job((*prefix, *engine.prompt(random_, own)), own // 2 or 1) for _ in range(count)]
    engine.do([Job((*prefix, *engine.prompt(random_, own)), 1)])
    done = engine.do(jobs)
    tokens = sum(len(job.prompt) for job in jobs)
    return {"what": "shared prefix", **workload(done), "cached": round(done.cached / tokens, 4)}


def workload(done: Done) -> Row:
    """Return what there is to say of a workload."""
    return {
        "requests": len(done.texts),
        "seconds": round(done.seconds, 3),
        "tokens_per_second": round(done.rate, 1),
    }
