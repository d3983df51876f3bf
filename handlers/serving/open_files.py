"""How many files the system lets this process have open: its connections are some of them."""

from __future__ import annotations

import sys

from handlers.settings.row import SettingsError

OWN = 128  # that a process needs beside its connections
LEAST = 48  # the same where there may be few: 40 are open at rest


def connections_possible() -> int:
    """Return how many connections this process may have, less what it needs for itself."""
    files = _possible()
    return max(files - OWN, (files - LEAST) // 2, 1)


def require_files() -> None:
    """Raise SettingsError where too few files may be open to serve anything."""
    files = _possible()
    if files < LEAST:
        raise SettingsError(
            f"the limit of open files must be >= {LEAST}. Given: {files}; raise it, by `ulimit -n` or "
            "systemd's LimitNOFILE"
        )


def _possible() -> int:
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return sys.maxsize
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else files
