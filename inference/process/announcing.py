"""Editions of a model's adapters, on their way to all API processes: who asks for one hears that all know."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from inference.core import AdaptingCore, Core
from inference.ipc.framing import pack
from inference.ipc.messages import Change, Changed, Edition
from inference.process.connection import Connection
from inference.types import AdapterChange, AdapterChanged, AdapterEdition

NO_CHANGES = "The engine takes no adapters while it runs"


@dataclass(slots=True)
class _Announced:
    """An edition that not all have answered yet."""

    number: int
    missing: set[Connection]
    answers: list[tuple[Connection, Changed]] = field(default_factory=list)  # for when all have


class Announcements:
    """Tells editions, and answers those who asked for changes; for any thread."""

    def __init__(self) -> None:
        self.core: Core | None = None  # whose adapters they are; set once it is loaded
        self._lock = threading.Lock()  # guards the rest
        self._asked: dict[str, tuple[Connection, int]] = {}  # by the core's id of a change
        self._announced: list[_Announced] = []  # in their order

    def ask(self, connection: Connection, wish: Change) -> None:
        """Ask the core for a change."""
        id = f"{connection.number}.{wish.number}"
        with self._lock:
            self._asked[id] = connection, wish.number
        if isinstance(self.core, AdaptingCore):
            self.core.change(AdapterChange(id, wish.name, wish.source, wish.replaces))
        else:
            self.answer(AdapterChanged(id, NO_CHANGES))

    def tell(self, edition: AdapterEdition, connections: Iterable[Connection]) -> None:
        """Tell an edition to all who are attached."""
        frame = pack(Edition(edition.number, dict(edition.adapters)))
        told = tuple(connections)
        with self._lock:
            self._announced.append(_Announced(edition.number, set(told)))
        for each in told:
            each.post(frame)

    def answer(self, changed: AdapterChanged) -> None:
        """Say what became of a change, as soon as all have answered the editions until now."""
        with self._lock:
            connection, number = self._asked.pop(changed.id, (None, 0))
            if connection is None:
                return
            answer = Changed(number, changed.refusal, changed.missing)
            if self._announced:
                self._announced[-1].answers.append((connection, answer))
                return
        connection.post(pack(answer))

    def hear(self, connection: Connection, edition: int) -> None:
        """Take the answer of a process: it names adapters by this edition, and so by those before it."""
        with self._lock:
            for each in self._announced:
                if each.number <= edition:
                    each.missing.discard(connection)
        self.settle()

    def drop(self, connection: Connection) -> None:
        """Wait no more for a process that has gone."""
        with self._lock:
            self._asked = {id: asked for id, asked in self._asked.items() if asked[0] is not connection}
            for each in self._announced:
                each.missing.discard(connection)
        self.settle()

    def settle(self) -> None:
        """Tell who has waited for editions that all have answered by now."""
        while True:
            with self._lock:
                if not self._announced or self._announced[0].missing:
                    return
                done = self._announced.pop(0)
            if isinstance(self.core, AdaptingCore):
                self.core.heard(done.number)
            for connection, answer in done.answers:
                connection.post(pack(answer))
