from __future__ import annotations

import signal

import pytest

from handlers.http.signals import ECHO_SECONDS, Signals

TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.mark.parametrize(
    ("came", "counts"),
    [
        ([(TERM, 0.0)], [1]),
        ([(TERM, 0.0), (TERM, 0.0)], [1, 1]),
        ([(TERM, 0.0), (TERM, ECHO_SECONDS * 0.9)], [1, 1]),
        ([(TERM, 0.0), (TERM, ECHO_SECONDS * 1.1)], [1, 2]),
        ([(INT, 0.0), (TERM, 0.0)], [1, 2]),  # another signal is no echo
        ([(TERM, 0.0), (TERM, 0.0), (TERM, 1.0), (TERM, 1.0), (TERM, 2.0)], [1, 1, 2, 2, 3]),
    ],
)
def test_a_signal_that_comes_twice_at_once_counts_once(
    came: list[tuple[int, float]], counts: list[int]
) -> None:
    times = iter([at for _, at in came])
    signals = Signals(lambda: next(times))
    found = []
    for number, _ in came:
        before = signals.count
        assert signals.take(number) == (signals.count > before)
        found.append(signals.count)
    assert found == counts


def test_the_first_signal_counts_whenever_it_comes() -> None:
    assert Signals(lambda: 0.0).take(TERM)
