from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.stop import LongStop, StopMatcher, overlap


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown = [matcher.push(piece) for piece in pieces]
    return [*shown, matcher.flush()], matcher.matched


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read character by character until some stop sequence, the longest first, ends the text."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "matched"),
    [
        (["ab", "cd"], [], ["ab", "cd", ""], None),
        (["ab", "STOP", "cd"], ["STOP"], ["ab", "", "", ""], "STOP"),
        (["ab ST", "OP cd"], ["STOP"], ["ab ", "", ""], "STOP"),
        (["abSTOPcd"], ["STOP"], ["ab", ""], "STOP"),
        (["ab ST", "ART"], ["STOP"], ["ab ", "START", ""], None),
        (["ab S"], ["STOP"], ["ab ", "S"], None),
        (["aab"], ["ab"], ["a", ""], "ab"),
        (["aa", "ab"], ["aab"], ["", "a", ""], "aab"),
        (["a", "b", "c", "d"], ["abcd", "bc"], ["", "", "a", "", ""], "bc"),
        (["x\n\n", "User:"], ["\nUser:"], ["x\n", "", ""], "\nUser:"),
    ],
)
def test_shows_text_as_soon_as_no_stop_sequence_can_hold_it(
    pieces: list[str], stops: list[str], shown: list[str], matched: str | None
) -> None:
    assert run(pieces, stops) == (shown, matched)


def test_a_long_one_that_a_text_almost_has_takes_no_longer_with_each_token() -> None:
    """Compared anew each time, such ones took 70 ms a token."""
    size = 20_000
    stops = ["a" * 300_000, *("a" * size + other + "a" * size for other in "bcd")]
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push("a" * 25) for _ in range(2_000))
    assert (shown, matcher.matched) == ("", None)
    shown = matcher.push("b") + "".join(matcher.push("a" * 25) for _ in range(size // 25))
    assert shown == "a" * (2_000 * 25 - size)
    assert matcher.matched == stops[1]


@given(
    st.lists(st.text(alphabet="ab", max_size=8), max_size=8), st.text(alphabet="ab", min_size=1, max_size=6)
)
def test_a_long_one_is_followed_as_a_short_one_is_found(pieces: list[str], stop: str) -> None:
    followed, text = LongStop(stop), ""
    for piece in pieces:
        ends = [end for end in range(1, len(piece) + 1) if (text + piece[:end]).endswith(stop)]
        assert followed.push(piece) == (ends[0] if ends else None)
        text += piece
        assert followed.begun == overlap(text, stop)


few = st.text(alphabet="abc", max_size=8)


@given(st.lists(few, max_size=8), st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4))
def test_agrees_with_reading_character_by_character(pieces: list[str], stops: list[str]) -> None:
    shown, matched = run(pieces, stops)
    assert ("".join(shown), matched) == naive("".join(pieces), stops)


@given(st.lists(few, max_size=8), st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4))
def test_what_came_behind_a_stop_sequence_is_known(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece) for piece in pieces) + matcher.flush()
    assert shown + (matcher.matched or "") + matcher.behind == "".join(pieces)


@given(st.lists(few, max_size=8), st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4))
def test_holds_back_only_what_can_still_become_a_stop_sequence(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += matcher.push(piece)
        held = text[len(shown) :]
        assert matcher.matched is not None or held == "" or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("before", "after", "stops", "shown", "matched"),
    [
        ("ab STOP cd", " STOP", ["STOP"], "ab STOP cd ", "STOP"),
        ("ab ST", "OP", ["STOP"], "ab ", "STOP"),
        ("ab STOP", "", ["STOP"], "ab STOP", None),
        ("xab", "c", ["ab", "xaby"], "xabc", None),
        ("xab", "y", ["ab", "xaby"], "", "xaby"),
        ("aaa", "a", ["aa"], "aa", "aa"),
    ],
)
def test_a_stop_sequence_counts_if_it_is_complete_once_the_text_may_stop(
    before: str, after: str, stops: list[str], shown: str, matched: str | None
) -> None:
    matcher = StopMatcher(stops)
    text = matcher.push(before, may_stop=False) + matcher.push(after) + matcher.flush()
    assert (text, matcher.matched) == (shown, matched)


def naive_from(text: str, stops: list[str], first: int) -> tuple[str, str | None]:
    """Read on from the `first` character until some stop sequence, the longest first, ends the text."""
    for end in range(first + 1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@given(
    st.lists(few, max_size=5),
    st.lists(few, max_size=5),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4),
)
def test_agrees_with_reading_on_from_where_the_text_may_stop(
    before: list[str], after: list[str], stops: list[str]
) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece, may_stop=False) for piece in before)
    assert matcher.matched is None
    shown += "".join(map(matcher.push, after)) + matcher.flush()
    first = len("".join(before))
    assert (shown, matcher.matched) == naive_from("".join([*before, *after]), stops, first)
