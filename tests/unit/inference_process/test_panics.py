"""What of native code's lines is told to those who didn't ask for prompts."""

from __future__ import annotations

import pytest

from inference.ipc.panics import LOOK_SECONDS, SILENCE_SECONDS, Panics

HEAD = "thread '<unnamed>' panicked at src/lib.rs:10:5:"
TOLD = "native code panicked at src/lib.rs:10:5"


@pytest.fixture
def panics() -> Panics:
    return Panics()


def look(panics: Panics, now: float, seconds: float) -> float:
    """Look as often as asked for, so long; return what time it is then."""
    for _ in range(round(seconds / LOOK_SECONDS)):
        now += LOOK_SECONDS
        panics.look(now)
    return now


@pytest.mark.parametrize(
    ("line", "outline"),
    [
        (HEAD, TOLD),
        ("thread 'main' (5431) panicked at src/lib.rs:10:5:", TOLD),
        (
            "thread '<unnamed>' panicked at /root/.cargo/registry/a-1.0+x/src/b_c.rs:1:22:",
            "native code panicked at /root/.cargo/registry/a-1.0+x/src/b_c.rs:1:22",
        ),
        # what stands in the place of a place may be a message
        ("thread 'x' panicked at 'a secret', src/lib.rs:10:5", "native code panicked"),
        ("thread 'x' panicked at 'thread 'x' panicked at secret.rs:1:1:", "native code panicked"),
        ("thread 'x' panicked at 'a secret", "native code panicked"),
        ("thread 'x' panicked at secret", "native code panicked"),
        ("half a line of anotherthread 'x' panicked at src/lib.rs:10:5:", "native code panicked"),
        ("CUDA error: an illegal memory access was encountered", None),
        ('  File "x.py", line 3 in step', None),
    ],
)
def test_the_line_that_tells_of_a_panic_is_told_by_its_place(
    panics: Panics, line: str, outline: str | None
) -> None:
    assert panics.outline(line, 0.0) == outline


def test_nothing_is_told_of_what_follows_until_it_has_been_silent(panics: Panics) -> None:
    assert (panics.look_seconds, panics.outline(HEAD, 5.0)) == (None, TOLD)
    panics.hear(b"...\n", 5.0)
    assert (panics.look_seconds,) == (LOOK_SECONDS,)
    now = look(panics, 5.0, SILENCE_SECONDS - LOOK_SECONDS)
    assert panics.outline("a secret", now) == ""
    panics.hear(b"a secret\n", now)
    now = look(panics, now, SILENCE_SECONDS - LOOK_SECONDS)
    for line in ("another secret", HEAD, "note: run with `RUST_BACKTRACE=1`"):
        assert panics.outline(line, now) == ""
    panics.hear(b"...\n", now)
    now = look(panics, now, SILENCE_SECONDS + LOOK_SECONDS)
    assert panics.outline("a warning", now) is None
    assert (panics.look_seconds, panics.outline(HEAD, now)) == (None, TOLD)


def test_a_line_that_was_begun_is_waited_for(panics: Panics) -> None:
    panics.outline(HEAD, 0.0)
    panics.hear(b"...\nhalf of a sec", 0.0)
    now = look(panics, 0.0, 100 * SILENCE_SECONDS)
    assert panics.outline("ret", now) == ""
    panics.hear(b"ret\n", now)
    now = look(panics, now, SILENCE_SECONDS + LOOK_SECONDS)
    assert panics.outline("a warning", now) is None


def test_a_time_in_which_all_stood_still_is_no_silence(panics: Panics) -> None:
    panics.outline(HEAD, 0.0)
    panics.hear(b"...\n", 0.0)
    panics.look(3600.0)  # the machine was suspended: whoever writes goes on just now
    assert panics.outline("a secret", 3600.0) == ""
