"""The rows about images: a part of the table of settings, for models that see."""

from __future__ import annotations

from dataclasses import dataclass

from handlers import settings_effects as effects
from handlers.settings_table import BYTES, TIMEOUT, Group, choice, host_list, integer, row
from inference.images import ENOUGH_BYTES

IMAGES = Group.IMAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """What a request may bring of images, and which of them are fetched."""

    # fmt: off
    max_images: int = row(32, integer(1, 10_000), IMAGES, "most images in one request",
        unit="images", tgi=False)
    max_image_bytes: int = row(50_000_000, integer(1, ENOUGH_BYTES), IMAGES,
        "all images of one request together, as files", unit="bytes", tgi=False)
    image_payload_limit: int = row(20_000_000, BYTES, IMAGES,
        "largest request body where the model sees, of which no more than --payload-limit may be other than "
        "images", unit="bytes", tgi=False)
    max_image_memory: int = row(536_870_912, BYTES, IMAGES,
        "fetched images, and bodies beyond --payload-limit, that one API worker, or the gateway "
        "of several replicas, holds for requests in flight; one more is refused with 429, on `/v1/messages` "
        "529", unit="bytes", tgi=False)
    image_fetching: str = row("public", choice("public", "named", "off"), IMAGES,
        "which addresses of images are fetched: those of public hosts at the ports 80 and 443, and of "
        "--image-hosts; of --image-hosts alone; or none", tgi=False)
    image_hosts: tuple[str, ...] = row((), host_list, IMAGES,
        "hosts that images may be fetched from wherever they are, such as an object store of your own: "
        "minio.internal:9000, *.example.org", metavar="HOSTS", tgi=False, effect=effects.FETCHED)
    max_image_fetch_size: int = row(20_000_000, integer(0, 2**40), IMAGES,
        "largest image that is fetched; TGI's default is 1 GiB", unit="bytes", effect=effects.FETCHED)
    image_fetch_timeout: float = row(10.0, TIMEOUT, IMAGES,
        "longest that all images of a request may take to be fetched", unit="seconds", tgi=False,
        effect=effects.FETCHED)
    # fmt: on
