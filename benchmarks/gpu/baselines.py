"""transformers on the same device, in the same run: its continuous batching, and its model step by step."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from collections.abc import Sequence as Several
from typing import Any

import torch
from transformers import ContinuousBatchingManager, DynamicCache, GenerationConfig, PreTrainedModel
from transformers.generation.continuous_batching.utils import WorkloadHints

from benchmarks.gpu.clock import Clock, synchronize
from benchmarks.gpu.driving import Job, driver
from benchmarks.gpu.models import Shape, free, make_model
from benchmarks.gpu.serving import Sizes

Row = dict[str, Any]

_STEPS = 16  # of the eager model
_LOAD_SECONDS = 10  # and until then, about
_STOP_SECONDS = 5  # that transformers' thread may take to end


def compare(
    shape: Shape, device: torch.device, dtype: torch.dtype, sizes: Sizes, clock: Clock
) -> Iterator[Row]:
    """Yield transformers' steps, its continuous batching, and the engine on the very same requests."""
    model = make_model(shape, device, dtype, "sdpa")
    yield from _eager(model, sizes.switched, min(sizes.decodes))
    jobs = _jobs(shape, sizes)
    theirs = batched_rate(model, jobs, clock) if device.type == "cuda" else None  # takes minutes on a CPU
    del model
    free(device)
    if theirs is None:
        return
    yield {"what": "transformers, continuous batching", **_said(jobs), "tokens_per_second": round(theirs, 1)}
    with driver(shape, device, dtype, clock, **sizes.settings) as engine:
        engine.do(_others(jobs))
        ours = engine.do(jobs).rate
    yield {
        "what": "the engine on the same requests",
        **_said(jobs),
        "tokens_per_second": round(ours, 1),
        "times": round(ours / theirs, 2),
    }


def beside(
    shape: Shape, device: torch.device, dtype: torch.dtype, sizes: Sizes, clock: Clock
) -> Iterator[Row]:
    """Yield transformers' steps alone, of a model that its continuous batching can't serve."""
    clock.need(_LOAD_SECONDS, "transformers' steps")
    yield from _eager(make_model(shape, device, dtype, "sdpa"), sizes.switched, min(sizes.decodes))


def _eager(model: PreTrainedModel, batches: Several[int], context: int) -> Iterator[Row]:
    for batch in batches:
        seconds = eager_step(model, batch, context)
        yield {
            "what": "transformers, eager",
            "batch": batch,
            "step_ms": round(1e3 * seconds, 3),
            "tokens_per_second": round(batch / seconds, 1),
        }


@torch.inference_mode()
def eager_step(model: PreTrainedModel, batch: int, context: int) -> float:
    """Return the seconds of a step of so many sequences of one length, with transformers' cache."""
    device, cache = model.device, DynamicCache(config=model.config)
    ids = torch.randint(3, model.config.vocab_size, (batch, context), device=device)
    token = model(ids, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
    times = []
    for _ in range(_STEPS):
        synchronize(device)
        began = time.perf_counter()
        token = model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
        synchronize(device)
        times.append(time.perf_counter() - began)
    return sorted(times)[_STEPS // 2]


def batched_rate(model: PreTrainedModel, jobs: list[Job], clock: Clock) -> float:
    """Return the tokens that transformers' continuous batching gives out a second.

    That it is set up, and computes for the first time, takes none of them, as with the engine. Raises
    RuntimeError where tokens are missing, and OutOfTime.
    """
    tokens = jobs[0].tokens
    config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=tokens)
    hints = WorkloadHints(max(len(job.prompt) for job in jobs), tokens, len(jobs))
    with model.continuous_batching_context_manager(
        generation_config=config, workload_hints=hints, timeout=_STOP_SECONDS
    ) as manager:
        _tokens_of(manager, _others(jobs), clock)
        began = time.perf_counter()
        given = _tokens_of(manager, jobs, clock)
        seconds = time.perf_counter() - began
    if given != tokens * len(jobs):
        raise RuntimeError(f"transformers gave out {given} tokens of {tokens * len(jobs)}")
    return given / seconds


def _tokens_of(manager: ContinuousBatchingManager, jobs: list[Job], clock: Clock) -> int:
    """Return how many tokens it makes of jobs that all come at once."""
    manager.add_requests([list(job.prompt) for job in jobs], max_new_tokens=jobs[0].tokens)
    left, tokens = len(jobs), 0
    while left and manager.is_running():
        clock.need(0, "transformers' continuous batching")
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            left -= 1
            tokens += len(result.generated_tokens)
    return tokens


def _others(jobs: list[Job]) -> list[Job]:
    """Return two jobs like these to begin with, whose prompts no cache knows afterwards."""
    return [Job(job.prompt[::-1], job.tokens) for job in jobs[:2]]


def _jobs(shape: Shape, sizes: Sizes) -> list[Job]:
    """Return requests whose texts are of one length: transformers is told one for all."""
    random_ = random.Random(2)
    low, high = sizes.lengths
    vocabulary = range(3, shape.config["vocab_size"])
    lengths = [random_.randint(low, high) for _ in range(max(sizes.requests // 2, 2))]
    return [Job(tuple(random_.choices(vocabulary, k=length)), high // 4) for length in lengths]


def _said(jobs: list[Job]) -> Row:
    return {"requests": len(jobs), "tokens_each": jobs[0].tokens}
