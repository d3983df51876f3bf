"""The private directory with the engine's socket."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import time
import weakref
from pathlib import Path

from inference.environment import temporary_directory
from inference.errors import ModelUnavailable

LOG = logging.getLogger(__name__)

PATH_BYTES = 103  # of a socket's address: 107 on Linux, 103 on macOS
NAME = "engine.sock"
OLD_SECONDS = 60.0  # before, a socket may be one that is just being made
BACKLOG = 128  # processes that wait while the engine is being started again


class Address:
    """A listening socket in a directory that nobody else can enter; removed by `close`."""

    def __init__(self) -> None:
        self.directory = _private_directory()
        _sweep(self.directory.parent)
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


def _sweep(base: Path) -> None:
    """Remove what servers left behind that were killed together with their engines: nobody listens there."""
    for path in base.glob(f"parley-*/{NAME}"):
        try:
            made = path.stat()
            if made.st_uid == os.getuid() and time.time() - made.st_mtime > OLD_SECONDS and _is_dead(path):
                shutil.rmtree(path.parent, ignore_errors=True)
        except OSError as error:  # it is somebody else's, or has just gone
            LOG.debug("%s is left as it is: %s", path, error)


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return True
        except BlockingIOError:  # many wait there
            return False
        return False


def _private_directory() -> Path:
    """Return a new directory with mode 0700, where its path leaves room for a socket's name."""
    tried = []
    for base in dict.fromkeys((os.environ.get("XDG_RUNTIME_DIR", ""), temporary_directory(), "/tmp")):
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
