from __future__ import annotations

import os
from pathlib import Path

import pytest

from inference import cgroups, machine
from inference.machine import free_memory, release_memory, usable_cores


def write_siblings(folder: Path, siblings: dict[int, str]) -> None:
    for cpu, text in siblings.items():
        topology = folder / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{text}\n")


@pytest.fixture
def four_threads_of_two_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the container's limits are read."""
    write_siblings(tmp_path / "cpus", {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    limits = tmp_path / "limits"
    limits.mkdir()
    monkeypatch.setattr(machine, "_CPUS", tmp_path / "cpus")
    monkeypatch.setattr(cgroups, "_ROOT", limits)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    return limits


def test_engines_that_share_a_machine_have_a_part_of_its_memory_each(
    four_threads_of_two_cores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_meminfo_available", lambda: 5000)
    (four_threads_of_two_cores / "memory.max").write_text("8000")
    (four_threads_of_two_cores / "memory.current").write_text("4000")
    assert [free_memory(engines) for engines in (1, 2, 4)] == [4000, 4000, 2000]
    (four_threads_of_two_cores / "memory.current").write_text("7000")  # the others have theirs
    assert free_memory(4) == 1000
    (four_threads_of_two_cores / "memory.max").write_text("max")
    assert free_memory(4) == 5000


def test_hardware_threads_of_one_core_count_once(four_threads_of_two_cores: Path) -> None:
    assert usable_cores() == 2


def test_only_cores_that_the_process_may_use_count(
    four_threads_of_two_cores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3})
    assert usable_cores() == 1


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 9999", 2), ("100000 100000", 1), ("150000 100000", 1), ("50000 100000", 1), ("900000 100000", 2)],
)
def test_quota_of_the_container_is_kept(four_threads_of_two_cores: Path, quota: str, cores: int) -> None:
    (four_threads_of_two_cores / "cpu.max").write_text(quota)
    assert usable_cores() == cores


def test_quota_of_an_older_control_group_is_kept(four_threads_of_two_cores: Path) -> None:
    folder = four_threads_of_two_cores / "cpu"
    folder.mkdir()
    (folder / "cpu.cfs_period_us").write_text("100000")
    (folder / "cpu.cfs_quota_us").write_text("100000")
    assert usable_cores() == 1
    (folder / "cpu.cfs_quota_us").write_text("-1")
    assert usable_cores() == 2


def test_free_memory_is_less_than_what_is_installed() -> None:
    assert 0 < free_memory() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_free_memory_is_what_the_container_leaves(four_threads_of_two_cores: Path) -> None:
    (four_threads_of_two_cores / "memory.max").write_text("5000")
    (four_threads_of_two_cores / "memory.current").write_text("3000")
    assert free_memory() == 2000


def test_files_that_are_only_kept_in_memory_leave_room(four_threads_of_two_cores: Path) -> None:
    (four_threads_of_two_cores / "memory.max").write_text("5000")
    (four_threads_of_two_cores / "memory.current").write_text("4500")
    stat = "anon 400\nfile 4100\nshmem 100\ninactive_file 1000\nactive_file 3000\n"
    (four_threads_of_two_cores / "memory.stat").write_text(stat)
    assert free_memory() == 4500


def test_memory_of_an_older_control_group_is_kept(four_threads_of_two_cores: Path) -> None:
    folder = four_threads_of_two_cores / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("5000")
    (folder / "memory.usage_in_bytes").write_text("4500")
    assert free_memory() == 500
    stat = "cache 4000\nactive_file 1\ninactive_file 1\ntotal_active_file 3000\ntotal_inactive_file 1000\n"
    (folder / "memory.stat").write_text(stat)
    assert free_memory() == 4500
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712")  # none
    assert 5000 < free_memory() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system doesn't say")
def test_freed_memory_goes_back_to_the_system() -> None:
    block = 64 * 1024
    blocks = [bytearray(os.urandom(block)) for _ in range(2000)]  # each too small to be mapped by itself
    full = resident_bytes()
    last = blocks[-1]
    del blocks
    release_memory()
    assert resident_bytes() < full - 1000 * block
    assert len(last) == block  # what is still held, at the heap's end, keeps it from shrinking by itself


def test_freed_memory_is_given_back_before_each_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(machine, "_trim", lambda: done.append("trimmed"))
    done.extend(machine.trimming(iter("ab")))
    assert done == ["trimmed", "a", "trimmed", "b"]
