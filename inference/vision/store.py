"""The rows of images: those that prompts need, and for the next prompt with the same image the last ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from inference.sequences.sight import ImageRows

STORE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """An image as prompts have it."""

    ids: tuple[int, ...]  # the tokens that stand for it
    image: ImageRows

    @property
    def nbytes(self) -> int:
        """Return how much memory it takes."""
        return self.image.nbytes + 8 * len(self.ids)


class ImageStore:
    """Rows by the digest of an image's file; can be used by any thread.

    What nobody holds goes first when there is no room, the one not used for longest before the others;
    without `keeps` it goes at once.
    """

    def __init__(self, capacity: int = STORE_BYTES, *, keeps: bool = True) -> None:
        self.capacity = capacity  # bytes
        self._keeps = keeps
        self._stored: OrderedDict[bytes, Stored] = OrderedDict()  # used longest ago first
        self._holders: dict[bytes, int] = {}
        self._size = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def size(self) -> int:
        """Return how many bytes are taken."""
        return self._size

    @property
    def held(self) -> int:
        """Return how many holds there are."""
        return sum(self._holders.values())

    def hold(self, key: bytes) -> Stored | None:
        """Return an image, held; None if it isn't here."""
        with self._changed:
            found = self._stored.get(key)
            if found is not None:
                self._stored.move_to_end(key)
                self._holders[key] = self._holders.get(key, 0) + 1
            return found

    def put(self, key: bytes, stored: Stored, wanted: Callable[[], bool] = lambda: True) -> bool:
        """Keep an image, held, after waiting for room; false if it must not be used.

        It was closed then, or the image isn't `wanted` any more: that is asked whenever others let go.
        """
        with self._changed:
            while not self._closed and wanted() and not self._makes_room(stored.nbytes):
                self._changed.wait()
            if self._closed or not wanted():
                return False
            assert key not in self._stored, "an image is made once"
            self._stored[key] = stored
            self._holders[key] = 1
            self._size += stored.nbytes
            return True

    def release(self, keys: Iterable[bytes]) -> None:
        """Let go of images that are held."""
        with self._changed:
            for key in keys:
                left = self._holders.pop(key) - 1
                if left:
                    self._holders[key] = left
                elif not self._keeps:
                    self._drop(key)
            self._changed.notify_all()

    def close(self) -> None:
        """Have nobody wait for room any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _makes_room(self, size: int) -> bool:
        for key in [key for key in self._stored if key not in self._holders]:
            if self._size + size <= self.capacity:
                break
            self._drop(key)
        return self._size + size <= self.capacity

    def _drop(self, key: bytes) -> None:
        self._size -= self._stored.pop(key).nbytes
