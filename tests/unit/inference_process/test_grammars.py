"""Grammars in the engine's process: compiled late, once, and on whichever thread needs them."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import numpy as np
import pytest

from inference.grammar import late
from inference.grammar.build import build
from inference.grammar.compiled import LarkGrammar
from inference.grammar.late import LateGrammar, SharedVocabulary
from inference.grammar.masks import SLOW_SECONDS, Guide, Late, MaskPool
from inference.grammar.vocabulary import GrammarVocabulary
from inference.grammar_limits import GrammarLimits
from inference.ipc.framing import FrameFault, pack, unpack
from inference.ipc.grammar_tokens import GrammarSource, GrammarTokens
from inference.ipc.messages import FROM_API, Vocabulary
from inference.process.grammars import Shelf
from inference.process.remote import RemoteCore
from inference.process.requests import to_submit
from inference.types import CompiledGrammar, Grammar, GrammarKind, Matcher
from tests.embedded import tokenizer, tokens, vocabulary
from tests.unit.inference_process.test_remote import request

EOS = (2, 0)
LIMITS = GrammarLimits()
SECONDS = 60.0
SCHEMA = """{"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["x", "yy"]}},
 "required": ["n", "s"], "additionalProperties": false}"""
GRAMMARS = (
    Grammar(kind=GrammarKind.JSON_SCHEMA, source=SCHEMA),
    Grammar(kind=GrammarKind.REGEX, source="[a-f]{3}-[0-9]+"),
    Grammar(kind=GrammarKind.LARK, source='start: "a" | "bc" "d"*'),
)


def shared() -> tuple[Shelf, str]:
    """Return a shelf with the embedded model's tokens as they come over the wire."""
    core = RemoteCore("/nowhere")
    core.share(tokens(*EOS))
    assert core._vocabulary is not None
    message = unpack(FROM_API, core._vocabulary[4:])
    assert isinstance(message, Vocabulary)
    shelf = Shelf()
    return shelf, shelf.add(message)


def source(lark: str, seconds: float = 0.001) -> GrammarSource:
    return GrammarSource(lark, LIMITS, seconds)


def compiled(grammar: Grammar) -> LarkGrammar:
    return build(vocabulary(*EOS), grammar, LIMITS)


def crossed(grammar: LarkGrammar) -> GrammarSource:
    """Return what the engine gets of a grammar that another process has compiled."""
    checked = GrammarSource(grammar.source, grammar.limits, grammar.seconds)
    late_one = LateGrammar(SharedVocabulary(tokens(*EOS)), checked)
    received = unpack(FROM_API, pack(to_submit(1, replace(request("a"), grammar=late_one)))[4:])
    assert isinstance(received.grammar, GrammarSource)
    return received.grammar


