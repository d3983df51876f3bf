"""Token ids to text, one token at a time, never showing a part of a character.

Two ways, chosen by the tokenizer's decoder:

* `ByteStream`, where a token stands for fixed bytes (byte-level BPE, SentencePiece with byte
  fallback, which is nearly every decoder-only model): the bytes go through an incremental UTF-8
  decoder. Bytes that can't become a character turn into U+FFFD, exactly where a UTF-8 decoder of
  the whole would put it. The tokenizer's own decoder with byte fallback puts more: it gives up all
  byte tokens in a row with a bad one, where this keeps their characters: <0x9F><0x0A> is U+FFFD
  and a newline here, and twice U+FFFD there.
* `WindowStream`, for every other decoder: TGI's rule of two offsets. The last tokens are decoded
  without and with the new one, and the difference is its text.

In both, what is still incomplete when the sequence ends is dropped.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 5  # prompt tokens that decide about a leading space, as in TGI
HELD_TOKENS = 16  # a character takes 4 bytes at most: what is longer held is not a character

Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TextStream(Protocol):
    """The text of one growing sequence of tokens."""

    def push(self, token_id: int) -> str:
        """Return the text that the token completes, "" while a character is incomplete."""

    def flush(self) -> str:
        """Return the complete characters that were held back; call it when no more tokens come."""


LONGEST_CHARACTER = 4  # bytes of UTF-8


class ByteStream:
    """Detokenises where every token stands for fixed bytes."""

    def __init__(
        self, token_bytes: Callable[[int], bytes], *, strip_space: bool, context: Sequence[int] = ()
    ) -> None:
        """`context` are tokens before the first: a prompt of tokens may end within a character."""
        self._token_bytes = token_bytes
        self._strip_space = strip_space  # one space at the very start is the tokenizer's, not the text's
        self._utf8 = Utf8Decoder("replace")
        self._utf8.decode(unfinished(b"".join(map(token_bytes, context[-LONGEST_CHARACTER:]))))

    def push(self, token_id: int) -> str:
        text = self._utf8.decode(self._token_bytes(token_id))
        if self._strip_space and text:
            self._strip_space = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        return ""  # only a part of a character can be left


def unfinished(data: bytes) -> bytes:
    """Return the bytes at the end of UTF-8 that begin a character, and don't complete it."""
    for size in range(1, min(len(data), LONGEST_CHARACTER - 1) + 1):
        first = data[-size]
        if first >= 0xC0:  # how many bytes it has, its upper bits say
            whole = 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2
            return data[-size:] if size < whole else b""
        if first < 0x80:
            break
    return b""


class WindowStream:
    """Detokenises by decoding a short window twice, without and with the newest token."""

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int]) -> None:
        self._decode = decode
        self._shown = list(context)  # tokens whose text was returned, as far back as decoding needs
        self._held: list[int] = []
        self._shown_text = decode(self._shown)

    def push(self, token_id: int) -> str:
        self._held.append(token_id)
        text = self._decode(self._shown + self._held)
        complete = len(text) > len(self._shown_text) and not text.endswith(REPLACEMENT)
        if not complete and len(self._held) < HELD_TOKENS:
            return ""
        new = text[len(self._shown_text) :]
        if new:
            self._shown, self._shown_text = self._held, self._decode(self._held)
        else:  # tokens without text decide about no space: keep the context that does
            self._shown_text = text
        self._held = []
        return new

    def flush(self) -> str:
        text = self._decode(self._shown + self._held)
        self._held = []
        return text[len(self._shown_text) :].rstrip(REPLACEMENT)


class ByteTable:
    """The bytes of each token, looked up once; `strips_space` as the tokenizer's decoder does."""

    def __init__(self, tokenizer: Tokenizer, to_bytes: Callable[[str], bytes], *, strips_space: bool) -> None:
        self._tokenizer = tokenizer
        self._to_bytes = to_bytes
        self._known: dict[int, bytes] = {}  # at most one entry for each id of the vocabulary
        self.strips_space = strips_space

    def __call__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            token = self._tokenizer.id_to_token(token_id)
            # Models pad their vocabulary: such an id has no token, and no text
            known = self._known[token_id] = b"" if token is None else self._to_bytes(token)
        return known


def byte_table(tokenizer: Tokenizer) -> ByteTable | None:
    """Return the bytes of the tokenizer's tokens, or None where its decoder needs more than one token."""
    if tokenizer.decoder is None:
        return None
    steps = decoder_steps(json.loads(tokenizer.decoder.__getstate__()))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteTable(tokenizer, byte_level_bytes(), strips_space=False)
    if kinds[:3] != ["Replace", "ByteFallback", "Fuse"] or not is_string_replace(steps[0]):
        return None
    if kinds[3:] == []:
        strips_space = False
    elif kinds[3:] == ["Strip"] and (steps[3]["content"], steps[3]["start"], steps[3]["stop"]) == (" ", 1, 0):
        strips_space = True
    else:
        return None
    old, new = steps[0]["pattern"]["String"], steps[0]["content"]
    return ByteTable(
        tokenizer, lambda token: fallback_bytes(token.replace(old, new)), strips_space=strips_space
    )


def metaspace_table(tokenizer: Tokenizer) -> ByteTable | None:
    """Return the bytes of the tokens of a Metaspace decoder, as it decodes all but the first of a text."""
    if tokenizer.decoder is None:
        return None
    steps = decoder_steps(json.loads(tokenizer.decoder.__getstate__()))
    if [step["type"] for step in steps] != ["Metaspace"]:
        return None
    mark = steps[0]["replacement"]
    return ByteTable(tokenizer, lambda token: token.replace(mark, " ").encode(), strips_space=True)


def decoder_steps(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a decoder's steps in order, nested sequences unfolded."""
    if state["type"] != "Sequence":
        return [state]
    return [step for inner in state["decoders"] for step in decoder_steps(inner)]


def is_string_replace(step: dict[str, Any]) -> bool:
    """Return whether a Replace step looks for a plain string."""
    return isinstance(step["pattern"], dict) and "String" in step["pattern"]


def byte_level_bytes() -> Callable[[str], bytes]:
    """Return the map from a byte-level token to its bytes.

    GPT-2's alphabet: a byte that prints as Latin-1 is its own character, the others are counted
    on from U+0100. A token with any other character is an added one and stands for itself.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(0x100 + at), byte) for at, byte in enumerate(others))

    def to_bytes(token: str) -> bytes:
        try:
            return bytes([alphabet[char] for char in token])
        except KeyError:
            return token.encode()

    return to_bytes


def fallback_bytes(token: str) -> bytes:
    """Return the byte of a byte-fallback token such as "<0xE2>", or the token's own UTF-8."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            return token.encode()
    return token.encode()
