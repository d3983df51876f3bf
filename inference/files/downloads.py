"""How far a download from the hub is, in lines for people: as it begins, now and then, and as it ends."""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

LOG = logging.getLogger(__name__)

TELL_SECONDS = 10.0  # between two lines
LOOK_SECONDS = 0.5  # until a download is seen to have begun; one that is done sooner has its last line alone
_LIST_SECONDS = 10.0  # for the hub to say what there is
_LARGE = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class Wanted:
    """What of a repository is asked for, and what of it the cache had before."""

    def __init__(
        self, name: str, revision: str | None, cache: Path, patterns: Sequence[str], ignored: Sequence[str]
    ) -> None:
        self.name = name
        self._revision = revision
        self._patterns, self._ignored = list(patterns), list(ignored)
        blobs = cache / f"models--{name.replace('/', '--')}" / "blobs"
        self._held = {blob.name for blob in blobs.glob("*")}  # a part of one ends in `.incomplete`

    def missing(self) -> tuple[int, int] | None:
        """Return how many files, and how many bytes, the cache lacked; None if the hub doesn't say."""
        from huggingface_hub import model_info
        from huggingface_hub.utils import filter_repo_objects

        try:
            told = model_info(
                self.name, revision=self._revision, files_metadata=True, timeout=_LIST_SECONDS
            ).siblings
            files = filter_repo_objects(
                told or (),
                allow_patterns=self._patterns,
                ignore_patterns=self._ignored,
                key=lambda file: file.rfilename,
            )
            sizes = [int(file.size) for file in files if _blob(file) not in self._held]
        except Exception as error:  # of whichever HTTP client the hub's library uses; it can be done without
            LOG.debug("The files of %s are not known: %s", self.name, error)
            return None
        return len(sizes), sum(sizes)


class Bar(Protocol):
    """What is read of a progress bar."""

    n: float
    total: float | None


class Download:
    """A download that is watched, from a thread, for as long as the context lasts.

    `bars` is the class of progress bars for `snapshot_download`; they show nothing, and are counted. Where
    everything is in the cache no bar of bytes has a total, and nothing is told.
    """

    def __init__(self, wanted: Wanted, tell: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._tell = tell
        self._bars: list[Bar] = []  # of bytes: what was received, what was written, or one of both
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="download", daemon=True)
        self._began = time.monotonic()
        self._bytes: int | None = None  # of all, where known

    @property
    def bars(self) -> type[Any]:
        """Return a class whose bars count for this download."""
        return _counted(self._bars)

    def __enter__(self) -> Download:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if not self._begun:
            return
        seconds = time.monotonic() - self._began
        if kind is None:
            took = f"{size(self._done)} in {seconds:.1f} s"
            self._tell(f"Downloaded {self._wanted.name}: {took}")
        else:
            self._tell(f"The download of {self._wanted.name} broke off after {self._so_far}")

    @property
    def _begun(self) -> bool:
        return any(bar.total for bar in self._bars)

    @property
    def _done(self) -> int:
        return int(max((bar.n for bar in self._bars), default=0))

    @property
    def _so_far(self) -> str:
        done = self._done
        if self._bytes is None or done > self._bytes:
            return size(done)
        return f"{size(done)} of {size(self._bytes)}"

    def _watch(self) -> None:
        while not self._begun:
            if self._ended.wait(LOOK_SECONDS):
                return
        missing = self._wanted.missing()
        what = ""
        if missing is not None:
            files, self._bytes = missing
            what = f": {files} {'file' if files == 1 else 'files'}, {size(self._bytes)}"
        self._tell(f"Downloading {self._wanted.name}{what}")
        before, at = self._done, time.monotonic()
        while not self._ended.wait(TELL_SECONDS):
            done, now = self._done, time.monotonic()
            rate = max(0, done - before) / (now - at)
            before, at = done, now
            self._tell(f"Downloading {self._wanted.name}: {self._so_far}, {size(rate)}/s")


class _Nowhere(io.TextIOBase):
    """What bars are written to."""

    def write(self, text: str, /) -> int:
        return len(text)


def _counted(bars: list[Bar]) -> type[Any]:
    """Return a class whose bars come into the list, show nothing, and count whatever the environment says."""
    from tqdm import tqdm  # the hub's library has it

    class Counted(tqdm):
        monitor_interval = 0  # no thread that redraws them

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)  # which only the hub's own class knows
            super().__init__(*args, **kwargs | {"disable": False, "file": _Nowhere()})
            if kwargs.get("unit") == "B":
                bars.append(self)

    Counted.set_lock(threading.RLock())  # in place of tqdm's own, which other processes share
    return Counted


def size(count: float) -> str:
    """Return a number of bytes as people write it."""
    for unit, name in _LARGE:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"


def _blob(file: Any) -> str:
    """Return the name that a file's content has in the cache."""
    return str(file.blob_id if file.lfs is None else file.lfs.sha256)
