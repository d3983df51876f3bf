"""Control groups: what is left of a process's limits.

Every group that a process is in binds it: its own, and those around that, up to the root. In a container
with a namespace of its own the root that is mounted is the container's group. Under systemd, or with the
host's namespace, it is the machine's, which has no limits, and those that count are beneath it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
# Lines `0::/path` of the unified hierarchy, `4:cpu,cpuacct:/path` of older ones
_OWN = Path("/proc/self/cgroup")
_UNIFIED = ""  # what stands in place of its controllers
_BESIDE = "unified"  # where it is mounted if older ones are there, too
_MEMORY = (  # the limit, what is used, and of what; without a limit the older kind's is huge
    ("memory.max", "memory.current", "memory.stat"),
    ("memory.high", "memory.current", "memory.stat"),  # beyond it a process is held up
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"),
)


def memory_left() -> int | None:
    """Return how many bytes the groups leave this process, the least of them all; None: no limit."""
    left = (_left(group, *files) for group in _groups("memory") for files in _MEMORY)
    return min((each for each in left if each is not None), default=None)


def memory_limit() -> int | None:
    """Return how many bytes the groups let this process and those beside it have; None: no limit."""
    limits = (_read_int(group / limit) for group in _groups("memory") for limit, *_ in _MEMORY)
    return min((each for each in limits if each is not None), default=None)


def core_quota() -> float | None:
    """Return how many cores' time the groups give this process, the least of them all; None: no limit."""
    quotas = (quota(group) for group in _groups("cpu") for quota in (_quota, _older_quota))
    return min((each for each in quotas if each is not None), default=None)


def _groups(controller: str) -> Iterator[Path]:
    """Yield the directories of the groups that this process is in, whichever kinds the machine has."""
    paths = _own_paths()
    yield from _upwards(_ROOT, paths.get(_UNIFIED, "/"))
    yield from _upwards(_ROOT / _BESIDE, paths.get(_UNIFIED, "/"))
    yield from _upwards(_ROOT / controller, paths.get(controller, "/"))


def _own_paths() -> dict[str, str]:
    """Return the paths of this process's groups, by controller."""
    try:
        lines = _OWN.read_text(errors="surrogateescape").splitlines()
    except OSError:  # not Linux, or a kernel without control groups
        return {}
    fields = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return {controller: path for _, controllers, path in fields for controller in controllers.split(",")}


def _upwards(root: Path, path: str) -> Iterator[Path]:
    """Yield a group's directory and those around it; the root alone where it isn't beneath that.

    A path is that of the host where the container's group is mounted as the root, and begins with `/..` where
    the process was brought into a container from outside.
    """
    own = root / path.lstrip("/")
    if ".." in own.parts or not os.path.isdir(own):
        own = root
    yield from (each for each in (own, *own.parents) if each.is_relative_to(root))


def _left(group: Path, limit: str, used: str, stat: str) -> int | None:
    """Return what a group leaves of its memory; None if it has no limit, or there is none."""
    most, taken = _read_int(group / limit), _read_int(group / used)
    return None if most is None or taken is None else most - taken + _file_cache(group / stat)


def _file_cache(stat: Path) -> int:
    """Return what a group's files take of its memory, which the system gives up when it is needed.

    Weights that were just downloaded are there as well: they would leave no room for themselves.
    """
    try:
        sizes = dict(line.split() for line in stat.read_text().splitlines())
        # An older control group has both, and the totals with those beneath it, as its usage is
        total = "total_" if "total_inactive_file" in sizes else ""
        return sum(int(sizes.get(f"{total}{name}", 0)) for name in ("active_file", "inactive_file"))
    except (OSError, ValueError):  # none is said to be there
        return 0


def _quota(group: Path) -> float | None:
    try:
        limit, period = (group / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # an older group, the root, or none
        return None


def _older_quota(group: Path) -> float | None:
    quota, period = (_read_int(group / f"cpu.cfs_{name}_us") or -1 for name in ("quota", "period"))
    return quota / period if quota > 0 and period > 0 else None


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such group, or one that has just gone, or "max"
        return None
