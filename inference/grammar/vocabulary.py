"""A model's vocabulary as llguidance needs it: the bytes that each token stands for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from llguidance import LLExecutor, LLMatcher, LLTokenizer

from inference.ipc.grammar_tokens import GrammarTokens


class GrammarVocabulary:
    """The tokens that grammars are matched with.

    Text never matches a special token and EOS, whatever their names; a Lark grammar names them as
    <[id]>. All other added tokens are plain bytes. llguidance reads tokenizer.json itself, but takes
    each added token for special there, so that no grammar could write Qwen's <tool_call> as text.
    """

    def __init__(
        self, token_bytes: Sequence[bytes], special_ids: frozenset[int], eos_token_ids: tuple[int, ...]
    ) -> None:
        self.token_bytes = token_bytes
        self.special_ids = special_ids
        self.eos_token_ids = tuple(token for token in eos_token_ids if token < len(token_bytes))
        self.size = len(token_bytes)
        special = sorted(special_ids.union(self.eos_token_ids))
        named = list(token_bytes)
        for token in special:  # without a name of its own a mask for <[id]> has others' bits as well
            named[token] = f"<{token}>".encode()
        tokens = _Tokens(named, special, next(iter(self.eos_token_ids), None))
        self.tokenizer = LLTokenizer(tokens, eos_token=list(self.eos_token_ids) or None)  # type: ignore[arg-type]
        self._anything = LLMatcher(self.tokenizer, "start: /(?s:.*)/", log_level=0)
        self.words = -(-self.tokenizer.vocab_size // 32)  # of a mask; one EOS is added where there is none

    @classmethod
    def of(cls, tokens: GrammarTokens) -> GrammarVocabulary:
        """Return the tokens as grammars are matched with them; takes some 100 ms for 100,000."""
        return cls(tokens.token_bytes, frozenset(tokens.special_ids), tokens.eos_token_ids)

    def consume(self, matcher: LLMatcher, token_id: int) -> bool:
        """Let a matcher go on by a token, without the GIL.

        llguidance keeps it for one matcher, and one token can take 100 ms, but releases it for several.
        Costs 20 us more than the matcher's own method.
        """
        pair = [(matcher, token_id), (self._anything.deep_copy(), token_id)]
        return self._beside.consume_token_par(pair)[0]

    @cached_property
    def _beside(self) -> LLExecutor:
        return LLExecutor(num_threads=1)  # a thread: none before this process forks


class _Tokens:
    """What LLTokenizer reads; it asks for these names only."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_token_ids: list[int], eos_token_id: int | None) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = eos_token_id

    def __call__(self, text: str) -> list[int]:
        """Refuse: tokens are forced only by grammars without `no_forcing`, and none is compiled here."""
        raise NotImplementedError("a grammar without `no_forcing` asked for the tokens of a text")
