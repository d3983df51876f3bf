from __future__ import annotations

from inference.grammar.build import build
from inference.grammar.vocabulary import GrammarVocabulary
from inference.grammar_limits import GrammarLimits
from inference.types import Grammar, GrammarKind
from tests.unit.inference.grammar.vocabularies import (
    CALL,
    END,
    PIECE,
    SPECIAL,
    STOP,
    TOKENS,
    VOCABULARY,
    allowed,
    lark,
    regex,
)


def test_text_never_matches_a_special_token_of_the_same_name() -> None:
    assert allowed(regex("<call>")) == {ord("<"), CALL}


def test_text_of_any_kind_leaves_out_special_tokens_but_not_added_ones() -> None:
    everything = allowed(regex("(?s:.*)"))
    assert {CALL, PIECE, END, STOP} <= everything
    assert SPECIAL not in everything


def test_lark_names_a_special_token_by_its_id() -> None:
    grammar = lark(f'start: "a" <[{SPECIAL}]> "b"')
    assert allowed(grammar, b"a") == {SPECIAL}
    assert allowed(grammar, [ord("a"), SPECIAL]) == {ord("b")}


def test_every_eos_token_ends_a_text() -> None:
    assert allowed(regex("a"), b"a") == {END, STOP}


def test_a_vocabulary_without_eos_allows_nothing_at_the_end() -> None:
    for count in (31, 32, 33):
        tokens = TOKENS[ord("a") : ord("a") + count]
        vocabulary = GrammarVocabulary(tokens, frozenset(), ())
        grammar = build(vocabulary, Grammar(kind=GrammarKind.REGEX, source="ab"), GrammarLimits())
        assert allowed(grammar, [0, 1]) == set()
        matcher = grammar.start()
        assert [matcher.accept(0), matcher.accept(1)] == [True, True]
        assert matcher.finished


def test_eos_beyond_the_vocabulary_is_left_out() -> None:
    assert GrammarVocabulary(TOKENS, frozenset(), (END, 10_000)).eos_token_ids == (END,)
    assert VOCABULARY.size == len(TOKENS)
