"""When an engine counts as one that hangs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.ipc.watchdog import (
    LOADING_SILENT_SECONDS,
    LOOK_SECONDS,
    SILENT_SECONDS,
    STEP_SECONDS,
    Patience,
    Watchdog,
    step_limit,
)


def watched(limit: float, *, ready: bool = True) -> Watchdog:
    watchdog = Watchdog(0.0, limit)
    watchdog.ready = ready
    return watchdog


def complaint(
    watchdog: Watchdog, seconds: int, step: int | None = None, *, silent: bool = False
) -> tuple[int, str] | None:
    """Return after how many of so many seconds it complains, and how."""
    for second in range(1, seconds + 1):
        if not silent:
            watchdog.hear(step)
        reason = watchdog.look(float(second))
        if reason is not None:
            return second, reason
    return None


def test_a_step_may_take_as_long_as_it_may_and_no_longer() -> None:
    found = complaint(watched(20), 100, step=7)
    assert found == (21, "a step takes longer than 20 s, which `step_timeout` sets")


def test_an_idle_engine_may_rest_for_ever() -> None:
    assert complaint(watched(2), 10_000, step=None) is None


def test_a_new_step_has_all_its_time() -> None:
    watchdog = watched(3)
    for second in range(1, 1000):
        watchdog.hear(second // 2)
        assert watchdog.look(float(second)) is None


def test_silence_is_told_sooner_than_a_long_step_and_much_later_while_it_loads() -> None:
    at, reason = complaint(watched(600), 1000, silent=True) or (0, "")
    assert (at, reason) == (SILENT_SECONDS + 1, f"it has given no sign of life for {at} s")
    at, _ = complaint(watched(600, ready=False), 1000, silent=True) or (0, "")
    assert at == LOADING_SILENT_SECONDS + 1


def test_without_a_limit_nothing_is_ever_said() -> None:
    assert complaint(watched(0), 10_000, silent=True) is None
    assert complaint(watched(0), 10_000, step=1) is None


def test_time_in_which_the_watching_process_stood_still_itself_does_not_count() -> None:
    watchdog = watched(60)
    watchdog.hear(1)
    assert watchdog.look(1.0) is None
    assert watchdog.look(100_000.0) is None  # all of them had been suspended
    watchdog.hear(2)
    assert watchdog.look(100_001.0) is None


@given(st.lists(st.integers(-(10**6), 10**6), max_size=30))
def test_patience_never_grows_by_more_than_two_looks_and_never_shrinks(jumps: list[int]) -> None:
    patience, now, before = Patience(0.0), 0.0, 0.0
    for jump in jumps:
        now += jump
        seconds = patience.look(now)
        assert 0.0 <= seconds - before <= 2 * LOOK_SECONDS
        before = seconds


@pytest.mark.parametrize(
    ("setting", "longest", "limit"),
    [
        (None, 0.0, STEP_SECONDS),
        (None, 0.2, STEP_SECONDS),
        (None, 17.01, 341.0),
        (5.0, 17.0, 5.0),
        (0.0, 17.0, 0.0),
    ],
)
def test_the_limit_follows_the_setting_or_the_machine(
    setting: float | None, longest: float, limit: float
) -> None:
    assert step_limit(setting, longest) == limit
