"""Limits of groups that are not the root: systemd's, and those of containers with the host's namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference import cgroups
from inference.cgroups import core_quota, memory_left

HUGE = 9223372036854771712  # of an older group without a limit


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where control groups are mounted."""
    root = tmp_path / "cgroup"
    root.mkdir()
    monkeypatch.setattr(cgroups, "_ROOT", root)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "self")
    return root


def be_in(root: Path, *lines: str) -> None:
    """Have the process be in these groups, as `/proc/self/cgroup` has them."""
    (root.parent / "self").write_text("".join(f"{line}\n" for line in lines))


def write(group: Path, **files: object) -> None:
    """Make a group; `memory_max` is its `memory.max`."""
    group.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (group / name.replace("_", ".", 1)).write_text(f"{content}\n")


def test_limits_of_a_services_own_group_are_kept(root: Path) -> None:
    be_in(root, "0::/system.slice/parley.service")
    write(root, cpu_stat="usage_usec 1")  # the root has no limits at all
    write(root / "system.slice", memory_max="max", memory_current=9000, cpu_max="max 100000")
    service = root / "system.slice/parley.service"
    write(service, memory_max=5000, memory_current=3000, cpu_max="250000 100000")
    assert (memory_left(), core_quota()) == (2000, 2.5)


def test_a_group_that_is_held_up_beyond_its_high_mark_has_what_is_below_it(root: Path) -> None:
    be_in(root, "0::/a")
    write(root / "a", memory_max=9000, memory_high=5000, memory_current=3000)
    assert memory_left() == 2000
    write(root / "a", memory_high="max")
    assert memory_left() == 6000


def test_files_that_are_only_kept_leave_room_in_each_group(root: Path) -> None:
    be_in(root, "0::/a/b")
    write(root / "a", memory_max=9000, memory_current=8500, memory_stat="active_file 100\ninactive_file 0")
    write(root / "a/b", memory_max=5000, memory_current=4500, memory_stat="anon 5\ninactive_file 4000")
    assert memory_left() == 600


@pytest.mark.parametrize(
    ("outer", "inner", "left", "cores"),
    [
        ((5000, 4000, "100000 100000"), (9000, 1000, "max 100000"), 1000, 1.0),
        ((9000, 1000, "400000 100000"), (5000, 1000, "150000 50000"), 4000, 3.0),
        (("max", 1000, "max 100000"), ("max", 1000, "max 100000"), None, None),
        ((500, 1000, "nonsense"), (5000, 1000, "100000 0"), -500, None),
    ],
)
def test_the_least_that_any_group_around_it_leaves_counts(
    root: Path,
    outer: tuple[object, ...],
    inner: tuple[object, ...],
    left: int | None,
    cores: float | None,
) -> None:
    be_in(root, "0::/outer/inner")
    for group, (limit, used, quota) in ((root / "outer", outer), (root / "outer/inner", inner)):
        write(group, memory_max=limit, memory_current=used, cpu_max=quota)
    assert (memory_left(), core_quota()) == (left, cores)


def test_groups_beside_its_own_bind_nothing(root: Path) -> None:
    be_in(root, "0::/own")
    write(root / "own", memory_max="max", memory_current=10, cpu_max="max 100000")
    write(root / "own/beneath", memory_max=1, memory_current=0, cpu_max="1 100000")
    write(root / "other", memory_max=1, memory_current=0, cpu_max="1 100000")
    assert (memory_left(), core_quota()) == (None, None)


@pytest.mark.parametrize("kubernetes", [False, True])
def test_limits_of_older_groups_are_kept(root: Path, *, kubernetes: bool) -> None:
    path = "/kubepods/burstable/pod1" if kubernetes else "/docker"
    be_in(root, f"11:memory:{path}/c", f"4:cpu,cpuacct:{path}/c", "1:name=systemd:/x:y", "0::/")
    unlimited = {"memory_limit_in_bytes": HUGE, "memory_usage_in_bytes": 10_000}
    write(root / "memory", **unlimited)
    write(root / f"memory{path}", **unlimited)
    stat = "inactive_file 1\ntotal_active_file 300\ntotal_inactive_file 100"
    group = root / f"memory{path}/c"
    write(group, memory_limit_in_bytes=5000, memory_usage_in_bytes=4500, memory_stat=stat)
    write(root / "cpu", cpu_cfs_quota_us=-1, cpu_cfs_period_us=100_000)
    write(root / f"cpu{path}", cpu_cfs_quota_us=200_000, cpu_cfs_period_us=100_000)
    write(root / f"cpu{path}/c", cpu_cfs_quota_us=-1, cpu_cfs_period_us=100_000)
    assert (memory_left(), core_quota()) == (900, 2.0)


def test_where_both_kinds_are_there_the_one_with_a_limit_counts(root: Path) -> None:
    be_in(root, "5:memory:/user.slice", "0::/user.slice/s")
    write(root / "memory/user.slice", memory_limit_in_bytes=HUGE, memory_usage_in_bytes=10)
    write(root / "unified/user.slice/s", memory_max="max", memory_current=10, cpu_max="50000 100000")
    assert memory_left() == HUGE - 10
    write(root / "memory/user.slice", memory_limit_in_bytes=100)
    assert (memory_left(), core_quota()) == (90, 0.5)


@pytest.mark.parametrize("path", ["/docker/abc", "/../abc", "/memory/../memory", "/deleted (deleted)", "no"])
def test_where_its_group_is_not_beneath_the_root_the_root_counts(root: Path, path: str) -> None:
    """A container's root is its own group, which the host may call anything."""
    be_in(root, f"4:memory,cpu:{path}", f"0::{path}")
    write(root.parent / "abc", memory_max=1, memory_current=0)
    write(root / "docker", memory_max=2, memory_current=0)  # of containers inside the container
    write(root, memory_max=5000, memory_current=3000, cpu_max="100000 100000")
    assert (memory_left(), core_quota()) == (2000, 1.0)
    write(root, memory_max="max", cpu_max="max 100000")
    write(root / "memory", memory_limit_in_bytes=50, memory_usage_in_bytes=30)
    write(root / "cpu", cpu_cfs_quota_us=300, cpu_cfs_period_us=100)
    assert (memory_left(), core_quota()) == (20, 3.0)


@pytest.mark.parametrize("lines", [(), ("", "0", "0:", "x:memory", "0::", "::", "3:memory:"), ("0::/gone",)])
def test_a_machine_that_says_nothing_of_the_kind_has_no_limits(root: Path, lines: tuple[str, ...]) -> None:
    be_in(root, *lines)
    assert (memory_left(), core_quota()) == (None, None)
    root.rmdir()
    (root.parent / "self").unlink()
    assert (memory_left(), core_quota()) == (None, None)


def test_files_that_cannot_be_read_limit_nothing(root: Path) -> None:
    be_in(root, "0::/own")
    write(root / "own", memory_current=5, cpu_max="")
    (root / "own/memory.max").mkdir()  # reading fails, for root as well
    assert (memory_left(), core_quota()) == (None, None)


def test_a_path_of_any_bytes_is_followed(root: Path) -> None:
    (root.parent / "self").write_bytes(b"0::/\xff\n")
    name = b"\xff".decode(errors="surrogateescape")
    write(root / name, memory_max=5000, memory_current=3000)
    assert memory_left() == 2000
