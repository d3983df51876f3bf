from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from inference.grammar import compiled
from tests.unit.inference.grammar.vocabularies import END, LIMITS, PIECE, STOP, VOCABULARY, bits, lark, regex

MANY_STATES = "[ab]*a[ab]{12}c"  # a lexer makes a state for each of 2**12 endings
WORDS = VOCABULARY.words


def test_a_token_that_is_not_allowed_changes_nothing() -> None:
    matcher = regex("ab").start()
    assert not matcher.accept(ord("b"))
    assert not matcher.accept(10_000)
    assert not matcher.accept(-1)
    assert not matcher.accept(END)
    assert matcher.error is None
    assert matcher.accept(ord("a"))


def test_a_text_that_can_only_end_takes_eos_and_nothing_else() -> None:
    matcher = regex("ab").start()
    assert [matcher.accept(ord("a")), matcher.finished] == [True, False]
    assert [matcher.accept(ord("b")), matcher.finished] == [True, True]
    assert not matcher.accept(ord("b"))
    assert matcher.accept(END)
    assert matcher.accept(STOP)


def test_eos_ends_a_text_that_could_go_on() -> None:
    matcher = regex("a+").start()
    matcher.accept(ord("a"))
    assert not matcher.finished
    assert matcher.accept(END)
    assert matcher.finished


def test_texts_of_one_grammar_go_their_own_ways() -> None:
    grammar = regex("(ab|cd)+")
    first, second = grammar.start(), grammar.start()
    assert first.accept(ord("a"))
    assert second.accept(ord("c"))
    assert first.accept(ord("b"))
    assert not second.accept(ord("b"))


@pytest.mark.parametrize("words", [1, 4, WORDS - 1, WORDS, WORDS + 1, WORDS + 40])
def test_a_mask_of_any_size_is_filled_to_its_end(words: int) -> None:
    mask = np.full(words, 0xFFFFFFFF, dtype=np.uint32)
    regex("a|\\x{7f}").start().fill_mask(mask)
    assert bits(mask) == {token for token in (ord("a"), 0x7F) if token < 32 * words}


def test_a_mask_that_is_no_continuous_memory_is_filled() -> None:
    mask = np.full((WORDS, 2), 0xFFFFFFFF, dtype=np.uint32)
    regex("a").start().fill_mask(mask[:, 1])
    assert bits(np.ascontiguousarray(mask[:, 1])) == {ord("a")}
    assert (mask[:, 0] == 0xFFFFFFFF).all()


def test_a_token_of_several_characters_is_allowed_where_all_of_them_are() -> None:
    grammar = lark('start: %json {"type": "object"}')
    matcher = grammar.start()
    for char in '{"a':
        assert matcher.accept(ord(char))
    mask = np.zeros(WORDS, dtype=np.uint32)
    matcher.fill_mask(mask)
    assert PIECE in bits(mask)  # `": `


def test_a_lexer_that_is_full_is_made_anew_and_no_text_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "RENEW_AFTER", 64)
    grammar, unlimited = regex(MANY_STATES, replace(LIMITS, lexer_states=300)), regex(MANY_STATES)
    draw = random.Random(1)
    mask, expected = np.zeros(WORDS, dtype=np.uint32), np.zeros(WORDS, dtype=np.uint32)
    for _ in range(20):
        texts, model = [grammar.start() for _ in range(3)], unlimited.start()
        for token in draw.choices(b"ab", k=60):
            assert model.accept(token)
            model.fill_mask(expected)
            for text in texts:
                assert text.accept(token)
                text.fill_mask(mask)
                assert text.error is None
                assert (mask == expected).all()


def test_a_grammar_whose_lexer_is_full_at_once_fails_its_text_and_says_why() -> None:
    matcher = regex(MANY_STATES, replace(LIMITS, lexer_states=100)).start()
    draw, mask = random.Random(1), np.zeros(WORDS, dtype=np.uint32)
    while matcher.error is None and matcher.accept(ord(draw.choice("ab"))):
        matcher.fill_mask(mask)
    assert matcher.error == "too many states: 100 >= 100"
    assert not matcher.finished
    assert not matcher.accept(ord("a"))


def test_a_text_that_breaks_the_lexer_takes_it_from_no_other() -> None:
    grammar = regex(MANY_STATES, replace(LIMITS, lexer_states=300))
    draw, mask = random.Random(1), np.zeros(WORDS, dtype=np.uint32)
    for _ in range(3):
        breaks, beside = grammar.start(), grammar.start()
        breaks.prepare()
        beside.prepare()
        while breaks.error is None and breaks.accept(ord(draw.choice("ab"))):
            breaks.fill_mask(mask)
        assert breaks.error == "too many states: 300 >= 300"
        assert not breaks.accept(ord("a"))
        prepared, unprepared = grammar.start(), grammar.start()
        assert prepared.seconds_to_prepare == grammar.seconds_to_start == grammar.seconds
        prepared.prepare()
        assert grammar.seconds_to_start == 0.0
        for text in (beside, prepared, unprepared):
            for token in b"ba" * 8 + b"c":
                text.fill_mask(mask)
                assert token in bits(mask)
                assert text.accept(token)
            assert text.error is None
            assert text.finished
