"""How many sequences are taken on at a time, and when to come back once there is no room."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from inference.config import EngineConfig
from inference.errors import InvalidInput, Overloaded, OwnerOverloaded
from inference.frontend.owners import Owners, OwnOwners
from inference.frontend.places import OwnPlaces, Places

DURATIONS_REMEMBERED = 64
SOONEST_SECONDS, LATEST_SECONDS = 1.0, 60.0


class Permit:
    """Room for some sequences; give it back with `release` once the response has ended."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give the room back; further calls do nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Admission:
    """Counts the sequences in flight, and guesses from how long they take when there is room."""

    def __init__(
        self,
        limit: int,
        released: Callable[[], None],
        places: Places | None = None,
        owners: Owners | None = None,
        *,
        per_owner: int | None = None,
        owner_limit: int | None = None,
    ) -> None:
        """`released` is called after room was given back; what is taken is counted in this process alone
        unless `places` and `owners` are given.

        `per_owner` is how many one owner may have in flight by this count: its share of `owner_limit`, if
        that is given.
        """
        self.limit = limit
        self.per_owner = limit if per_owner is None else per_owner
        self.owner_limit = self.per_owner if owner_limit is None else owner_limit
        self.in_flight = 0  # of this process
        self._released = released
        self._places = OwnPlaces() if places is None else places
        self._names = itertools.count()
        self._running: dict[int, tuple[int, float]] = {}  # sequences, and when they began: the oldest first
        self._owners: Owners | None = None  # None: the limit of all holds for each
        if self.per_owner < limit:
            self._owners = OwnOwners() if owners is None else owners
        self._durations: deque[float] = deque(maxlen=DURATIONS_REMEMBERED)  # seconds, of recent ones

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        released: Callable[[], None],
        places: Places | None = None,
        owners: Owners | None = None,
    ) -> Self:
        """Return one with the limits of a configuration."""
        return cls(
            config.max_concurrent_requests,
            released,
            places,
            owners,
            per_owner=config.max_requests_per_owner,
            owner_limit=config.owner_limit,
        )

    def admit(self, sequences: int, owner: str = "") -> Permit:
        """Return a permit for an owner's `sequences`.

        Raises Overloaded if they don't all fit now, and InvalidInput if they never do.
        """
        if sequences > min(self.limit, self.owner_limit):
            whose = "" if self.limit <= self.owner_limit else "_per_key"
            raise InvalidInput(
                f"{sequences} sequences at a time are more than `max_concurrent_requests{whose}`, which is "
                f"{min(self.limit, self.owner_limit)}: send them in several requests"
            )
        if self._owners is not None and not self._owners.take(owner, sequences, self.per_owner):
            raise OwnerOverloaded(self.owner_limit, self.retry_after(sequences), self.per_owner)
        if not self._places.take(sequences, self.limit):
            if self._owners is not None:
                self._owners.give(owner, sequences)
            raise Overloaded(self.retry_after(sequences))
        name = next(self._names)
        self._running[name] = (sequences, time.monotonic())
        self.in_flight += sequences
        return Permit(lambda: self._release(name, owner))

    def retry_after(self, sequences: int) -> float:
        """Return the seconds in which there is probably room for `sequences`, between 1 and 60.

        Whatever runs is taken to need as long as others did of late; and where it has taken longer than that,
        or none has ended yet, as long again as it has taken. Of what other processes run, nothing is known
        but how much it is: it is taken to be like this process's own.
        """
        left = self._seconds_left()
        if not left:
            return SOONEST_SECONDS
        taken = max(self._places.taken, len(left))
        lacking = max(taken + sequences - self.limit, 1)
        # of all that run, so many have to end; of ours, our share of them
        ending = -(-lacking * len(left) // taken)
        return min(LATEST_SECONDS, max(SOONEST_SECONDS, left[min(ending, len(left)) - 1]))

    def _seconds_left(self) -> list[float]:
        """Return how long each running sequence may yet take, in order."""
        now = time.monotonic()
        usual = sum(self._durations) / len(self._durations) if self._durations else 0.0
        left: list[float] = []
        for sequences, began in self._running.values():
            age = now - began
            left += [usual - age if age < usual else age] * sequences
        return sorted(left)

    def _release(self, name: int, owner: str) -> None:
        sequences, began = self._running.pop(name)
        self._durations.extend([time.monotonic() - began] * sequences)
        self.in_flight -= sequences
        self._places.give(sequences)
        if self._owners is not None:
            self._owners.give(owner, sequences)
        self._released()
