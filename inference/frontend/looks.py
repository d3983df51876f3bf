"""The images of requests that aren't queued yet: shown to the core, and waited for on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from inference.core import Core, SeeingCore
from inference.errors import GenerationFailed, InvalidImage, InvalidInput, Member
from inference.images import ENOUGH_BYTES, distinct
from inference.types import Looked, ModelInfo, Request, VisionInfo

if TYPE_CHECKING:
    from inference.text.pipeline import TextPipeline

Tokens = tuple[tuple[int, ...], ...]  # that stand for each image


class Looks:
    """What requests wait for; used on the event loop."""

    def __init__(self, core: Core, salt: Callable[[Request], str]) -> None:
        """`salt` separates what is kept of a request's images from others'."""
        self._core = core
        self._salt = salt
        self._waiting: dict[str, asyncio.Future[Tokens]] = {}
        self._turn = asyncio.Lock()  # whoever has it is the next to be shown
        self._shown = 0  # bytes of images that are being looked at
        self._less = asyncio.Event()  # they have become fewer

    async def look(self, request: Request) -> Tokens:
        """Return the tokens of each of a request's images; raise InvalidInput or GenerationFailed."""
        if not isinstance(self._core, SeeingCore):
            raise InvalidInput("The engine takes no images: send text alone")
        size = sum(map(len, distinct(request.images)[0]))
        if size > ENOUGH_BYTES:
            raise InvalidInput(
                f"the images of a request must have <= {ENOUGH_BYTES} bytes together. Given: {size}: "
                "send fewer, or smaller ones"
            )
        waiting = self._waiting[request.id] = asyncio.get_running_loop().create_future()
        try:
            async with self._room(size):
                if not waiting.done():  # it was failed while others were looked at
                    self._core.look(request.id, request.images, self._salt(request))
                return await waiting
        except InvalidImage as error:
            raise InvalidImage(error.why, error.number, request.images[error.number - 1]) from None
        finally:
            del self._waiting[request.id]

    @asynccontextmanager
    async def _room(self, size: int) -> AsyncIterator[None]:
        """Wait until few enough bytes are looked at, first come, first served.

        The core looks at one request after the other, and each sequence of a body shows it the same images:
        all at once they would lie there many times.
        """
        async with self._turn:
            while self._shown and self._shown + size > ENOUGH_BYTES:
                self._less.clear()
                await self._less.wait()
            self._shown += size
        try:
            yield
        finally:
            self._shown -= size
            self._less.set()

    def drop(self, request: Request) -> None:
        """Have the core forget the images of a request that won't be submitted."""
        if request.images:
            self._core.abort(request.id)

    def deliver(self, looked: Looked) -> None:
        """Tell who waits what became of the images."""
        waiting = self._waiting.get(looked.id)
        if waiting is None or waiting.done():
            return
        if not looked.message:
            waiting.set_result(looked.images)
        elif looked.which:
            waiting.set_exception(InvalidImage(looked.message, looked.which))
        elif looked.invalid:
            about = (Member(looked.member),) if looked.member else ()
            waiting.set_exception(InvalidInput(*about, looked.message))
        else:
            waiting.set_exception(GenerationFailed(looked.message))

    def fail(self, request_id: str, message: str) -> None:
        """Tell who waits that nothing more will come."""
        self.deliver(Looked(request_id, message=message))

    def fail_all(self, message: str) -> None:
        """Tell everyone who waits the same."""
        for request_id in list(self._waiting):
            self.fail(request_id, message)


def check_images(request: Request, model: ModelInfo) -> None:
    """Raise InvalidInput for images that can't be shown to the model."""
    if not request.images:
        return
    if model.vision is None:
        raise InvalidInput("The model takes no images: send text alone, or serve a model that sees")
    if model.vision.reason:
        raise InvalidInput(f"Images are refused, as {model.vision.reason}. Send text alone")
    if request.adapter is not None:
        raise InvalidInput(Member("adapter_id"), " can't be had with images: leave out one of them")


async def with_images(
    request: Request, ids: tuple[int, ...], text: TextPipeline, vision: VisionInfo, looks: Looks
) -> tuple[int, ...]:
    """Return a prompt's tokens with those of its images in the places of their marks.

    Raises InvalidInput unless there is a mark for each, or if `truncate` would cut one.
    """
    mark = await text.encode(vision.token, add_special_tokens=False)
    places = [at for at, token in enumerate(ids) if [token] == mark]
    by_ids = len(mark) == 1 or request.prompt_ids is not None
    marks = len(places) if by_ids else request.prompt.count(vision.token)
    if marks != len(request.images):
        raise InvalidInput(
            f"there must be one `{vision.token}`, which marks an image in this model's prompts, for each "
            f"image. Given: {marks} and {len(request.images)} images: leave it out of texts, and send images "
            "as images"
        )
    whole, first, rows = list(ids), len(ids), 0
    if request.images:
        images = await looks.look(request)
        if request.prompt_ids is not None:  # which have no text around the marks
            edges = [
                await text.encode(each, add_special_tokens=False) for each in (vision.before, vision.behind)
            ]
            images = tuple((*edges[0], *each, *edges[1]) for each in images)
        whole, first = spliced(ids, places, images)
        rows = sum(each.count(vision.row_id) for each in images)
    if whole.count(vision.row_id) != rows:
        raise InvalidInput(
            f"token {vision.row_id} stands for a part of an image in this model's prompts: leave it out of "
            "texts"
        )
    cut = 0 if request.truncate is None else max(len(whole) - request.truncate, 0)
    if request.images and cut > first:
        raise InvalidInput(
            Member("truncate"),
            f" must leave images whole: {len(whole) - first} tokens are those of the first and "
            f"what follows. Given: {request.truncate}",
        )
    return tuple(whole[cut:])


def spliced(
    ids: Sequence[int], places: Sequence[int], images: Sequence[Sequence[int]]
) -> tuple[list[int], int]:
    """Return tokens with images' own in these places, rising, and where the first image begins."""
    whole: list[int] = []
    done = 0
    for place, tokens in zip(places, images, strict=True):
        whole += (*ids[done:place], *tokens)
        done = place + 1
    return [*whole, *ids[done:]], places[0]
