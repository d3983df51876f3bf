"""Compiled grammars and the matchers of single texts, over llguidance.

Matchers of one grammar share its lexer, whose states are made as texts need them. When the lexer is
full, or gave up at one text's step, all of them get an error: then the grammar is compiled again,
once for all, and each matcher goes on in it with its text so far. A text that breaks a lexer which
is nearly new fails by itself; the others, and those that begin later, get a new one.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from numpy.typing import NDArray

from inference.grammar.complaints import plain
from inference.grammar.vocabulary import GrammarVocabulary
from inference.grammar_limits import GrammarLimits

Mask = NDArray[np.uint32]

HEADER = '%llguidance {"no_forcing": true}\n'  # the model decides on the tokens of a forced text, too
SLOW_SECONDS = 0.001  # for a mask; llguidance keeps the GIL for as long while it takes the next token
RENEW_AFTER = 256  # masks of all texts; a lexer that fails earlier fails by the text that meets it first


@dataclass(slots=True)
class Parser:
    """The beginning of all texts of a grammar, and how much it has been used."""

    matcher: LLMatcher
    masks: int = 0  # about: counted by several threads at once
    spent: bool = False  # a text broke it and has failed: no other one can use it


class LarkGrammar:
    """A grammar in llguidance's Lark, compiled; what is wrong with it is in `error`."""

    def __init__(self, vocabulary: GrammarVocabulary, source: str, limits: GrammarLimits) -> None:
        self.vocabulary = vocabulary
        self.source = source
        self.limits = limits
        self._parser_limits = parser_limits(limits)
        self._lock = threading.Lock()
        began = time.perf_counter()
        self._parser = self._compiled()
        self.seconds = time.perf_counter() - began  # that the compilation took

    @property
    def error(self) -> str:
        """Return what llguidance says against the grammar, "" for nothing."""
        return self._parser.matcher.get_error()

    @property
    def seconds_to_start(self) -> float:
        """Return how long a text that begins now has to wait for its parser."""
        return self.seconds if self._parser.spent else 0.0

    def start(self) -> TextMatcher:
        """Return a matcher at the beginning of a text, within microseconds.

        Where a text broke the parser, its `prepare`, or else its first mask, compiles the grammar anew.
        """
        return TextMatcher(self, self._parser)

    def renewed(self, broken: Parser) -> Parser | None:
        """Return what replaces a parser that failed; None to the text that broke it when it was new."""
        with self._lock:
            if self._parser is broken and not broken.spent and broken.masks < RENEW_AFTER:
                broken.spent = True
                return None
            if self._parser is broken or self._parser.spent:
                self._parser = self._compiled()
            return self._parser

    def _compiled(self) -> Parser:
        matcher = LLMatcher(
            self.vocabulary.tokenizer, HEADER + self.source, log_level=0, limits=self._parser_limits
        )
        return Parser(matcher)


class TextMatcher:
    """One text's way through a grammar; used by one thread at a time."""

    def __init__(self, grammar: LarkGrammar, parser: Parser) -> None:
        self._grammar = grammar
        self._vocabulary = grammar.vocabulary
        self._parser = parser
        self._matcher = parser.matcher.deep_copy()
        self._text: list[int] = []  # token ids accepted
        self._slow = False  # the last mask was, so the token after it will be
        self._broke = False  # its parser, nearly new: it would do so again

    @property
    def seconds_to_prepare(self) -> float:
        """Return how long `prepare` is going to take."""
        return self._grammar.seconds if self._parser.spent else 0.0

    def prepare(self) -> None:
        """Have the grammar compiled anew if an earlier text broke its parser; called before the text."""
        parser = self._grammar.renewed(self._parser) if self._parser.spent else None
        if parser is not None:
            self._parser, self._matcher = parser, parser.matcher.deep_copy()

    def accept(self, token_id: int) -> bool:
        """Go on by a token; false if the grammar doesn't allow it, or a limit was passed: see `error`."""
        if not 0 <= token_id < self._vocabulary.size:
            return False
        if self.finished:
            return token_id in self._vocabulary.eos_token_ids
        if not self._consumed(token_id):
            if not self._restart():
                return False
            if not self._consumed(token_id):
                self._parser.spent = self._broke = True
                return False
        self._text.append(token_id)
        return True

    def fill_mask(self, mask: Mask) -> None:
        """Write which tokens may come next: one bit each, the lowest first; EOS where the text may end.

        Releases the GIL. Tokens beyond the grammar's vocabulary are not allowed.
        """
        words = self._vocabulary.words
        fits = mask.size >= words and mask.flags.c_contiguous and mask.dtype == np.uint32
        target = mask[:words] if fits else np.empty(words, dtype=np.uint32)
        self._fill(target)
        if self._matcher.is_error() and self._restart():
            self._fill(target)
            if self._matcher.is_error():
                self._parser.spent = self._broke = True
        if not self._vocabulary.eos_token_ids:  # the one that llguidance added is none of the model's
            target[self._vocabulary.size // 32] &= ~np.uint32(1 << self._vocabulary.size % 32)
        if not fits:
            mask[:words] = target[: mask.size]
        mask[words:] = 0

    @property
    def finished(self) -> bool:
        """Return whether nothing but EOS can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error() and self._matcher.is_accepting()

    @property
    def error(self) -> str | None:
        """Return why it can't go on: a limit of the work per token was passed."""
        if self._matcher.is_error():
            return plain(self._matcher.get_error())
        if self._matcher.is_stopped() and not self._matcher.is_accepting():
            return "no token of the model's vocabulary can follow, and the text is not at its end"
        return None

    def _consumed(self, token_id: int) -> bool:
        if self._slow:
            return self._vocabulary.consume(self._matcher, token_id)
        return self._matcher.try_consume_tokens([token_id]) == 1

    def _fill(self, target: Mask) -> None:
        self._parser.masks += 1
        began = time.perf_counter()
        self._matcher.unsafe_compute_mask_ptr(target.ctypes.data, target.nbytes)
        self._slow = time.perf_counter() - began > SLOW_SECONDS

    def _restart(self) -> bool:
        """Go on with a new parser after an error; false where there was none, or it would come again."""
        if not self._matcher.is_error():  # a token that a broken lexer refuses is no error yet, a mask is
            self._fill(np.empty(self._vocabulary.words, dtype=np.uint32))
        if self._broke or not self._matcher.is_error():
            return False
        parser = self._grammar.renewed(self._parser)
        if parser is None:
            self._broke = True
            return False
        matcher = parser.matcher.deep_copy()
        if matcher.try_consume_tokens(self._text) != len(self._text):
            parser.spent = self._broke = True
            return False
        self._parser, self._matcher = parser, matcher
        return True


def parser_limits(limits: GrammarLimits) -> LLParserLimits:
    """Return the limits as llguidance takes them; its messages then tell nothing of the grammar."""
    return LLParserLimits(
        max_items_in_row=limits.row_items,
        initial_lexer_fuel=limits.compile_fuel,
        step_lexer_fuel=limits.step_fuel,
        step_max_items=limits.step_items,
        max_lexer_states=limits.lexer_states,
        max_grammar_size=limits.grammar_symbols,
        verbose_errors=False,
    )
