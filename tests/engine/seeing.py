"""Runs prompts with images through an engine client, and transformers' own `generate` beside it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Picture
from transformers import PreTrainedModel, ProcessorMixin

from codegen.seeing_toys import placeholder, save_seeing_toy
from inference.config import EngineConfig, ModelConfig
from inference.engine.engine import TorchCore
from inference.frontend.client import EngineClient
from inference.process.spawned import SpawnedCore
from inference.text.pipeline import load_text
from inference.types import Event, Image, Request
from inference.vision.eyes import forget

TOKENS = 12
# Toys that see have room for a million positions, which books and tables of rotations would be made for
SIZES = {"max_batch_prefill_tokens": 16, "max_total_tokens": 1024, "max_batch_total_tokens": 32 * 1024}
Case = tuple[str, tuple[int, ...]]  # a prompt, {} for an image, and the seeds of its images
CASES: tuple[Case, ...] = (
    ("What {} is this, and who has made it?", (1,)),
    ("Nobody sees anything in these words.", ()),
    ("{}", (2,)),
    ("{}{} are two of them: which is the older one?", (1, 2)),
    ("One {} and another {} and the first {} again", (3, 4, 3)),
    ("What {} is this, and who has made it?", (3,)),
    ("user\n{}\n\nWhat is it?\n", (1,)),
)
LONG: Case = ("What {} is this, and who has made it?", (1,))


@dataclass(frozen=True, eq=False)
class Toy:
    """A model that was saved, and its oracle."""

    family: str
    directory: Path
    model: PreTrainedModel
    processor: ProcessorMixin
    _generated: dict[tuple[Case, int], tuple[list[int], int]] = field(default_factory=dict, repr=False)

    def request(self, id: str, case: Case, **settings: Any) -> Request:
        """Return a case as a request; greedy, as all of them."""
        text, seeds = case
        return Request(
            id=id,
            prompt=text.format(*[placeholder(self.family)] * len(seeds)),
            add_special_tokens=False,
            images=tuple(Image(data=png(seed)) for seed in seeds),
            **{"max_new_tokens": TOKENS, **settings},
        )

    def generate(self, case: Case, tokens: int = TOKENS) -> tuple[list[int], int]:
        """Return what transformers' `generate` says, and how many tokens its prompt has.

        Most tests ask the same cases, each of which is generated once.
        """
        if (case, tokens) not in self._generated:
            self._generated[case, tokens] = self._generate(case, tokens)
        return self._generated[case, tokens]

    def _generate(self, case: Case, tokens: int) -> tuple[list[int], int]:
        text, seeds = case
        prompt = text.format(*[placeholder(self.family)] * len(seeds))
        images = {"images": [[picture(seed) for seed in seeds]]} if seeds else {}
        inputs = self.processor(text=[prompt], return_tensors="pt", add_special_tokens=False, **images)
        full = self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
        forget(self.model)
        length = inputs["input_ids"].shape[1]
        return full[0, length:].tolist(), length


def make_toy(family: str, directory: Path, *, narrow: bool = False) -> Toy:
    """Return a toy that was saved in a directory, `narrow`: in 16 bits, which the oracle widens."""
    torch.set_num_threads(1)
    model, processor = save_seeing_toy(family, directory)
    if narrow:
        model.bfloat16().save_pretrained(directory)
        model = (
            type(model).from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        )
    return Toy(family, directory, model, processor)


def picture(seed: int) -> Picture.Image:
    """Return an image of noise; odd seeds give wide ones, even seeds high ones."""
    shape = (40, 60, 3) if seed % 2 else (70, 30, 3)
    return Picture.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def png(seed: int) -> bytes:
    """Return the file of an image."""
    return encoded(picture(seed), "PNG")


def encoded(image: Picture.Image, form: str, **options: Any) -> bytes:
    """Return an image as a file."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def with_client(
    toy: Toy,
    test: Callable[[EngineClient, TorchCore], Awaitable[None]],
    *,
    device_path: bool = False,
    **settings: Any,
) -> None:
    """Run a test with an engine in this process, and see that nothing is held when it has ended."""

    async def run() -> None:
        config = EngineConfig(
            model=ModelConfig(model_id=str(toy.directory), dtype="float32" if device_path else "auto"),
            threads=1,
            separate_process=False,
            **{**SIZES, **settings},
        )
        core = TorchCore(config, device_path=device_path)
        client = EngineClient(core, config, lambda: load_text(config.model))
        await client.start(lambda line: None)
        try:
            await test(client, core)
            assert core._stepper is not None
            await idle(core)
            assert core._stepper._scheduler.check() == []
            assert core._looker is None or (core._looker._store.held, core._looker._leases) == (0, {})
        finally:
            await client.close()

    asyncio.run(run())


def with_process(toy: Toy, test: Callable[[EngineClient], Awaitable[None]], **settings: Any) -> None:
    """Run a test with an engine in a process of its own."""

    async def run() -> None:
        config = EngineConfig(model=ModelConfig(model_id=str(toy.directory)), threads=1, **settings)
        client = EngineClient(SpawnedCore(config), config, lambda: load_text(config.model))
        await client.start(lambda line: None)
        try:
            await test(client)
        finally:
            await client.close()

    asyncio.run(run())


async def idle(core: TorchCore) -> None:
    """Wait until the engine's thread has nothing to do."""
    while core._stepper is not None and not core._stepper.idle:  # noqa: ASYNC110 - it sets no event
        await asyncio.sleep(0.01)


async def answer(client: EngineClient, request: Request) -> tuple[Event, ...]:
    """Return all events of a request."""
    return await (await client.submit(request)).collect()


def said(events: tuple[Event, ...]) -> list[int]:
    """Return the tokens of a text."""
    return [event.token.id for event in events]


async def check(client: EngineClient, toy: Toy, run: str, several: tuple[Case, ...]) -> None:
    """See that all prompts at once give the oracle's texts."""
    wanted = [toy.generate(case) for case in several]
    asked = [answer(client, toy.request(f"{run} {at}", case)) for at, case in enumerate(several)]
    for events, (tokens, length), case in zip(await asyncio.gather(*asked), wanted, several, strict=True):
        assert said(events) == tokens, case
        assert events[-1].finish is not None
        assert events[-1].finish.prompt_tokens == length
