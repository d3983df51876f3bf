"""Which adapters a running model has: their names and numbers, and which are on the way out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inference.adapters import PLACES, AdapterEdition
from inference.errors import AdapterRefused
from inference.files.adapters import MOST_NAME

MOST = 128  # that are loaded while the model runs, at once; all of them cross in one frame
TAKEN = "tgi"  # the model itself, in any request


@dataclass(frozen=True, slots=True)
class _Loaded:
    """An adapter that was loaded while the model ran."""

    number: int
    source: str
    nbytes: int
    left: int | None = None  # the first edition without it; None: it can be named


class AdapterBook:
    """Names, numbers and bytes; for any thread.

    A number is a place and how many adapters came before: places are given away again, numbers never. One
    that can't be named any more keeps its place and its bytes as long as a request may come, or runs, for it.
    """

    def __init__(self, names: Sequence[str], model: str, limit: int) -> None:
        """`names` are those from the start, which stay; `limit`: bytes that all others may take."""
        self._given = {name: place for place, name in enumerate(names)}
        self._model = model
        self._limit = limit
        self._named: dict[str, _Loaded] = {}
        self._leaving: list[_Loaded] = []
        self._coming: _Loaded | None = None
        self._count = 0  # that ever came
        self._edition = 0
        self._lock = threading.RLock()

    @property
    def adapters(self) -> Mapping[str, int]:
        """Return the numbers of those that can be named."""
        with self._lock:
            return self._given | {name: each.number for name, each in self._named.items()}

    def knows(self, number: int) -> bool:
        """Return whether a number is that of an adapter that is there."""
        with self._lock:
            return number in self._given.values() or any(number == each.number for each in self._all)

    def check(self, name: str, *, replaces: bool) -> None:
        """Raise AdapterRefused if none of this name can be loaded."""
        if not name.strip() or not name.isprintable() or len(name) > MOST_NAME:
            raise AdapterRefused(
                f"`lora_name` must be printable, with from 1 to {MOST_NAME} characters. "
                f"Given: {len(name)} of them"
            )
        if name in (TAKEN, self._model):
            raise AdapterRefused(f"`lora_name` must not be `{name}`, which stands for the model itself")
        if name in self._given:
            raise AdapterRefused(_stays(name))
        with self._lock:
            if name in self._named and not replaces:
                raise AdapterRefused(
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in "
                    "place, set 'load_inplace' to True."
                )
            if len(self._all) >= MOST and name not in self._named:
                raise AdapterRefused(
                    f"There are {MOST} adapters that were loaded while the server runs, which is the most: "
                    "unload one of them first"
                )

    def begin(self, name: str, source: str, nbytes: int) -> int:
        """Give one that comes a number, with a place that is free; raise AdapterRefused without room."""
        with self._lock:
            held = sum(each.nbytes for each in self._all)
            if held + nbytes > self._limit:
                raise AdapterRefused(
                    f"The adapter `{name}` takes {nbytes:,} bytes, and of the {self._limit:,} that "
                    f"--lora-memory gives to those that are loaded while the server runs {held:,} are taken: "
                    "unload others, or start with more"
                )
            self._count += 1
            taken = {*self._given.values(), *(each.number % PLACES for each in self._all)}
            place = next(place for place in range(PLACES) if place not in taken)
            self._coming = _Loaded(self._count * PLACES + place, source, nbytes)
            return self._coming.number

    def give_up(self) -> None:
        """Forget the one that was to come."""
        with self._lock:
            self._coming = None

    def admit(self, name: str) -> AdapterEdition:
        """Let the one that came be named, in the place of any other of the name."""
        with self._lock:
            coming, self._coming = self._coming, None
            assert coming is not None, "begin comes first"
            self._edition += 1
            self._leave(name)
            self._named[name] = coming
            return self._told()

    def remove(self, name: str) -> AdapterEdition:
        """Let one be named no more; raise AdapterRefused if there is none that could leave."""
        with self._lock:
            if name in self._given:
                raise AdapterRefused(_stays(name))
            if name not in self._named:
                raise AdapterRefused(f"The lora adapter '{name}' cannot be found.", missing=True)
            self._edition += 1
            self._leave(name)
            return self._told()

    def free(self, heard: int, used: Callable[[int], bool]) -> list[int]:
        """Return the places that are free now; `heard`: the edition that all who ask name adapters by."""
        with self._lock:
            gone = [
                each
                for each in self._leaving
                if each.left is not None and each.left <= heard and not used(each.number)
            ]
            self._leaving = [each for each in self._leaving if each not in gone]
            return [each.number % PLACES for each in gone]

    @property
    def waits(self) -> bool:
        """Return whether any is on the way out."""
        return bool(self._leaving)

    @property
    def _all(self) -> list[_Loaded]:
        coming = [] if self._coming is None else [self._coming]
        return [*self._named.values(), *self._leaving, *coming]

    def _leave(self, name: str) -> None:
        left = self._named.pop(name, None)
        if left is not None:
            self._leaving.append(_Loaded(left.number, left.source, left.nbytes, self._edition))

    def _told(self) -> AdapterEdition:
        kept = {name: each.source for name, each in self._named.items()}
        return AdapterEdition(self._edition, self.adapters, kept)


def _stays(name: str) -> str:
    return f"The adapter `{name}` was loaded at the start, by --lora-adapters: it stays as it is"
