from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.text.sequence import SequenceText, TextStep
from inference.text.tokenizer import FastTokenizer
from tests.unit.inference_text import tokenizers_in_memory as made

TOKENIZER = FastTokenizer(made.byte_level())
EOS = 1


def sequence(stops: list[str]) -> SequenceText:
    return SequenceText(TOKENIZER.stream([]), stops, TOKENIZER.token_text)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_special_tokens_have_a_text_but_are_not_visible() -> None:
    text = sequence([])
    assert text.push(EOS, special=True) == TextStep("</s>", "", False)
    assert text.flush() == ""
    assert text.text == ""


def test_a_stop_sequence_stays_in_the_text_and_not_in_what_is_released() -> None:
    text = sequence(["STOP"])
    steps = [text.push(token_id, special=False) for token_id in ids_of("go STOP on")]
    assert any(step.stopped for step in steps)
    assert text.flush() == ""
    assert (text.text, text.text_before_stop) == ("go STOP", "go ")


def test_a_stop_sequence_is_not_found_within_the_text_of_a_special_token() -> None:
    text = sequence(["/s"])
    assert not text.push(EOS, special=True).stopped


def test_a_special_token_stops_if_its_whole_text_is_a_stop_sequence() -> None:
    text = sequence(["</s>"])
    assert text.push(EOS, special=True).stopped
    assert text.text == ""


def test_a_special_token_within_a_character_does_not_break_it() -> None:
    euro = ids_of("€")
    text = sequence([])
    for token_id in [euro[0], EOS, *euro[1:]]:
        text.push(token_id, special=token_id == EOS)
    text.flush()
    assert text.text == "€"


@given(
    st.text(alphabet="ab€京 ", max_size=20),
    st.lists(st.text(alphabet="ab€京 ", min_size=1, max_size=4), max_size=3),
)
def test_what_is_released_is_exactly_the_text_before_the_stop(said: str, stops: list[str]) -> None:
    text = sequence(stops)
    released = ""
    for token_id in ids_of(said):
        step = text.push(token_id, special=False)
        released += step.delta
        if step.stopped:
            break
    released += text.flush()
    assert released == text.text_before_stop
    assert not any(stop in released for stop in stops)
    assert text.stopped is any(stop in said for stop in stops)
    assert said.startswith(text.whole_text)
    assert text.whole_text.startswith(text.text)
    assert text.text.startswith(released)


def test_a_stop_sequence_before_the_text_may_stop_is_text() -> None:
    text = sequence(["STOP", "</s>"])
    early = [text.push(token_id, special=False, may_stop=False) for token_id in ids_of("STOP ")]
    early.append(text.push(EOS, special=True, may_stop=False))
    late = [text.push(token_id, special=False) for token_id in ids_of("on STOP")]
    assert [step.stopped for step in early + late] == [False] * (len(early) + len(late) - 1) + [True]
    text.flush()
    assert (text.text, text.text_before_stop) == ("STOP on STOP", "STOP on ")


@given(
    st.text(alphabet="ab€京 ", max_size=20),
    st.lists(st.text(alphabet="ab€京 ", min_size=1, max_size=4), max_size=3),
    st.integers(0, 30),
)
def test_no_text_is_lost_or_doubled_where_stopping_begins_late(
    said: str, stops: list[str], first: int
) -> None:
    text = sequence(stops)
    released = ""
    steps = []
    for at, token_id in enumerate(ids_of(said)):
        steps.append(text.push(token_id, special=False, may_stop=at >= first))
        released += steps[-1].delta
        if steps[-1].stopped:
            break
    released += text.flush()
    assert not any(step.stopped for step in steps[:first])
    assert released == text.text_before_stop
    assert said.startswith(text.text)
    assert text.text == said or steps[-1].stopped
