from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from inference.frontend.generation import EventAssembler
from inference.text.pipeline import TextPipeline
from inference.types import CoreOutput, Event, FinishReason, Request
from tests.unit.inference.puppet import EOS, TOKENIZER, load_text

WORDS = ["a", "b", "€", "京", "<|im_end|>", "<|endoftext|>"]
TABLE = TOKENIZER.token_bytes() or []


@cache
def text() -> TextPipeline:
    return load_text()


def assembled(request: Request, ids: list[int]) -> list[Event]:
    """Return the events of an engine that generates these ids, up to the end of the text."""
    assembler = EventAssembler(request, (40,), text(), frozenset({EOS}), 0.0, 0.0)
    events = []
    for at, token_id in enumerate(ids, 1):
        ends = token_id == EOS and not request.ignore_eos and at > request.min_new_tokens
        finish = FinishReason.LENGTH if at == len(ids) else FinishReason.EOS if ends else None
        events.append(assembler.event(CoreOutput("a", token_id, -0.5, finish=finish)))
        if events[-1].finish is not None:
            break
    return events


@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=12),
    st.lists(st.text(alphabet="ab€京", min_size=1, max_size=3), max_size=3),
    st.integers(0, 12),
    st.booleans(),
    st.integers(0, 2),
)
def test_the_events_say_the_whole_text_once_and_end_once(
    words: list[str], stops: list[str], minimum: int, ignore_eos: bool, cut: int
) -> None:
    ids = TOKENIZER.encode("".join(words), add_special_tokens=False)
    ids = ids[: max(1, len(ids) - cut)]  # the limit may cut a character
    request = Request(id="a", prompt="x", stop=tuple(stops), min_new_tokens=minimum, ignore_eos=ignore_eos)
    events = assembled(request, ids)
    *before, last = events
    assert all(event.finish is None for event in before)
    finish = last.finish
    assert finish is not None
    assert finish.generated_tokens == len(events)
    assert len(events) >= min(minimum, len(ids))
    assert "".join(event.delta for event in events) == finish.text_before_stop
    generated = b"".join(TABLE[event.token.id] for event in events).decode("utf-8", "ignore")
    assert generated.startswith(finish.text)
    if finish.reason is not FinishReason.STOP:  # nothing is cut off but what the limit cut first
        assert generated == finish.text or finish.text.endswith(tuple(stops))
    else:
        assert finish.text.endswith(tuple(stops))
    if not ignore_eos:
        assert all(event.token.id != EOS for event in events[minimum:-1])
