"""Images before their prompt is queued: asked of the core, answered once, and dropped with the request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from inference.config import EngineConfig
from inference.errors import GenerationFailed, InferenceError, InvalidImage, InvalidInput, Member
from inference.frontend.client import EngineClient
from inference.frontend.looks import check_images, spliced
from inference.images import ENOUGH_BYTES, distinct
from inference.types import CoreRequest, FinishReason, Frame, Image, Looked, ModelInfo, Request, VisionInfo
from tests.unit.inference.puppet import MODEL, TOKENIZER, Puppet, load_text, with_puppet

MARK = "<|im_start|>"
(MARK_ID,) = TOKENIZER.encode(MARK, add_special_tokens=False)
X, Y, Z = TOKENIZER.encode("xyz", add_special_tokens=False)
ROW = MODEL.vocabulary_size - 1
SEEING = replace(MODEL, vision=VisionInfo(token=MARK, placeholder=MARK, row_id=ROW))
IMAGES = (Image(data=b"one"), Image(data=b"two"))
REQUEST = Request(id="a", prompt=f"x{MARK}y{MARK}z", images=IMAGES)
TOKENS, A = ((ROW,), (5, ROW, ROW, 6)), Member("a")


class Seeing(Puppet):
    """A core that is shown images, and says what the test has it say."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[tuple[str, tuple[Image, ...]]] = []

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        return SEEING

    def look(self, request_id: str, images: tuple[Image, ...], salt: str) -> None:
        self.shown.append((request_id, images))

    def looked(self, *images: tuple[int, ...], **why: Any) -> None:
        self.sink(Frame((), looked=(Looked("a", images, **why),)))


def with_seeing(test: Callable[[EngineClient, Seeing], Awaitable[None]]) -> None:
    """Run a test with a client of a core that sees."""

    async def run() -> None:
        core = Seeing()
        client = EngineClient(core, EngineConfig(), load_text)
        await client.start(lambda message: None)
        await test(client, core)
        await client.close()

    asyncio.run(run())


async def asked(client: EngineClient, core: Seeing, request: Request = REQUEST) -> asyncio.Task[Any]:
    """Return a submission whose images the core has been shown."""
    task = asyncio.create_task(client.submit(request))
    await shown(core)
    return task


async def shown(core: Seeing, requests: int = 1) -> None:
    """Wait until the core has been shown so many requests' images."""
    while len(core.shown) < requests:  # noqa: ASYNC110 - the client tells nobody
        await asyncio.sleep(0)


async def settled() -> None:
    """Have whatever can go on do so."""
    for _ in range(100):
        await asyncio.sleep(0)


def test_tokens_of_images_come_in_the_places_of_their_marks() -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        task = await asked(client, core)
        assert core.shown == [("a", IMAGES)]
        assert core.requests == []
        core.looked(*TOKENS)
        generation = await task
        (queued,) = core.requests
        assert queued.prompt_ids == (X, ROW, Y, 5, ROW, ROW, 6, Z)
        assert queued.images == 2
        core.say("a", "b", FinishReason.LENGTH)
        (event,) = await generation.collect()
        assert event.finish is not None
        assert event.finish.prompt_tokens == 8
        assert core.aborted == []

    with_seeing(test)


@pytest.mark.parametrize("error", [InvalidInput("torn"), InvalidInput(A, "torn"), GenerationFailed("torn")])
def test_what_becomes_of_a_bad_image_is_said_once(error: InferenceError) -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        task = await asked(client, core)
        core.looked(message="torn", invalid=isinstance(error, InvalidInput), member="a" * (A in error.args))
        with pytest.raises(type(error)) as raised:
            await task
        assert raised.value.args == error.args
        core.looked(*TOKENS)  # too late, and for nobody
        assert core.requests == []

    with_seeing(test)


def test_image_that_can_not_be_read_is_told_which_it_is() -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        task = await asked(client, core)
        core.looked(message="it is torn", invalid=True, which=2)
        with pytest.raises(InvalidImage, match=r"^invalid image: it is torn$") as refusal:
            await task
        assert refusal.value.image is IMAGES[1]

    with_seeing(test)


