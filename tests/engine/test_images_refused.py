"""Images and prompts that are refused: the request alone, with what is wrong, and nothing is left held."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.gemma3 import modeling_gemma3 as gemma

from inference.engine.engine import TorchCore
from inference.errors import GenerationFailed, InvalidImage, InvalidInput
from inference.frontend.client import EngineClient
from inference.frontend.health import Health
from inference.levels.packable import find_layers
from inference.levels.proof import Proof, Verdict
from inference.sequences.sight import Sight
from inference.sequences.state import Integers
from inference.types import Image
from inference.vision.model import Vision
from tests.engine.seeing import (
    CASES,
    LONG,
    Toy,
    answer,
    check,
    encoded,
    make_toy,
    picture,
    png,
    said,
    with_client,
)

FAMILIES = ("llava", "llava_onevision", "aya_vision", "qwen2_5_vl")


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Toy]:
    return {family: make_toy(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"no image", "invalid image: it is no PNG, JPEG, GIF, WEBP, TIFF, BMP file"),
        (png(1)[:400], "invalid image: .*truncated"),
        (encoded(picture(1), "PPM"), "invalid image: it is no PNG"),
        (b"", "invalid image: it is no PNG"),
    ],
    ids=["nonsense", "truncated", "other format", "empty"],
)
def test_bad_image_fails_its_request_alone(toys: dict[str, Toy], file: bytes, message: str) -> None:
    toy = toys["llava"]

    async def test(client: EngineClient, core: TorchCore) -> None:
        good = asyncio.create_task(check(client, toy, "good", CASES))
        images = (Image(data=png(1)), Image(data=file))
        bad = replace(toy.request("bad", ("{} {}", (1, 1))), images=images)
        with pytest.raises(InvalidInput, match=message):
            await client.submit(bad)
        await good

    with_client(toy, test)


@pytest.mark.parametrize("marks", [0, 1, 3])
def test_each_image_needs_its_mark(toys: dict[str, Toy], marks: int) -> None:
    toy = toys["qwen2_5_vl"]

    async def test(client: EngineClient, core: TorchCore) -> None:
        asked = replace(
            toy.request("a", LONG), prompt="x" + "<|image_pad|>" * marks, images=(Image(data=png(1)),) * 2
        )
        with pytest.raises(InvalidInput, match=re.escape(f"Given: {marks} and 2 images")):
            await client.submit(asked)

    with_client(toy, test)


def test_token_that_stands_for_rows_is_refused_in_texts(toys: dict[str, Toy]) -> None:
    toy = toys["aya_vision"]

    async def test(client: EngineClient, core: TorchCore) -> None:
        with pytest.raises(InvalidInput, match="stands for a part of an image"):
            await client.submit(toy.request("a", ("{} <|IMG_PATCH|>", (1,))))
        with pytest.raises(InvalidInput, match="stands for a part of an image"):
            await client.submit(toy.request("a", ("<|IMG_PATCH|>", ())))

    with_client(toy, test)


def test_truncating_may_not_cut_an_image(toys: dict[str, Toy]) -> None:
    toy = toys["llava"]
    text = ("Some words before {} it", (1,))

    async def test(client: EngineClient, core: TorchCore) -> None:
        length = toy.generate(text)[1]
        kept = await answer(client, toy.request("kept", text, truncate=length - 5))
        assert said(kept) == toy.generate(("words before {} it", (1,)))[0]
        with pytest.raises(InvalidInput, match="`truncate` must leave images whole: 19 tokens"):
            await client.submit(toy.request("cut", text, truncate=18))

    with_client(toy, test)


def test_prompt_is_too_long_by_its_images(toys: dict[str, Toy]) -> None:
    toy = toys["llava"]

    async def test(client: EngineClient, core: TorchCore) -> None:
        with pytest.raises(
            InvalidInput, match=r"must have less than 149 tokens\. Given: 160 of its images alone"
        ):
            await client.submit(toy.request("a", ("{}" * 12, tuple(range(12)))))
        await check(client, toy, "short enough", (LONG,))

    with_client(toy, test, max_total_tokens=150)


def test_several_images_are_refused_where_the_model_computes_them_otherwise(toys: dict[str, Toy]) -> None:
    toy = toys["llava_onevision"]

    async def test(client: EngineClient, core: TorchCore) -> None:
        with pytest.raises(InvalidInput, match="must have <= 1 image"):
            await client.submit(toy.request("a", ("{}{}", (1, 2))))

    with_client(toy, test)


def test_model_that_does_something_unknown_with_images_is_served_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.vision.model._TYPES", ())
    toy = make_toy("gemma3", tmp_path)

    async def test(client: EngineClient, core: TorchCore) -> None:
        assert client.model.vision is not None
        assert "aren't reproduced" in client.model.vision.reason
        await check(client, toy, "text", (CASES[1],))
        with pytest.raises(InvalidInput, match="Images are refused, as with an image the model's own logits"):
            await client.submit(toy.request("a", LONG))

    with_client(toy, test)


def test_rounded_model_is_asked_exactly_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.vision.model._TYPES", ())
    toy = make_toy("gemma3", tmp_path)

    async def test(client: EngineClient, core: TorchCore) -> None:
        assert client.model.vision is not None
        assert "aren't reproduced" in client.model.vision.reason

    with_client(toy, test, kv_cache_dtype="bfloat16")


class Panic(BaseException):
    """What native code raises where it can't go on."""


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError, Panic])
def test_failure_of_the_models_code_fails_its_request_alone(
    toys: dict[str, Toy], monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    toy = toys["llava"]

    def fail(prepared: object) -> None:
        raise kind("out of light")

    async def test(client: EngineClient, core: TorchCore) -> None:
        assert core._looker is not None
        assert core._looker._vision.eyes is not None
        text = asyncio.create_task(check(client, toy, "text", (CASES[1],)))
        with monkeypatch.context() as patched:
            patched.setattr(core._looker._vision.eyes, "look", fail)
            with pytest.raises(GenerationFailed, match="An image could not be computed") as failure:
                await client.submit(toy.request("dark", LONG))
        assert "out of light" not in str(failure.value)  # it may quote what a file says
        await text
        await check(client, toy, "light", (LONG,))

    with_client(toy, test)


def test_words_of_the_models_code_are_told_to_nobody(
    toys: dict[str, Toy], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toys["llava"]

    def refuse(picture: object) -> None:
        raise ArithmeticError("line 7 of mine")

    async def test(client: EngineClient, core: TorchCore) -> None:
        assert core._looker is not None
        with monkeypatch.context() as patched:
            patched.setattr(core._looker._vision.processor, "prepare", refuse)
            with pytest.raises(InvalidImage, match=r"own code doesn't take it \(ArithmeticError\)$"):
                await client.submit(toy.request("dark", LONG))

    with_client(toy, test)


@pytest.mark.parametrize("aborted", [True, False])
def test_prompt_whose_images_are_gone_says_nothing_of_the_engine(
    toys: dict[str, Toy], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, aborted: bool
) -> None:
    toy = toys["llava"]

    async def test(client: EngineClient, core: TorchCore) -> None:
        looker = core._looker
        assert looker is not None
        take, lost = looker.take, threading.Event()

        def late(request_id: str, ids: Integers) -> Sight:
            (core if aborted else looker).abort(request_id)
            lost.set()
            return take(request_id, ids)

        with monkeypatch.context() as patched:
            patched.setattr(looker, "take", late)
            generation = await client.submit(toy.request("gone", LONG))
            assert await asyncio.to_thread(lost.wait, 60)
        if aborted:
            await generation.aclose()
        else:
            with pytest.raises(GenerationFailed, match="its images weren't looked at"):
                await generation.collect()
        await check(client, toy, "there", (LONG,))
        assert ("could not be queued" in caplog.text) is not aborted
        assert doubts == []

    doubts: list[Health] = []
    monkeypatch.setattr(Health, "doubt", lambda health: doubts.append(health))
    with_client(toy, test)


def _all_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each image's tokens see those of all images."""
    monkeypatch.setattr(
        gemma, "get_block_sequence_ids_for_mask", lambda types, device=None: torch.where(types == 1, 0, -1)
    )


def _see_each_other_in_some_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have them see those behind them in the layers with a window alone."""
    make_masks = gemma.create_masks_for_vision_model

    def masks(block_sequence_ids: torch.Tensor, **told: Any) -> dict[str, torch.Tensor]:
        both: dict[str, torch.Tensor] = make_masks(block_sequence_ids=block_sequence_ids, **told)
        return {**both, "full_attention": gemma.create_causal_mask(**told)}

    monkeypatch.setattr(gemma, "create_masks_for_vision_model", masks)


@pytest.mark.parametrize("settings", [{}, {"kv_cache_dtype": "bfloat16"}], ids=["exact", "rounded"])
@pytest.mark.parametrize("change", [_all_see_each_other, _see_each_other_in_some_layers])
def test_other_ways_of_seeing_each_other_are_found_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch], None],
    settings: dict[str, Any],
) -> None:
    change(monkeypatch)
    monkeypatch.setattr("inference.vision.model.is_small", lambda model: False)
    toy = make_toy("gemma3", tmp_path)

    async def test(client: EngineClient, core: TorchCore) -> None:
        assert client.model.vision is not None
        assert "aren't reproduced" in client.model.vision.reason

    with_client(toy, test, **settings)


@pytest.mark.parametrize("knows", [True, False])
def test_what_16_bits_hide_of_images_is_asked_in_float32(
    toys: dict[str, Toy], monkeypatch: pytest.MonkeyPatch, *, knows: bool
) -> None:
    """A GPU rounds rows otherwise by what is beside them, as much as a wrong pattern may change."""
    compared, whole = [], Vision._same_code

    def rounded(self: Vision, *all: Any) -> Verdict:
        dtype = self._model.get_input_embeddings().weight.dtype
        compared.append(dtype)
        return replace(whole(self, *all), holds=dtype == torch.float32 and knows)

    monkeypatch.setattr(Vision, "_same_code", rounded)
    model = deepcopy(toys["llava"].model).to(torch.bfloat16)
    vision = Vision(model, toys["llava"].directory, model.config, 512)
    proof = Proof(model, torch.bfloat16, 512)
    vision.begin(find_layers(model, 512), proof, rounds=True)
    assert compared == [torch.bfloat16, torch.float32]
    assert ("with an image" in vision.reason) is not knows
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
