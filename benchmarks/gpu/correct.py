"""That it is right comes before how fast it is: whole texts against transformers, bits against bits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.gpu.clock import Clock
from benchmarks.gpu.driving import Done, Job, driver
from benchmarks.gpu.models import SMALL, free, make_model
from inference.types import Sampling

Row = dict[str, Any]

_LENGTHS = (5, 17, 33, 50, 90)  # of prompts: below, at and above pages
_TOKENS = 24
_SIZES = {"max_batch_size": 8, "max_total_tokens": 256}
_SEEDED = Sampling(sample=True, temperature=0.8, seed=11)
_FILTERED = Sampling(
    sample=True, temperature=0.8, top_k=50, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.1, seed=12
)


class Wrong(Exception):
    """What is computed isn't what should be."""


def check(device: torch.device, dtype: torch.dtype, clock: Clock) -> Iterator[Row]:
    """Yield what was found right; raise Wrong."""
    jobs = _jobs()
    with driver(SMALL, device, torch.float32, clock, **_SIZES) as engine:
        level, texts = engine.info.level, engine.do(jobs).texts
        filtered = engine.do(jobs, _FILTERED).texts
    model = make_model(SMALL, device, torch.float32)
    expected = [greedy(model, job) for job in jobs]
    del model
    free(device)
    if texts != expected:
        where = _apart(texts, expected)
        raise Wrong(f"greedy texts in float32 aren't those of transformers, at level {level}: {where}")
    yield {"what": "greedy texts in float32 are those of transformers", "texts": len(texts), "level": level}
    with driver(SMALL, device, torch.float32, clock, **_SIZES, filter_on_device=False) as engine:
        if filtered != (by_host := engine.do(jobs, _FILTERED).texts):
            where = _apart(filtered, by_host)
            raise Wrong(f"texts with filters and penalties in float32 aren't those of the host: {where}")
    yield {"what": "texts with filters and penalties in float32 are those that the host chooses"}
    if device.type == "cuda":
        yield from _check_bits(device, dtype, clock, jobs)


def greedy(model: PreTrainedModel, job: Job) -> list[int]:
    """Return a text by the model's own forward, without a cache."""
    ids = list(job.prompt)
    with torch.inference_mode():
        for _ in range(job.tokens):
            logits = model(torch.tensor([ids], device=model.device), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
    return ids[len(job.prompt) :]


def _check_bits(device: torch.device, dtype: torch.dtype, clock: Clock, jobs: list[Job]) -> Iterator[Row]:
    with driver(SMALL, device, dtype, clock, deterministic=True, prefix_caching=False, **_SIZES) as engine:
        for name, sampling in (("greedy", None), ("seeded", _SEEDED)):
            together = engine.do(jobs, sampling)
            alone = [engine.do([job], sampling) for job in jobs]
            for what in ("texts", "logprobs"):
                if (found := getattr(together, what)) != (expected := _joined(alone, what)):
                    where = _apart(found, expected)
                    raise Wrong(f"--deterministic: {name} {what} alone aren't those in a batch: {where}")
            yield {
                "what": f"--deterministic: {name} texts and logprobs alone are those in a batch, by the bit"
            }


def _joined(alone: list[Done], what: str) -> list[Any]:
    return [getattr(each, what)[0] for each in alone]


def _apart(found: list[Any], expected: list[Any]) -> str:
    """Return from where on texts are others: rounding looks otherwise than a wrong kernel."""
    differing = [
        f"{_LENGTHS[row]} tokens of prompt: from {at} on, {ours} instead of {theirs}"
        for row, pair in enumerate(zip(found, expected, strict=True))
        for at, ours, theirs in _first_difference(*pair)
    ]
    return f"{len(differing)} of {len(found)}; " + "; ".join(differing)


def _first_difference(found: list[Any], expected: list[Any]) -> list[tuple[int, Any, Any]]:
    pairs = enumerate(zip(found, expected, strict=True))
    return [(at, ours, theirs) for at, (ours, theirs) in pairs if ours != theirs][:1]


def _jobs() -> list[Job]:
    random_ = random.Random(1)
    vocabulary = range(3, SMALL.config["vocab_size"])
    return [Job(tuple(random_.choices(vocabulary, k=length)), _TOKENS) for length in _LENGTHS]
