"""Adapters of an engine that pretends: their files are read and refused as by a real one, weights aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inference.engine.adapter_book import AdapterBook
from inference.errors import AdapterRefused
from inference.files.allowed import allowed_files
from inference.types import AdapterChange, AdapterChanged, AdapterEdition, Frame

LIMIT = 2**30  # bytes
NO_CHANGES = "Adapters can't be loaded while the server runs: start it with --lora-directory"


class FakeAdapters:
    """Which there are, by a real engine's book."""

    def __init__(self, names: Sequence[str], model: str, directory: str | None) -> None:
        self._book = AdapterBook(names, model, LIMIT)
        self._directory = directory

    @property
    def numbers(self) -> Mapping[str, int]:
        """Return the numbers of those that can be named."""
        return self._book.adapters

    def change(self, change: AdapterChange) -> Frame:
        """Carry out a wish, and return what there is to say of it."""
        try:
            edition = self._carried_out(change)
        except AdapterRefused as error:
            self._book.give_up()
            return Frame((), changed=(AdapterChanged(change.id, str(error), error.missing),))
        return Frame((), edition=edition, changed=(AdapterChanged(change.id),))

    def heard(self, edition: int) -> None:
        """Let go of what nobody asks for any more."""
        self._book.free(edition, lambda number: False)

    def _carried_out(self, change: AdapterChange) -> AdapterEdition:
        if self._directory is None:
            raise AdapterRefused(NO_CHANGES)
        if change.source is None:
            return self._book.remove(change.name)
        self._book.check(change.name, replaces=change.replaces)
        files = allowed_files(change.name, change.source, self._directory)
        self._book.begin(change.name, change.source, files.nbytes)
        return self._book.admit(change.name)
