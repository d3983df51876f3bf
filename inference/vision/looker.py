"""The thread that looks at images: it reads files, and has the model's eyes make rows of them.

It works beside the engine's own thread, which goes on with what others wait for. What it has made waits
under the request's id until the prompt comes, or nothing more is wanted of the request.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from inference.errors import InvalidImage, InvalidInput, Member
from inference.sequences.sight import Sight
from inference.sequences.state import Integers
from inference.shortage import is_shortage
from inference.types import CoreRequest, Image, Looked
from inference.vision.model import Vision
from inference.vision.reader import ImageReader
from inference.vision.store import ImageStore, Stored

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Wish:
    """Images that are to be looked at."""

    request_id: str
    images: tuple[Image, ...]
    salt: str

    def key_of(self, image: Image) -> bytes:
        """Return what an image is known by: who salts otherwise finds nothing, and no time tells of it."""
        salt = hashlib.blake2b(self.salt.encode()).digest()
        return hashlib.blake2b(image.data, digest_size=16, key=salt).digest()


class _Unwanted(Exception):
    """Nothing more is wanted of the request."""


class NotLookedAt(ValueError):
    """A request's images aren't those that were looked at for it: its own fault, not the engine's."""


class Looker:
    """Looks at images, one request's after the other's; called from any thread."""

    def __init__(
        self,
        vision: Vision,
        store: ImageStore,
        max_input_tokens: int,
        told: Callable[[Looked], None],
        *,
        threads: int = 1,
    ) -> None:
        """`told` is called from its thread; `threads` are torch's there."""
        self._vision = vision
        self._store = store
        self._most_tokens = max_input_tokens
        self._told = told
        self._threads = threads
        self._reader = ImageReader()
        self._wishes: deque[_Wish] = deque()
        self._leases: dict[str, list[bytes]] = {}  # the images held for a request that is known
        self._stopping = False
        self._wake = threading.Condition()  # guards the three above
        self._thread = threading.Thread(target=self._run, name="images", daemon=True)
        self._thread.start()

    def look(self, request_id: str, images: tuple[Image, ...], salt: str) -> None:
        """Queue a request's images."""
        with self._wake:
            self._leases[request_id] = []
            self._wishes.append(_Wish(request_id, images, salt))
            self._wake.notify()

    def take(self, request_id: str, ids: Integers) -> Sight:
        """Return what a prompt sees, whose images have been looked at; its holder releases it.

        Raises ValueError for a prompt whose tokens don't stand for those images.
        """
        with self._wake:
            keys = self._leases.pop(request_id, None)
        if not keys:
            raise ValueError("its images weren't looked at")
        stored = [self._store.hold(key) for key in keys]
        self._store.release(keys)  # once of the two
        try:
            images = [each.image for each in stored if each is not None]
            return self._vision.sight(ids, keys, images, lambda: self._store.release(keys))
        except BaseException:
            self._store.release(keys)
            raise

    def abort(self, request_id: str) -> None:
        """Forget a request whose prompt hasn't come; others are ignored."""
        with self._wake:
            keys = self._leases.pop(request_id, None)
            if keys is None:
                return
            self._wishes = deque(wish for wish in self._wishes if wish.request_id != request_id)
        self._store.release(keys)

    def close(self) -> None:
        """End the thread, and the process that reads files."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._store.close()
        self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # OpenMP keeps the number per calling thread
        while True:
            with self._wake:
                while not self._wishes and not self._stopping:
                    self._wake.wait()
                if self._stopping:
                    return
                wish = self._wishes.popleft()
            self._serve(wish)

    def _serve(self, wish: _Wish) -> None:
        try:
            looked = Looked(wish.request_id, self._look(wish))
        except _Unwanted:
            return
        except InvalidImage as error:
            looked = Looked(wish.request_id, message=error.why, invalid=True, which=error.number)
        except InvalidInput as error:
            # A member stands first, if at all
            member, words = ("", error.args) if error.member is None else (error.member.path, error.args[1:])
            looked = Looked(wish.request_id, message="".join(words), invalid=True, member=member)
        except BaseException as error:  # even a panic of native code: the next request's turn must come
            LOG.exception("The images of request %s could not be looked at", wish.request_id)
            why = "memory was too short for it" if is_shortage(error) else type(error).__name__
            looked = Looked(wish.request_id, message=f"An image could not be computed: {why}")
        if looked.message:
            self.abort(wish.request_id)
        self._told(looked)

    def _look(self, wish: _Wish) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of each image; raise InvalidInput, _Unwanted, or what the model's code does."""
        most = self._vision.most
        if most and len(wish.images) > most:
            raise InvalidInput(
                f"a prompt of this model must have <= {most} image, as it computes several otherwise. "
                f"Given: {len(wish.images)}"
            )
        found: list[tuple[int, ...]] = []
        sizes: dict[bytes, int] = {}
        for number, image in enumerate(wish.images, start=1):
            key = wish.key_of(image)
            stored = self._store.hold(key)
            if stored is None:
                stored = self._made(image, number, sum(map(len, found)))
                self._put(wish.request_id, key, stored, sum(sizes.values()))
            sizes[key] = stored.nbytes
            with self._wake:
                lease = self._leases.get(wish.request_id)
                if lease is not None:
                    lease.append(key)
            if lease is None:
                self._store.release([key])
                raise _Unwanted
            found.append(stored.ids)
        return tuple(found)

    def _made(self, image: Image, number: int, before: int) -> Stored:
        """Return an image, the request's `number`th, that has `before` tokens of others before it."""
        try:
            picture = self._reader.read(image.data)
        except InvalidImage as error:
            raise InvalidImage(error.why, number) from error
        try:
            prepared = self._vision.processor.prepare(picture)
        except Exception as error:  # it may not take images of such a form, and say so in any way
            if is_shortage(error):
                raise
            LOG.warning("A model's own code doesn't take an image", exc_info=error)
            why = f"the model's own code doesn't take it ({type(error).__name__})"
            raise InvalidImage(why, number) from error
        tokens = before + len(prepared.ids)
        if tokens > self._most_tokens:
            raise InvalidInput(
                Member("inputs"),
                f" must have less than {self._most_tokens} tokens. Given: {tokens} of its images alone",
            )
        assert self._vision.eyes is not None, "it is there where images aren't refused"
        return Stored(prepared.ids, self._vision.eyes.look(prepared))

    def _put(self, request_id: str, key: bytes, stored: Stored, held: int) -> None:
        """Keep an image of a request whose others take `held` bytes: it must never wait for itself.

        Nor must other requests wait for one that is gone.
        """
        if held + stored.nbytes > self._store.capacity:
            raise InvalidInput(
                f"the images of a prompt must take <= {self._store.capacity:,} bytes as the model sees them. "
                f"Given: {held + stored.nbytes:,}: send fewer, or smaller ones"
            )
        if not self._store.put(key, stored, lambda: request_id in self._leases):
            raise _Unwanted


def sight_of(request: CoreRequest, looker: Looker | None) -> Sight | None:
    """Return what a request's prompt sees; raise NotLookedAt if its images aren't those looked at."""
    if not request.images:
        return None
    if looker is None:
        raise NotLookedAt("the model takes no images")
    try:
        return looker.take(request.id, np.array(request.prompt_ids, dtype=np.int64))
    except ValueError as error:
        raise NotLookedAt(str(error)) from None


def add_seeing(
    add: Callable[[CoreRequest, Sight | None], None], request: CoreRequest, looker: Looker | None
) -> None:
    """Queue a request by `add`, with what it sees: that is released if it can't be queued."""
    sight = sight_of(request, looker)
    try:
        add(request, sight)
    except BaseException:  # its grammar is native code, which may fail in any way
        if sight is not None:
            sight.close()
        raise
