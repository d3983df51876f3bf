from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.stop import StopMatcher, Stops
from inference.thoughts.splitters import splitter_of
from inference.thoughts.stops import AnswerStops
from inference.thoughts.types import Place
from inference.tools.formats import with_tokens
from inference.tools.known_formats import FORMATS
from inference.tools.opening import Opening
from inference.tools.stops import WordStops
from tests.unit.inference_thoughts.answers import Piece, cut, known, letters
from tests.unit.inference_tools.answers import use


def stopped(matcher: Stops, pieces: Sequence[Piece], early: int = 0) -> tuple[str, str | None]:
    """Return the text that is shown of pieces, and the stop sequence; the `early` first may not stop."""
    shown = []
    for at, piece in enumerate(pieces):
        if isinstance(piece, int):
            shown.append(matcher.special(piece))
        else:
            shown.append(matcher.push(piece, may_stop=at >= early))
    return "".join([*shown, matcher.flush()]), matcher.matched


def stops_of(name: str, place: Place, *stops: str) -> AnswerStops:
    return AnswerStops(StopMatcher(stops), splitter_of(known(name), place, None))


@pytest.mark.parametrize(
    ("name", "answer", "shown", "matched"),
    [
        ("think", "<think>\nHm.\n\n</think>\n\nYes.\nNo", "<think>\nHm.\n\n</think>\n\nYes.", "\n"),
        ("think", "<think>\n", "<think>\n", None),
        ("think", "Yes\nNo", "Yes", "\n"),
        ("mistral", "[THINK]a\nb[/THINK]\nYes\nNo", "a\nb\nYes", "\n"),
        (
            "harmony",
            "<|channel|>analysis<|message|>a\nb<|end|><|start|>assistant<|channel|>final<|message|>Yes\nNo",
            "analysisa\nbassistantfinalYes",
            "\n",
        ),
    ],
)
def test_they_end_the_words_and_no_thought(name: str, answer: str, shown: str, matched: str | None) -> None:
    for pieces in (cut(answer), letters(cut(answer))):
        assert stopped(stops_of(name, Place.START, "\n"), pieces) == (shown, matched)


def test_what_came_before_a_text_may_stop_does_not_end_it() -> None:
    matcher = stops_of("think", Place.START, "<t")
    assert stopped(matcher, ["<t", "x<t"], early=1) == ("<tx", "<t")


def test_calls_behind_thoughts_are_ended_by_none() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    fmt = with_tokens(FORMATS["hermes"], {})
    words = WordStops(["\n"], Opening(fmt, use()))
    matcher = AnswerStops(words, splitter_of(known("think"), Place.START, fmt))
    answer = f"<think>a\nb</think>\n\n{call}"
    assert stopped(matcher, letters([answer])) == (answer, None)
    assert matcher.in_calls


@pytest.mark.parametrize("stop", ["bX", "bc", "b" + "X" * 70])
def test_one_that_has_begun_ends_with_its_message(stop: str) -> None:
    heads = "<|channel|>commentary<|message|>{}<|end|><|start|>assistant<|channel|>{}<|message|>{}"
    again = "<|end|><|start|>assistant<|channel|>final<|message|>cd"
    answer = heads.format("ab", "analysis", "Hm") + again
    shown = "commentaryabassistantanalysisHmassistantfinalcd"
    for pieces in (cut(answer), letters(cut(answer))):
        assert stopped(stops_of("harmony", Place.START, stop), pieces) == (shown, None)


@given(st.text("<think>/ \nab", max_size=30), st.sampled_from(["\n", "a", "b<", "ab"]), st.data())
def test_how_tokens_cut_the_text_changes_nothing(answer: str, stop: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(answer)))) | {0, len(answer)})
    pieces = [answer[a:b] for a, b in pairwise(cuts)]
    once = stopped(stops_of("think", Place.START, stop), [answer])
    assert stopped(stops_of("think", Place.START, stop), pieces) == once
    if once[1] is None:
        assert once[0] == answer