def masks(matcher: Matcher, tokens: list[int]) -> list[list[int]]:
    """Return the masks along a text."""
    found = []
    for token in tokens:
        mask = np.zeros(-(-len(vocabulary(*EOS).token_bytes) // 32), dtype=np.uint32)
        matcher.fill_mask(mask)
        found.append(mask.tolist())
        if not matcher.accept(token):
            break
    return found


@pytest.mark.parametrize(
    ("grammar", "text"),
    [(GRAMMARS[0], '{"n": 12, "s": "yy"}'), (GRAMMARS[1], "abc-12"), (GRAMMARS[2], "bcdd")],
)
def test_what_crossed_allows_the_same_tokens(grammar: Grammar, text: str) -> None:
    here = compiled(grammar)
    shelf, digest = shared()
    there = shelf.grammar(digest, crossed(here))
    tokens = tokenizer().encode(text, add_special_tokens=False)
    wanted = masks(here.start(), tokens)
    assert masks(there.start(), tokens) == wanted
    assert len(wanted) == len(tokens)


def test_nothing_is_compiled_before_a_matcher_needs_it_and_then_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []

    class Noted(LarkGrammar):
        def __init__(self, *arguments: object) -> None:
            threads.append(threading.current_thread().name)
            super().__init__(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(late, "LarkGrammar", Noted)
    shelf, digest = shared()
    pool = MaskPool(2048, EOS)
    guides = [pool.guide(shelf.grammar(digest, source("start: /a+/"))) for _ in range(4)]
    assert threads == []
    for guide in guides:
        guide.begin()
    pool.wait(guides, SECONDS)
    assert [guide.failure for guide in guides] == [None] * 4
    assert threads == ["grammar-masks"]
    pool.close()


def test_a_grammar_that_can_not_be_compiled_here_fails_its_text_alone() -> None:
    shelf, digest = shared()
    pool = MaskPool(2048, EOS)
    bad = pool.guide(shelf.grammar(digest, source("start: nothing_of_the_kind")))
    good = pool.guide(shelf.grammar(digest, source("start: /a+/")))
    for guide in (bad, good):
        guide.begin()
    pool.wait([bad, good], SECONDS)
    assert bad.failure is not None
    assert "can't compile" in bad.failure
    assert good.failure is None
    pool.close()


def test_those_used_last_stay_compiled() -> None:
    shelf, digest = shared()
    first = shelf.grammar(digest, source("start: /a+/", 0.5))
    assert shelf.grammar(digest, source("start: /a+/", 0.7)) is first
    assert first.seconds_to_compile == 0.5
    first.compiled()
    assert first.seconds_to_compile == 0.0
    other_limits = GrammarSource("start: /a+/", GrammarLimits(lexer_states=99), 0.5)
    assert shelf.grammar(digest, other_limits) is not first


def test_what_will_take_long_waits_for_its_like_and_is_forgotten_then() -> None:
    shelf, digest = shared()
    matcher = shelf.grammar(digest, source("start: /a+/", 2.0)).start()
    assert isinstance(matcher, Late)
    guide = Guide(matcher, MaskPool(2048, EOS).endings, Guide.compute)
    assert guide.cost == 2.0 > SLOW_SECONDS
    guide.begin()
    assert guide.failure is None
    assert guide.cost < 1.0


def test_processes_with_the_same_tokens_share_them() -> None:
    shelf, digest = shared()
    message = Vocabulary(GrammarTokens((b"a", b"b"), (), (1,)))
    other = shelf.add(message)
    assert other != digest
    assert shelf.add(Vocabulary(GrammarTokens((b"a", b"b"), (), (1,)))) == other
    for at in range(2):
        shelf.add(Vocabulary(GrammarTokens((b"a", b"b", bytes([at])), (), (1,))))
    with pytest.raises(FrameFault, match="<= 4 vocabularies"):
        shelf.add(Vocabulary(GrammarTokens((b"c",), (), ())))


def test_a_grammar_before_the_vocabulary_is_a_fault() -> None:
    with pytest.raises(FrameFault, match="before the vocabulary"):
        Shelf().grammar(None, source("start: /a/"))


def test_a_grammar_of_another_kind_can_not_cross() -> None:
    class Other:
        def start(self) -> Matcher:
            raise AssertionError

    with pytest.raises(TypeError, match="Other can't go to another process"):
        to_submit(1, replace(request("a"), grammar=Other()))


def test_a_received_grammar_is_a_compiled_one() -> None:
    shelf, digest = shared()
    grammar: CompiledGrammar = shelf.grammar(digest, source("start: /ab/"))
    assert isinstance(grammar, LateGrammar)
    matcher = grammar.start()
    assert [matcher.finished, matcher.error] == [False, None]


def test_limits_are_told_apart_whatever_their_hashes() -> None:
    shelf, digest = shared()
    one, other = (GrammarLimits(chain=chain) for chain in (-1, -2))
    assert hash(one) == hash(other)
    first = shelf.grammar(digest, GrammarSource("start: /a/", one, 0.1))
    assert shelf.grammar(digest, GrammarSource("start: /a/", other, 0.1)) is not first


def test_vocabulary_that_can_not_be_used_says_why_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("no such tokens")

    monkeypatch.setattr(GrammarVocabulary, "of", refuse)
    received = SharedVocabulary(GrammarTokens((b"a",), (), ()))
    for _ in range(2):
        with pytest.raises(ValueError, match="no such tokens"):
            received.get()


def test_a_text_that_breaks_a_grammar_costs_the_next_one_a_compilation_and_nothing_else() -> None:
    shelf, digest = shared()
    lark = "start: /[ab]*a[ab]{12}c/"  # a lexer makes a state for each of 2**12 endings
    grammar = shelf.grammar(digest, GrammarSource(lark, replace(LIMITS, lexer_states=300), 0.001))
    draw, mask = random.Random(1), np.zeros(-(-len(vocabulary(*EOS).token_bytes) // 32), dtype=np.uint32)
    a, b = (tokenizer().encode(each, add_special_tokens=False)[0] for each in "ab")
    breaks = grammar.start()
    while breaks.error is None and breaks.accept(draw.choice((a, b))):
        breaks.fill_mask(mask)
    assert grammar.start().seconds_to_prepare == grammar.compiled().seconds
    after = grammar.start()
    after.prepare()
    assert grammar.seconds_to_compile == 0.0
    whole = compiled(Grammar(kind=GrammarKind.LARK, source=lark))
    assert masks(after, [a, b]) == masks(whole.start(), [a, b])
