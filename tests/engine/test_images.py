"""Prompts with images: the texts are those of transformers' own `generate` with the same pixels."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.config import ModelConfig
from inference.engine.engine import TorchCore
from inference.errors import GenerationFailed, InvalidInput
from inference.frontend.client import EngineClient
from inference.process.spawned import SpawnedCore
from inference.sequences.sight import ImageRows
from inference.types import EngineState, Image, LogprobsMode
from inference.vision.model import placeholder_of
from inference.vision.processor import Prepared
from tests.engine.seeing import (
    CASES,
    LONG,
    Case,
    Toy,
    answer,
    check,
    encoded,
    make_toy,
    picture,
    said,
    with_client,
    with_process,
)

PAGE = Path(__file__).parents[2] / "docs" / "images.md"
SERVED = (
    "llava",
    "llava_next",
    "llava_onevision",
    "vipllava",
    "idefics2",
    "idefics3",
    "smolvlm",
    "internvl",
    "aya_vision",
    "qwen2_vl",
    "qwen2_5_vl",
    "gemma3",
)
# One of each kind: rows alone, marks between them, places in two directions, rows that see those behind them
FEW = ("llava", "idefics3", "qwen2_5_vl", "gemma3")
ONE_IMAGE = ("llava_onevision", "idefics2")  # they make something else of an image beside others


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Toy]:
    return {family: make_toy(family, tmp_path_factory.mktemp(family)) for family in SERVED}


def cases(family: str) -> tuple[Case, ...]:
    return tuple(case for case in CASES if family not in ONE_IMAGE or len(case[1]) < 2)


@pytest.mark.parametrize("family", SERVED)
def test_texts_are_those_of_transformers_alone_and_together(toys: dict[str, Toy], family: str) -> None:
    toy = toys[family]

    async def test(client: EngineClient, core: TorchCore) -> None:
        for at, case in enumerate(cases(family)):
            await check(client, toy, f"alone {at}", (case,))
        await check(client, toy, "together", cases(family))

    with_client(toy, test)


@pytest.mark.parametrize(
    "settings", [{"fuse_layers": False}, {"native_kernels": False}], ids=["native", "paged"]
)
@pytest.mark.parametrize("family", FEW)
def test_texts_are_the_same_at_other_levels(
    toys: dict[str, Toy], family: str, settings: dict[str, Any]
) -> None:
    async def test(client: EngineClient, core: TorchCore) -> None:
        await check(client, toys[family], "together", cases(family))
        await check(client, toys[family], "again", cases(family))

    with_client(toys[family], test, **settings)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "paged"])
@pytest.mark.parametrize("family", ["llava", "idefics3"])
def test_texts_are_the_same_on_the_path_that_gpus_take(toys: dict[str, Toy], family: str, fuse: bool) -> None:
    async def test(client: EngineClient, core: TorchCore) -> None:
        assert client.model.level.startswith("fused" if fuse else "paged")
        await check(client, toys[family], "together", cases(family))
        await check(client, toys[family], "again", cases(family))

    with_client(toys[family], test, device_path=True, fuse_layers=fuse, max_batch_size=4)


@pytest.mark.parametrize("family", ["qwen2_vl", "gemma3"])
def test_what_kernels_of_gpus_know_nothing_of_is_refused_on_the_path_that_they_take(
    toys: dict[str, Toy], family: str
) -> None:
    async def test(client: EngineClient, core: TorchCore) -> None:
        assert client.model.vision is not None
        assert "on CPUs alone" in client.model.vision.reason
        await check(client, toys[family], "text", (CASES[1],))

    with_client(toys[family], test, device_path=True)


@pytest.mark.parametrize("family", FEW)
def test_weights_in_16_bits_round_no_pixel(tmp_path: Path, family: str) -> None:
    toy = make_toy(family, tmp_path, narrow=True)

    async def test(client: EngineClient, core: TorchCore) -> None:
        await check(client, toy, "narrow", cases(family))

    with_client(toy, test)


@pytest.mark.parametrize("family", FEW)
def test_preempted_texts_with_images_are_what_they_would_have_been(toys: dict[str, Toy], family: str) -> None:
    toy = toys[family]
    preempted = []

    async def test(client: EngineClient, core: TorchCore) -> None:
        client.add_listener(lambda stats: preempted.append(stats.preempted))
        several: list[Case] = [("What {} is this?", (seed,)) for seed in (1, 3, 5, 2, 4, 6)]
        wanted = [toy.generate(case, 70)[0] for case in several]
        for at, case in enumerate(several):  # looked at before, so that none ends before another begins
            await answer(client, toy.request(f"before {at}", case, max_new_tokens=1))
        for turn in range(5):  # on a busy machine some may end before others have begun
            asked = [
                answer(client, toy.request(f"{turn} {at}", case, max_new_tokens=70))
                for at, case in enumerate(several)
            ]
            assert [said(events) for events in await asyncio.gather(*asked)] == wanted
            if sum(preempted):
                return

    with_client(toy, test, max_batch_total_tokens=256, max_total_tokens=160, max_batch_prefill_tokens=32)
    assert sum(preempted) > 0


@pytest.mark.parametrize("family", FEW)
def test_prefix_cache_knows_equal_images_from_others(toys: dict[str, Toy], family: str) -> None:
    toy = toys[family]

    async def cached(client: EngineClient, id: str, case: Case) -> int:
        finish = (await answer(client, toy.request(id, case)))[-1].finish
        assert finish is not None
        return finish.cached_tokens

    async def test(client: EngineClient, core: TorchCore) -> None:
        text = "{} is what I mean, as I have said so often before, and will again."
        length = toy.generate((text, (1,)))[1]
        assert await cached(client, "first", (text, (1,))) == 0
        assert await cached(client, "same", (text, (1,))) == (length - 1) // 16 * 16
        assert await cached(client, "other, of the same size", (text, (3,))) == 0
        assert await cached(client, "same again", (text, (1,))) == (length - 1) // 16 * 16

    with_client(toy, test)


@pytest.mark.parametrize("family", FEW)
def test_guessed_tokens_change_nothing(toys: dict[str, Toy], family: str) -> None:
    async def test(client: EngineClient, core: TorchCore) -> None:
        await check(client, toys[family], "guessing", cases(family))

    with_client(toys[family], test, speculate=3)


def test_prompt_logprobs_have_the_images_tokens_among_them(toys: dict[str, Toy]) -> None:
    toy = toys["llava"]

    async def test(client: EngineClient, core: TorchCore) -> None:
        asked = toy.request("a", LONG, logprobs=LogprobsMode.RAW, prompt_logprobs=True)
        first = (await answer(client, asked))[0]
        assert len(first.prompt) == toy.generate(LONG)[1]
        assert [token.text for token in first.prompt].count("<image>") == 16
        assert all(token.logprob is not None for token in first.prompt[1:])

    with_client(toy, test)


def test_repeated_image_is_looked_at_once(toys: dict[str, Toy], monkeypatch: pytest.MonkeyPatch) -> None:
    toy = toys["llava"]
    looks: list[tuple[int, ...]] = []

    async def test(client: EngineClient, core: TorchCore) -> None:
        assert core._looker is not None
        eyes = core._looker._vision.eyes
        assert eyes is not None
        look = eyes.look

        def noted(prepared: Prepared) -> ImageRows:
            looks.append(prepared.ids)
            return look(prepared)

        monkeypatch.setattr(eyes, "look", noted)
        await check(client, toy, "first", (LONG,))
        await check(client, toy, "second", (LONG, ("Now {} and {}", (1, 2))))

    with_client(toy, test)
    assert len(looks) == 2


@pytest.mark.parametrize("form", ["JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_image_may_be_of_any_usual_format(toys: dict[str, Toy], form: str) -> None:
    toy = toys["llava"]
    lossless = {"WEBP": {"lossless": True}}.get(form, {})

    async def test(client: EngineClient, core: TorchCore) -> None:
        request = toy.request("a", LONG)
        events = await answer(
            client, replace(request, images=(Image(data=encoded(picture(1), form, **lossless)),))
        )
        if form in ("WEBP", "TIFF", "BMP"):
            assert said(events) == toy.generate(LONG)[0]
        assert len(events) > 0

    with_client(toy, test)


def test_aborted_requests_leave_no_image_held(toys: dict[str, Toy]) -> None:
    toy = toys["llava"]

    async def test(client: EngineClient, core: TorchCore) -> None:
        tasks = [
            asyncio.create_task(client.submit(toy.request(str(at), ("{} {}", (at, at + 1)))))
            for at in range(12)
        ]
        await asyncio.sleep(0.02)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for each in done:
            if not isinstance(each, BaseException):
                await each.aclose()
        await asyncio.sleep(0.1)
        await check(client, toy, "afterwards", CASES)

    with_client(toy, test)


def test_images_cross_to_an_engine_in_a_process_of_its_own(toys: dict[str, Toy]) -> None:
    toy = toys["qwen2_5_vl"]

    async def test(client: EngineClient) -> None:
        await check(client, toy, "first", CASES)
        bad = replace(toy.request("bad", LONG), images=(Image(data=b"no image"),))
        with pytest.raises(InvalidInput, match="invalid image: it is no PNG"):
            await client.submit(bad)
        task = asyncio.create_task(client.submit(toy.request("gone", ("{}{}", (7, 8)))))
        await asyncio.sleep(0)
        task.cancel()
        await check(client, toy, "second", CASES)

    with_process(toy, test)


def test_engine_that_dies_while_it_looks_fails_the_request_and_takes_the_next(toys: dict[str, Toy]) -> None:
    toy = toys["llava"]

    async def test(client: EngineClient) -> None:
        core = client._core
        assert isinstance(core, SpawnedCore)
        await check(client, toy, "before", (LONG,))
        assert core.process.pid is not None
        os.kill(core.process.pid, signal.SIGSTOP)  # it must not have seen all of them before it dies
        task = asyncio.create_task(client.submit(toy.request("lost", ("{}" * 8, tuple(range(20, 28))))))
        while "lost" not in client._looks._waiting:  # noqa: ASYNC110 - the client tells nobody
            await asyncio.sleep(0)
        os.kill(core.process.pid, signal.SIGKILL)
        with pytest.raises(GenerationFailed, match="The engine stopped"):
            await task
        while client.state is not EngineState.READY:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await check(client, toy, "after", (LONG,))

    with_process(toy, test)


def test_page_says_which_families_are_shown_images() -> None:
    rows = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    said = {family.strip(): shown.strip() for family, shown in rows}
    assert {each for each, shown in said.items() if shown == "yes"} == set(SERVED) - set(ONE_IMAGE)
    assert {each for each, shown in said.items() if shown == "one in a prompt"} == set(ONE_IMAGE)


@pytest.mark.parametrize("family", FEW)
def test_bits_of_log_probabilities_do_not_depend_on_company(toys: dict[str, Toy], family: str) -> None:
    toy = toys[family]
    several = cases(family)

    async def told(client: EngineClient, run: str, at: int) -> list[float]:
        request = toy.request(f"{run} {at}", several[at], logprobs=LogprobsMode.RAW, cache_salt=run)
        return [event.token.logprob for event in await answer(client, request)]

    async def test(client: EngineClient, core: TorchCore) -> None:
        if not client.model.deterministic:
            pytest.skip("nothing of the kind is promised")
        alone = [await told(client, "alone", at) for at in range(len(several))]
        assert alone == await asyncio.gather(*(told(client, "together", at) for at in range(len(several))))

    with_client(toy, test)


@pytest.mark.parametrize(
    ("family", "placeholder"),
    [("llava", "<image>"), ("qwen2_5_vl", "<|vision_start|><|image_pad|><|vision_end|>")],
)
def test_what_prompts_have_for_an_image_is_read_off_the_chat_template(
    toys: dict[str, Toy], family: str, placeholder: str
) -> None:
    directory = toys[family].directory
    assert placeholder_of(directory, ModelConfig(model_id=str(directory))) == placeholder


def test_model_is_served_without_images_where_its_processor_is_missing(tmp_path: Path) -> None:
    toy = make_toy("llava", tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()

    async def test(client: EngineClient, core: TorchCore) -> None:
        assert client.model.vision is not None
        assert "its processor can't be loaded" in client.model.vision.reason
        await check(client, toy, "text", (CASES[1],))

    with_client(toy, test)


def test_model_is_served_without_images_where_pillow_is_missing(
    toys: dict[str, Toy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "inference.vision.processor")

    async def test(client: EngineClient, core: TorchCore) -> None:
        assert client.model.vision is not None
        assert "pip install pillow" in client.model.vision.reason
        await check(client, toys["llava"], "text", (CASES[1],))

    with_client(toys["llava"], test)
