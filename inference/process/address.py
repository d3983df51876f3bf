"""The private directory with the engine's socket."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import weakref
from pathlib import Path

from inference.errors import ModelUnavailable

PATH_BYTES = 103  # of a socket's address: 107 on Linux, 103 on macOS
NAME = "engine.sock"
BACKLOG = 128  # processes that wait while the engine is being started again


class Address:
    """A listening socket in a directory that nobody else can enter; removed by `close`."""

    def __init__(self) -> None:
        self.directory = _private_directory()
        # Also where the server ends by an error; a process that was forked must not
        self._removed = weakref.finalize(self, _remove, self.directory, os.getpid())
        self.path = str(self.directory / NAME)
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listening.bind(self.path)
        self.listening.listen(BACKLOG)

    def close(self) -> None:
        """Listen no more, and remove the directory."""
        self.listening.close()
        self._removed()


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)  # the engine may have done so


def _private_directory() -> Path:
    """Return a new directory with mode 0700, where its path leaves room for a socket's name."""
    tried = []
    for base in dict.fromkeys((os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")):
        longest = len(os.fsencode(base)) + len("/parley-12345678/") + len(NAME)
        if not base or longest > PATH_BYTES:
            continue
        try:
            return Path(tempfile.mkdtemp(prefix="parley-", dir=base))
        except OSError as error:
            tried.append(f"{base}: {error.strerror}")
    raise ModelUnavailable(
        f"There is no directory for the engine's socket ({'; '.join(tried)}): set TMPDIR to one that can be "
        f"written to and whose path has <= {PATH_BYTES - len(NAME) - 17} bytes"
    )