def test_no_more_images_are_shown_at_a_time_than_one_request_may_have() -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        large = (Image(data=bytes(ENOUGH_BYTES // 2)), IMAGES[1])
        tasks = [await asked(client, core, replace(REQUEST, id=name, images=large)) for name in "abc"]
        await settled()
        assert [name for name, _ in core.shown] == ["a"]
        tasks[1].cancel()
        core.looked(*TOKENS)
        await tasks[0]
        await settled()
        assert [name for name, _ in core.shown] == ["a", "c"]
        core.fail("c")
        with pytest.raises(GenerationFailed, match="out of paper"):
            await tasks[2]

    with_seeing(test)


def test_closing_the_client_fails_who_has_not_been_shown_yet() -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        large = (Image(data=bytes(ENOUGH_BYTES // 2)), IMAGES[1])
        tasks = [await asked(client, core, replace(REQUEST, id=name, images=large)) for name in "abc"]
        await settled()
        await client.close()
        for task in tasks:
            with pytest.raises(GenerationFailed, match="shuts down"):
                await task
        assert [name for name, _ in core.shown] == ["a"]

    with_seeing(test)


def test_engine_that_dies_fails_who_waits_for_it() -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        task = await asked(client, core)
        core.fail("a")
        with pytest.raises(GenerationFailed, match="out of paper"):
            await task

    with_seeing(test)


def test_closing_the_client_fails_who_waits() -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        task = await asked(client, core)
        await client.close()
        with pytest.raises(GenerationFailed, match="shuts down"):
            await task

    with_seeing(test)


def test_caller_that_leaves_has_its_images_dropped() -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        task = await asked(client, core)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert core.aborted == ["a"]

    with_seeing(test)


def test_prompt_that_is_too_long_with_its_images_has_them_dropped() -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        task = await asked(client, core)
        core.looked((ROW,) * 30, (ROW,))
        with pytest.raises(InvalidInput, match=r"must be <= 30\. Given: 34 `inputs` tokens"):
            await task
        assert core.aborted == ["a"]
        assert core.requests == []

    with_seeing(test)


def test_id_that_is_in_use_is_refused_and_takes_nothing_away() -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        task = await asked(client, core)
        with pytest.raises(ValueError, match="request id 'a' is in use"):
            await client.submit(REQUEST)
        core.looked(*TOKENS)
        await task
        with pytest.raises(ValueError, match="request id 'a' is in use"):
            await client.submit(REQUEST)
        assert core.aborted == []

    with_seeing(test)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (replace(REQUEST, images=()), "Given: 2 and 0 images"),
        (replace(REQUEST, prompt="x"), "Given: 0 and 2 images"),
        (replace(REQUEST, prompt_ids=(X, MARK_ID)), "Given: 1 and 2 images"),
        (replace(REQUEST, images=(), prompt="x", prompt_ids=(X, ROW)), "stands for a part of an image"),
        (
            replace(REQUEST, images=(Image(data=bytes(ENOUGH_BYTES)), *IMAGES[1:])),
            rf"must have <= {ENOUGH_BYTES} bytes together\. Given: {ENOUGH_BYTES + 3}: send fewer",
        ),
    ],
    ids=["marks alone", "images alone", "marks in ids", "rows in ids", "too large"],
)
def test_images_and_marks_must_go_together(request_: Request, message: str) -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        with pytest.raises(InvalidInput, match=message):
            await client.submit(request_)
        assert core.requests == []

    with_seeing(test)


def test_id_is_in_use_while_its_prompt_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        async def encode(*arguments: Any, **options: Any) -> Any:
            await free.wait()
            return await tokenise(*arguments, **options)

        free = asyncio.Event()
        assert client._text is not None
        tokenise = client._text.encode
        monkeypatch.setattr(client._text, "encode", encode)
        first = asyncio.create_task(client.submit(REQUEST))
        await settled()
        assert core.shown == []
        with pytest.raises(ValueError, match="request id 'a' is in use"):
            await client.submit(REQUEST)
        assert core.aborted == []
        free.set()
        await shown(core)
        core.looked(*TOKENS)
        await first

    with_seeing(test)


def test_request_that_can_not_be_queued_has_its_images_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        def refuse(request: CoreRequest) -> None:
            raise RuntimeError("out of ink")

        task = await asked(client, core)
        with monkeypatch.context() as patched:
            patched.setattr(core, "submit", refuse)
            core.looked(*TOKENS)
            with pytest.raises(RuntimeError, match="out of ink"):
                await task
        assert core.aborted == ["a"]
        again = asyncio.create_task(client.submit(REQUEST))  # the id is free
        await shown(core, 2)
        core.looked(*TOKENS)
        await again

    with_seeing(test)


def test_image_that_comes_several_times_counts_once() -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        image = Image(data=bytes(ENOUGH_BYTES // 2 + 1))
        task = await asked(client, core, replace(REQUEST, images=(image, image)))
        core.looked(*TOKENS)
        await task

    with_seeing(test)


def test_images_have_the_files_that_they_came_with() -> None:
    one, two = IMAGES
    images = (two, one, two, Image(data=one.data))
    files, which = distinct(images)
    assert files == (two.data, one.data)
    assert tuple(files[each] for each in which) == tuple(each.data for each in images)


@pytest.mark.parametrize("kept", [7, 8, 20])
def test_truncating_leaves_images_whole(kept: int) -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        task = await asked(client, core, replace(REQUEST, truncate=kept))
        core.looked(*TOKENS)
        await task
        assert core.requests[0].prompt_ids == (X, ROW, Y, 5, ROW, ROW, 6, Z)[-kept:]

    with_seeing(test)


def test_truncating_never_cuts_an_image() -> None:
    async def test(client: EngineClient, core: Seeing) -> None:
        task = await asked(client, core, replace(REQUEST, truncate=6))
        core.looked(*TOKENS)
        with pytest.raises(InvalidInput, match=r"must leave images whole: 7 tokens .* Given: 6"):
            await task
        assert core.aborted == ["a"]

    with_seeing(test)


def test_core_that_takes_no_images_is_shown_none() -> None:
    async def test(client: EngineClient, core: Puppet) -> None:
        with pytest.raises(InvalidInput, match="The model takes no images"):
            await client.submit(REQUEST)
        assert core.requests == []

    with_puppet(test)


@pytest.mark.parametrize(
    ("model", "request_", "message"),
    [
        (MODEL, REQUEST, "The model takes no images"),
        (
            replace(MODEL, vision=VisionInfo(token="", placeholder="", reason="it is dark")),
            REQUEST,
            "Images are refused, as it is dark",
        ),
        (SEEING, replace(REQUEST, adapter="a"), "`adapter_id` can't be had with images"),
    ],
    ids=["blind", "refused", "adapter"],
)
def test_images_that_nobody_can_be_shown_are_refused(
    model: ModelInfo, request_: Request, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_images(request_, model)
    check_images(replace(request_, images=()), model)


def test_images_may_lie_side_by_side_and_at_the_ends() -> None:
    assert spliced([1, 1, 2, 1], [0, 1, 3], [(7, 7), (8,), (9,)]) == ([7, 7, 8, 2, 9], 0)
