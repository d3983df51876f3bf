"""Processes as /proc tells of them; of one that ends while it is looked at, nothing is there."""

from __future__ import annotations

from pathlib import Path


def children(process: int) -> list[int]:
    """Return the processes that any thread of a process has started."""
    try:
        tasks = list(Path(f"/proc/{process}/task").glob("*/children"))
    except (FileNotFoundError, ProcessLookupError):  # it ended while they were listed
        return []
    return [int(child) for task in tasks for child in read(str(task)).split()]


def command_line(process: int) -> str:
    """Return what a process was started with, NUL after each argument; nothing of one that has ended."""
    return read(f"/proc/{process}/cmdline")


def gone(process: int) -> bool:
    """Return whether a process has ended, be it that nobody has waited for it yet."""
    return read(f"/proc/{process}/stat").rpartition(")")[2].split()[:1] in ([], ["Z"])


def read(path: str) -> str:
    """Return what a file of /proc says; nothing if its process has ended."""
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
