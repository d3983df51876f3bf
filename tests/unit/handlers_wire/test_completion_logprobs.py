from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from handlers.wire.completion_logprobs import LogprobsTeller, joined, to_logprobs
from handlers.wire.token_places import TokenPlaces
from inference.types import PromptToken, Token

PIECES = st.lists(st.text(min_size=1, max_size=4), max_size=8)


@given(PIECES, PIECES)
def test_each_token_is_found_at_its_place_in_the_echoed_text(prompt: list[str], made: list[str]) -> None:
    from tests.unit.handlers_wire.conftest import Sample

    text = "".join(prompt) + "".join(made)
    places = TokenPlaces()
    begun = [PromptToken(1, "<s>", None), *(PromptToken(2, piece, -1.0) for piece in prompt)]
    starts = places.prompt(begun, "".join(prompt))
    output = Sample.output([Token(3, piece, -1.0, False) for piece in [*made, "."]])
    starts += places.generated(output[: len(made)])
    assert all(text.startswith(piece, at) for piece, at in zip([*prompt, *made], starts[1:], strict=True))


def test_tokens_without_a_text_of_their_own_take_no_room_and_the_next_is_found_again() -> None:
    tokens = [
        PromptToken(id, text, -1.0) for id, text in enumerate(["<s>", "a", "\ufffd", "\ufffd", "b", "b"])
    ]
    assert TokenPlaces().prompt(tokens, "aéxbb") == [0, 0, 1, 1, 3, 4]


def test_a_special_token_takes_no_room(sample: Any) -> None:
    tokens = [sample.token(1, "ab", -1.0), sample.token(2, "</s>", -1.0, special=True)]
    places = TokenPlaces()
    assert places.generated(sample.output(tokens)) == [0, 2]
    assert places.generated(sample.output([sample.token(3, "c", -1.0)])) == [2]


def test_the_four_lists(sample: Any) -> None:
    a, b, c = (sample.token(id, text, -id) for id, text in ((1, "a"), (2, "b"), (3, "c")))
    first = sample.prompt_token(7, "x", None)
    made = to_logprobs([(first, ()), (a, (a, b)), (c, (a, b))], [0, 1, 2], 2)
    assert made == {
        "tokens": ["x", "a", "c"],
        "token_logprobs": [None, -1.0, -3.0],
        "top_logprobs": [None, {"a": -1.0, "b": -2.0}, {"a": -1.0, "b": -2.0, "c": -3.0}],
        "text_offset": [0, 1, 2],
    }


def test_no_alternatives_unless_asked_for_and_never_more(sample: Any) -> None:
    a, b = sample.token(1, "a", -1.0), sample.token(2, "b", -1.0)
    assert to_logprobs([(a, (a, b))], [0], 0)["top_logprobs"] is None
    assert to_logprobs([(a, (a, b))], [0], 1)["top_logprobs"] == [{"a": -1.0}]


def test_of_two_tokens_with_the_same_text_the_likelier_is_told(sample: Any) -> None:
    likely, unlikely = sample.token(1, "\ufffd", -1.0), sample.token(2, "\ufffd", -2.0)
    assert to_logprobs([(likely, (likely, unlikely))], [0], 2)["top_logprobs"] == [{"\ufffd": -1.0}]


def test_a_part_of_a_character_is_written_alike_wherever_it_is_told(sample: Any) -> None:
    """`top_logprobs[i][tokens[i]]` is what evaluations look for."""
    table = [b"", b"\xe6", b"\xaf hi", b"\xe7"]
    begun, ended, other = (
        sample.token(1, "", -1.0),
        sample.token(2, "\u6bef hi", -0.5),
        sample.token(3, "", -2.0),
    )
    prompt = (sample.prompt_token(0, "<s>", None), sample.prompt_token(1, "\ufffd", -1.0))
    made = to_logprobs(
        [(prompt[0], ()), (prompt[1], (other, begun)), (begun, (begun, other)), (ended, (begun, other))],
        [0, 0, 1, 1],
        2,
        table,
    )
    assert made["tokens"] == ["<s>", "\\xe6", "\\xe6", "\\xaf hi"]
    assert made["top_logprobs"] == [
        None,
        {"\\xe7": -2.0, "\\xe6": -1.0},
        {"\\xe6": -1.0, "\\xe7": -2.0},
        {"\\xe6": -1.0, "\\xe7": -2.0, "\\xaf hi": -0.5},
    ]


def test_what_is_impossible_has_openais_number(sample: Any) -> None:
    banned = sample.token(1, "a", float("-inf"))
    assert to_logprobs([(banned, (banned,))], [0], 1)["token_logprobs"] == [-9999.0]


def test_the_parts_of_a_completion_join_to_one(sample: Any) -> None:
    teller = LogprobsTeller(0)
    prompt = teller.prompt([sample.prompt_token(7, "xy", None)], "xy")
    text = teller.generated(sample.output([sample.token(1, "a", -1.0), sample.token(2, "b", -2.0)]))
    assert joined([prompt, text]) == {
        "tokens": ["xy", "a", "b"],
        "token_logprobs": [None, -1.0, -2.0],
        "top_logprobs": None,
        "text_offset": [0, 2, 3],
    }
    silent = LogprobsTeller(None)
    assert (
        joined([silent.prompt([], "xy"), silent.generated(sample.output([sample.token(1, "a", -1.0)]))])
        is None
    )
