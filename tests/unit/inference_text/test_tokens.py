"""Tokens that are made when they are looked at: the same ones however that is."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.tokenizer import FastTokenizer
from inference.text.tokens import SLICE
from inference.types import TextToken
from tests.unit.inference_text import tokenizers_in_memory as made

tokenizer = cache(lambda: FastTokenizer(made.byte_level()))
TEXT = st.text(max_size=30)


@given(TEXT, st.slices(20))
def test_places_and_slices_are_those_of_the_tokens_in_order(text: str, part: slice) -> None:
    tokens = tokenizer().tokenize(text, add_special_tokens=False)
    every = list(tokens)
    assert len(tokens) == len(every)
    assert tokens[part] == tuple(every[part])
    assert [tokens[at] for at in range(-len(every), len(every))] == every * 2
    for outside in (len(every), -len(every) - 1):
        with pytest.raises(IndexError):
            tokens[outside]


def test_a_text_of_many_slices_has_each_token_once() -> None:
    text = "é" * SLICE + "a" * (SLICE // 2)
    tokens = list(tokenizer().tokenize(text, add_special_tokens=False))
    data = text.encode()
    assert len(tokens) > SLICE
    assert [token.id for token in tokens] == made.byte_level().encode(text, add_special_tokens=False).ids
    assert all(token.text == data[token.start : token.stop].decode() for token in tokens)
    assert sorted({token.start for token in tokens}) == [
        at for at in range(len(data)) if data[at] & 0xC0 != 0x80
    ]


def test_no_token_at_all() -> None:
    tokens = tokenizer().tokenize("", add_special_tokens=False)
    assert (len(tokens), tuple(tokens), tokens[:5]) == (0, (), ())


def test_what_is_made_is_plain_numbers() -> None:
    (token,) = tokenizer().tokenize("</s>", add_special_tokens=False)
    assert token == TextToken(1, "</s>", 0, 4, True)
    assert [type(value) for value in (token.id, token.start, token.stop, token.special)] == [
        int,
        int,
        int,
        bool,
    ]
