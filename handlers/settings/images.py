"""The rows about images: a part of the table of settings, for models that see."""

from __future__ import annotations

from dataclasses import dataclass

from handlers.settings import effects as effects
from handlers.settings.row import BYTES, TIMEOUT, Group, choice, host_list, integer, row
from inference.images import ENOUGH_BYTES

IMAGES = Group.IMAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """What a request may bring of images, and which of them are fetched."""

    # fmt: off
    max_images: int = row(32, integer(1, 10_000), IMAGES, "most images in one request",
        unit="images", tgi=False)
    max_image_bytes: int = row(50_000_000, integer(1, ENOUGH_BYTES), IMAGES,
        "most bytes of all images of one request together, as files", unit="bytes", tgi=False)
    image_payload_limit: int = row(20_000_000, BYTES, IMAGES,
        "largest request body if the model takes images; whatever in it isn't an image still has to fit "
        "--payload-limit", unit="bytes", tgi=False, effect=effects.LARGER_WITH_IMAGES)
    max_image_memory: int = row(536_870_912, BYTES, IMAGES,
        "most memory for fetched images, and for bodies larger than --payload-limit, of all requests in "
        "flight, in one API worker or in the gateway of several replicas; beyond it the answer is 429 (529 "
        "on `/v1/messages`)", unit="bytes", tgi=False)
    image_fetching: str = row("public", choice("public", "named", "off"), IMAGES,
        "which addresses of images are fetched. public: those of public hosts at the ports 80 and 443, and "
        "of --image-hosts; named: those of --image-hosts alone; off: none", tgi=False)
    image_hosts: tuple[str, ...] = row((), host_list, IMAGES,
        "hosts that images may be fetched from although they aren't public, such as an object store of your "
        "own: minio.internal:9000, *.example.org", metavar="HOSTS", tgi=False, effect=effects.FETCHED)
    max_image_fetch_size: int = row(20_000_000, integer(0, 2**40), IMAGES,
        "largest image that is fetched; TGI's default is 1 GiB", unit="bytes", effect=effects.FETCHED)
    image_fetch_timeout: float = row(10.0, TIMEOUT, IMAGES,
        "longest that fetching all images of one request may take", unit="seconds", tgi=False,
        effect=effects.FETCHED)
    # fmt: on
