"""An engine that pretends to see: an image is a few tokens, which depend on its bytes and on nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256

from inference.config import EngineConfig
from inference.core import Core
from inference.errors import InvalidImage, InvalidInput
from inference.fakes.text import draw
from inference.frontend.client import EngineClient, Generation
from inference.image_formats import FORMATS, image_format
from inference.text.pipeline import TextPipeline
from inference.types import Image, Request, VisionInfo

FAKE_VISION = VisionInfo(token="<image>", placeholder="<image>\n")
IMAGE_TOKENS = 4
BROKEN = b"broken"


class SeeingClient(EngineClient):
    """A client of a FakeCore that sees: it puts tokens in the place of images, as a real one does.

    No image is decoded; what begins as one is one, unless it ends with BROKEN.
    """

    def __init__(
        self,
        core: Core,
        config: EngineConfig,
        load_text: Callable[[], TextPipeline],
        *,
        plausible: Sequence[int],
    ) -> None:
        """`plausible` are the ids that the tokens of images are chosen from."""
        super().__init__(core, config, load_text)
        self._plausible = plausible

    async def submit(self, request: Request) -> Generation:
        """Queue a request; raises what EngineClient does, and InvalidInput for what isn't an image."""
        return await super().submit(await self._looked_at(request))

    async def count(self, request: Request) -> int:
        """Return how many tokens a prompt has; raises as `submit` does."""
        return await super().count(await self._looked_at(request))

    async def _looked_at(self, request: Request) -> Request:
        vision = self.model.vision
        if vision is None or (not request.images and vision.token not in request.prompt):
            return request
        return replace(request, prompt_ids=await self._ids(request, vision), images=())

    async def _ids(self, request: Request, vision: VisionInfo) -> tuple[int, ...]:
        texts = request.prompt.split(vision.token)
        if len(texts) - 1 != len(request.images):
            raise InvalidInput(
                f"the prompt must have `{vision.token}` once for each of {len(request.images)} images. "
                f"Given: {len(texts) - 1} times"
            )
        ids: list[int] = []
        for at, text in enumerate(texts):
            special = request.add_special_tokens and at == 0
            ids += await self._ready_text().encode(text, add_special_tokens=special)
            if at < len(request.images):
                ids += self._seen(request.images[at], at)
        return tuple(ids)

    def _seen(self, image: Image, at: int) -> list[int]:
        if image_format(image.data) is None:
            raise InvalidImage(f"it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]}", at + 1, image)
        if image.data.endswith(BROKEN):
            raise InvalidImage("it is broken", at + 1, image)
        key = int.from_bytes(sha256(image.data).digest()[:8], "big")
        return [self._plausible[draw(key, 0, step, len(self._plausible))] for step in range(IMAGE_TOKENS)]
