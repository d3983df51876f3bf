"""Adapters that come and go while the engine runs: read on a thread, put in place between two steps."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from inference.adapters import AdapterChange, AdapterChanged, AdapterEdition, place_of
from inference.config import ModelConfig
from inference.engine.adapter_book import AdapterBook
from inference.errors import AdapterRefused, ModelUnavailable
from inference.files.allowed import allowed_files, within
from inference.levels.later import LaterAdapters
from inference.types import Frame, ModelInfo

LOG = logging.getLogger(__name__)

NO_CHANGES = "Adapters can't be loaded while the server runs: start it with --lora-directory"
STOPPED = "The engine has stopped"


@dataclass(slots=True)
class _Attempt:
    """An adapter that was read, and is tried by the engine's thread."""

    change: AdapterChange
    pieces: Iterator[None]
    done: threading.Event
    failure: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Open:
    """What wishes are carried out with."""

    book: AdapterBook
    later: LaterAdapters
    root: str  # of all directories that may be read


class AdapterDesk:
    """Takes wishes one after another.

    Its own thread reads and checks files; the engine's takes an adapter up, tries it, a piece between two
    steps, and lets go of one. Who computes therefore waits for a piece, and for nothing else.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when the engine's thread has something to do here."""
        self._wake = wake
        self._open: _Open | None = None  # set by `open`; without it every wish is refused
        self._tell: Callable[[Frame], None] | None = None  # set by `start`
        self._wishes: queue.SimpleQueue[AdapterChange | None] = queue.SimpleQueue()
        self._attempt: _Attempt | None = None
        self._told = 0  # the edition of which all who ask have heard
        self._safe = 0  # the same, and what was asked for by those before has been taken
        self._let_go = 0  # the edition up to which the engine's thread has let go of what it could
        self._closed = False
        self._ending = threading.Condition()  # guards that nothing is wished for after the end

    def open(self, model: ModelInfo, later: LaterAdapters | None, config: ModelConfig) -> ModelInfo:
        """Be ready to take wishes, and load again what an engine before this one had; return all there is.

        One that can't be loaded any more is left out. Without `later` nothing is taken.
        """
        if later is None or config.adapter_directory is None:
            return model
        book = AdapterBook(list(model.adapters), model.id, config.adapter_bytes)
        self._open = _Open(book, later, config.adapter_directory)
        for name, source in config.kept_adapters.items():
            try:
                for _ in self._read(AdapterChange("", name, source), self._open).pieces:
                    pass
                book.admit(name)
            except Exception as error:  # whatever is wrong with it by now, the model is served
                book.give_up()
                LOG.error("The adapter %s, which was loaded before, is gone: %s", name, error)
        return replace(model, adapters=book.adapters)

    def start(self, tell: Callable[[Frame], None]) -> None:
        """Begin to take wishes; `tell` is called from any thread."""
        self._tell = tell
        if self._open is not None:
            work = partial(self._work, self._open)
            threading.Thread(target=work, name="engine-adapters", daemon=True).start()

    def change(self, change: AdapterChange) -> None:
        """Take a wish."""
        if self._open is None:
            self._refuse(change, NO_CHANGES)
            return
        with self._ending:
            if not self._closed:
                self._wishes.put(change)
                return
        self._refuse(change, STOPPED)

    def check(self, adapter: int) -> None:
        """Raise ValueError for the number of none that is there."""
        if adapter >= 0 and self._open is not None and not self._open.book.knows(adapter):
            raise ValueError(f"there is no adapter of the number {adapter}")

    def heard(self, edition: int) -> None:
        """Know that nobody asks any more for what isn't in an edition."""
        self._told = max(self._told, edition)
        self._wake()

    def close(self) -> None:
        """Refuse what comes, and what is under way."""
        with self._ending:
            self._closed = True
            self._wishes.put(None)
            self._ending.notify_all()
        attempt = self._attempt
        if attempt is not None:
            attempt.failure = AdapterRefused(STOPPED)
            attempt.done.set()

    # --- the engine's thread --------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Return whether the engine's thread has something to do here."""
        return self._attempt is not None or self._told > self._safe

    @property
    def told(self) -> int:
        """Return the edition of which all have heard: what they asked for before has come by now."""
        return self._told

    def tend(self, told: int, used: Callable[[int], bool]) -> None:
        """Do a piece of what there is to do, between two steps.

        `told` was read before the newest requests were taken; `used` says whether one of an adapter is left.
        """
        self._safe = told
        self.release(used)
        if self._let_go < told:
            with self._ending:
                self._let_go = told
                self._ending.notify_all()
        attempt = self._attempt
        if attempt is None:
            return
        try:
            next(attempt.pieces)
            return
        except StopIteration:
            pass
        except Exception as error:
            attempt.failure = error
        self._attempt = None
        attempt.done.set()

    def release(self, used: Callable[[int], bool]) -> None:
        """Let go of what nobody asks for any more, and no request is left of."""
        if self._open is not None and self._open.book.waits:
            for place in self._open.book.free(self._safe, used):
                self._open.later.drop(place)

    # --- its own thread -------------------------------------------------------------------------

    def _work(self, ready: _Open) -> None:
        torch.set_num_threads(1)  # the cores are the steps'
        while (change := self._wishes.get()) is not None:
            try:
                self._check_open()
                edition = self._carry_out(change, ready)
            except (AdapterRefused, ModelUnavailable) as error:
                missing = isinstance(error, AdapterRefused) and error.missing
                self._refuse(change, within(error, ready.root), missing=missing)
            except Exception as error:  # want of memory, or files that change while they are read
                LOG.exception("The adapter %s can't be loaded", change.name)
                said = f"{type(error).__name__}: {within(error, ready.root)}"
                why = f"The adapter `{change.name}` can't be loaded: {said}"
                self._refuse(change, why)
            else:
                self._say(Frame((), edition=edition, changed=(AdapterChanged(change.id),)))

    def _carry_out(self, change: AdapterChange, ready: _Open) -> AdapterEdition:
        if change.source is None:
            edition = ready.book.remove(change.name)
            LOG.info("The adapter %s was unloaded", change.name)
            return edition
        try:
            self._await_turn()
            attempt = self._read(change, ready)
            self._attempt = attempt
            self._check_open()  # only now: who closes looks at the attempt
            self._wake()
            attempt.done.wait()
            if attempt.failure is not None:
                raise attempt.failure
            edition = ready.book.admit(change.name)
        except BaseException:
            ready.book.give_up()
            raise
        LOG.info("The adapter %s was loaded", change.name)
        return edition

    def _await_turn(self) -> None:
        """Wait until the engine's thread has let go of what nobody asks for any more: a step at most."""
        told = self._told
        with self._ending:
            self._ending.wait_for(lambda: self._closed or self._let_go >= told)
        self._check_open()

    def _read(self, change: AdapterChange, ready: _Open) -> _Attempt:
        assert change.source is not None, "it is to be loaded"
        ready.book.check(change.name, replaces=change.replaces)
        files = allowed_files(change.name, change.source, ready.root)
        number = ready.book.begin(change.name, change.source, files.nbytes)
        adapter = ready.later.read(files)
        pieces = ready.later.attempt(change.name, place_of(number), adapter)
        return _Attempt(change, pieces, threading.Event())

    def _check_open(self) -> None:
        if self._closed:
            raise AdapterRefused(STOPPED)

    def _refuse(self, change: AdapterChange, why: str, *, missing: bool = False) -> None:
        self._say(Frame((), changed=(AdapterChanged(change.id, why, missing),)))

    def _say(self, frame: Frame) -> None:
        assert self._tell is not None, "start comes first"
        try:
            self._tell(frame)
        except Exception:  # whoever is told of one wish, the next are carried out
            LOG.exception("What became of an adapter can't be told")
