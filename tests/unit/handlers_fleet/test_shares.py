from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.fleet.shares import Share, of_a_replica, share, threads_here
from handlers.settings.engine import engine_config
from handlers.settings.table import Settings


@pytest.mark.parametrize(
    ("replicas", "nodes", "expected"),
    [
        (2, [{"CPU": 8.0}], Share(threads=4, cpus=4)),
        (3, [{"CPU": 4.0}, {"CPU": 4.0}], Share(threads=2, cpus=2)),
        (3, [{"CPU": 8.0}, {"CPU": 8.0}], Share(threads=4, cpus=4)),
        (2, [{"CPU": 16.0}, {}], Share(threads=8, cpus=8)),
        (2, [{"CPU": 4.0}, {"CPU": 16.0}], Share(threads=8, cpus=8)),
        (8, [{"CPU": 2.0}], Share(threads=1, cpus=0)),
        (2, [{}], Share(threads=1, cpus=0)),
    ],
)
def test_cores_are_shared_out(replicas: int, nodes: list[dict[str, float]], expected: Share) -> None:
    settings = Settings(replicas=replicas, device="cpu")
    assert share(settings, nodes) == expected
    assert of_a_replica(settings, expected).compute_threads is None


def test_threads_that_were_asked_for_are_given() -> None:
    settings = Settings(replicas=2, compute_threads=6)
    assert share(settings, [{"CPU": 4.0}]) == Share(threads=6, cpus=2)
    assert share(settings, [{"CPU": 32.0}]) == Share(threads=6, cpus=6)


@pytest.mark.parametrize(
    ("asked", "given_", "cpus", "cores", "threads"),
    [
        (None, Share(threads=4, cpus=4), 8, 8, 4),
        (None, Share(threads=8, cpus=8), 16, 8, 4),  # two hardware threads of each core
        (None, Share(threads=32, cpus=32), 64, 4, 2),  # the process may use four cores
        (None, Share(threads=1, cpus=0), 2, 2, 1),
        (None, Share(threads=2, cpus=2), 16, 16, 2),
        (6, Share(threads=6, cpus=2), 4, 4, 6),
        (None, Share(threads=1, cpus=1, gpus=1), 8, 8, None),
    ],
)
def test_a_replica_computes_with_its_share_of_the_cores_that_can_be_used(
    asked: int | None, given_: Share, cpus: int, cores: int, threads: int | None
) -> None:
    assert threads_here(Settings(replicas=2, compute_threads=asked), given_, cpus, cores) == threads


@pytest.mark.parametrize(
    ("part", "replicas", "cpus", "beside"),
    [
        (Share(threads=4, cpus=4), 2, 8, 2),
        (Share(threads=8, cpus=8), 2, 8, 1),  # the other one is on another machine
        (Share(threads=2, cpus=2), 2, 16, 2),
        (Share(threads=1, cpus=0), 8, 2, 8),
        (Share(threads=4, cpus=4), 2, 0, 1),
    ],
)
def test_replicas_on_one_machine_share_its_memory(part: Share, replicas: int, cpus: int, beside: int) -> None:
    assert part.beside(replicas, cpus) == beside


@given(st.lists(st.integers(0, 64), max_size=8), st.integers(1, 40), st.none() | st.integers(1, 64))
def test_every_replica_finds_its_place(cores: list[int], replicas: int, threads: int | None) -> None:
    settings = Settings(replicas=replicas, device="cpu", compute_threads=threads)
    found = share(settings, [{"CPU": float(count)} for count in cores])
    assert found.threads >= 1
    assert not found.cpus or sum(count // found.cpus for count in cores) >= replicas


def test_with_gpus_each_replica_gets_one() -> None:
    settings = Settings(replicas=2)
    part = share(settings, [{"CPU": 8.0, "GPU": 1.0}, {"GPU": 1.0}])
    assert part == Share(threads=1, cpus=1, gpus=1)
    assert of_a_replica(settings, part).device == "cuda"
    assert of_a_replica(settings, part).compute_threads is None


def test_a_gpu_is_left_alone_by_who_wants_none() -> None:
    assert share(Settings(replicas=2, device="cpu"), [{"CPU": 4.0, "GPU": 2.0}]).gpus == 0


def test_too_few_gpus_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "parley"):
        share(Settings(replicas=3, device="cuda"), [{"GPU": 2.0}])
    assert caplog.messages == ["3 replicas need a GPU each, and the cluster has 2: some wait for more"]


def test_what_is_counted_by_caller_is_shared_out() -> None:
    settings = Settings(replicas=4, max_concurrent_requests_per_key=8)
    assert engine_config(settings).max_requests_per_owner == 2


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (Share(threads=4, cpus=4), "up to 4 threads on 4 CPUs"),
        (Share(threads=1, cpus=0), "up to 1 thread on shared CPUs"),
        (Share(threads=1, cpus=1, gpus=1), "1 GPU"),
    ],
)
def test_a_share_is_told_in_words(part: Share, words: str) -> None:
    assert str(part) == words
