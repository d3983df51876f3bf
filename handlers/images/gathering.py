"""The images of a request: decoded, fetched, counted; or the one that fails, with its place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from handlers.http.call import Call
from handlers.images.fetching import TooLarge
from handlers.images.hosts import NotFetched
from handlers.images.memory import Hold
from handlers.routes.together import side_by_side
from handlers.wire.images import ITSELF, ImageUrl, check_kind, decoded, refuse
from inference.errors import InvalidImage
from inference.image_formats import FORMATS, image_format
from inference.types import Image

if TYPE_CHECKING:
    from handlers.service import Service


def check_images(service: Service, call: Call[Any], images: Sequence[ImageUrl]) -> None:
    """Raise InvalidInput if the model takes no images, the request has too many, or an URL is of no kind.

    Called once for each part of a body that is worked on by itself: all of them count.
    """
    if not images:
        return
    vision = service.vision
    if vision is None or vision.reason or call.hold is None:
        raise refuse(images[0], vision)
    most = service.settings.max_images
    call.hold.images += len(images)
    if call.hold.images > most:
        raise images[-1].refused(
            f"a request must have at most {most} images (`max_images`). Given: {call.hold.images}. Send fewer"
        )
    for image in images:
        check_kind(image)


async def gather(service: Service, call: Call[Any], images: Sequence[ImageUrl]) -> tuple[Image, ...]:
    """Return images that were checked, in order; equal ones are decoded or fetched once, and shared.

    Raises InvalidInput, or ImagesOverloaded.
    """
    if not images:
        return ()
    assert call.hold is not None, "`check_images` was asked before"
    firsts = list({image.url: image for image in reversed(images)}.values())[::-1]
    whole = [image for image in firsts if image.whole]
    files = await call.aside(partial(_decode, whole)) if whole else []
    for image, data in zip(whole, files, strict=True):
        _count(service, call.hold, image, len(data))
    elsewhere = [image for image in firsts if not image.whole]
    fetched = await _fetch_all(service, call.hold, elsewhere) if elsewhere else []
    urls = [image.url for image in (*whole, *elsewhere)]
    found = {url: Image(data=data) for url, data in zip(urls, [*files, *fetched], strict=True)}
    return tuple(found[image.url] for image in images)


@contextmanager
def placed(images: Sequence[ImageUrl], files: Iterable[Image]) -> Iterator[None]:
    """Have the engine's word on an image that can't be read begin with its place; `files` are theirs."""
    try:
        yield
    except InvalidImage as error:
        for image, file in zip(images, files, strict=True):
            if file is error.image:
                raise image.refused(str(error)) from None
        raise


def _decode(images: Sequence[ImageUrl]) -> list[bytes]:
    return [_checked(image, decoded(image)) for image in images]


async def _fetch_all(service: Service, hold: Hold, images: Sequence[ImageUrl]) -> list[bytes]:
    """Return what is at the addresses of images, some of them fetched at a time, all within one time."""
    if service.settings.image_fetching == "off":
        raise images[0].refused(
            f"Could not fetch image: this server fetches none (`image_fetching`): {ITSELF}"
        )
    seconds = service.settings.image_fetch_timeout
    if hold.deadline is None:
        hold.deadline = asyncio.get_running_loop().time() + seconds

    async def fetch(image: ImageUrl) -> bytes:
        try:
            async with asyncio.timeout_at(hold.deadline), hold.turns:
                return await _fetch(service, hold, image)
        except TimeoutError:
            reason = f"it takes longer than {seconds:g} s (`image_fetch_timeout`)"
            raise image.refused(f"Could not fetch image: {reason}: {ITSELF}") from None

    return await side_by_side([fetch(image) for image in images])


async def _fetch(service: Service, hold: Hold, image: ImageUrl) -> bytes:
    def take(size: int) -> None:
        _count(service, hold, image, size)
        hold.more(size)

    try:
        return _checked(image, await service.fetcher.fetch(image.url, take))
    except TooLarge as error:
        raise image.refused(f"{error} (`max_image_fetch_size`): send a smaller one") from None
    except NotFetched as error:
        raise image.refused(f"Could not fetch image: {error}") from None


def _count(service: Service, hold: Hold, image: ImageUrl, size: int) -> None:
    """Count bytes of images; raise InvalidInput if a request has too many."""
    hold.image_bytes += size
    most = service.settings.max_image_bytes
    if hold.image_bytes > most:
        raise image.refused(
            f"the images of a request must have at most {most} bytes together (`max_image_bytes`). "
            f"Given: {hold.image_bytes} or more. Send smaller ones, or fewer"
        )


def _checked(image: ImageUrl, data: bytes) -> bytes:
    """Return a file that begins as one of an image does; raise InvalidInput in TGI's words."""
    if image_format(data) is None:
        formats = ", ".join(FORMATS[:-1])
        raise image.refused(f"invalid image: it is no {formats} or {FORMATS[-1]}: send one of these")
    return data
