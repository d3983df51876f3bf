"""Where the tokens of an echoed prompt begin, with tokenizers of each kind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers.normalizers import Normalizer

from handlers.wire.token_places import TokenPlaces
from inference.text.tokenizer import FastTokenizer, TextTokenizer
from inference.types import Event, PromptToken, Token
from tests import embedded
from tests.unit.inference_text import tokenizers_in_memory as made

Make = Callable[[], TextTokenizer]


def of(make: Callable[[], Tokenizer]) -> Make:
    return cache(lambda: FastTokenizer(make()))


def normalised(normalizer: Normalizer) -> Tokenizer:
    tokenizer = made.byte_level()
    tokenizer.normalizer = normalizer
    return tokenizer


def taking_spaces() -> Tokenizer:
    """Return a tokenizer with a special token that takes the spaces beside it along, as Phi's do."""
    tokenizer = made.byte_level()
    tokenizer.add_special_tokens([AddedToken("<|end|>", lstrip=True, rstrip=True)])
    return tokenizer


byte_level = of(made.byte_level)
llama = of(lambda: made.sentencepiece(strips=True))
gemma = of(lambda: made.sentencepiece(strips=False))
metaspace = of(made.metaspace)
unigram = of(lambda: made.unigram(byte_fallback=False))
unigram_bytes = of(lambda: made.unigram(byte_fallback=True))
wordpiece = of(made.wordpiece)
spaces = of(taking_spaces)
nfc = of(lambda: normalised(normalizers.NFC()))
nfkc = of(lambda: normalised(normalizers.NFKC()))
plain = of(
    lambda: normalised(
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    )
)
EXACT = [embedded.tokenizer, byte_level, gemma, unigram_bytes]
CHANGING = [metaspace, unigram, wordpiece, spaces, nfc, nfkc, plain]

# "▁" is SentencePiece's space: it comes back as one
CHARACTERS = st.characters(codec="utf-8", exclude_characters="▁")
PARTS = st.sampled_from(
    [*"hello é e\u0301 日本 語 😀 ﬁ 한 É <s> </s> <unk> <|end|>".split(), " the", "  ", "\n"]
)
TEXTS = st.lists(PARTS | CHARACTERS, max_size=30).map("".join)


def prompt(tokenizer: TextTokenizer, ids: list[int]) -> list[PromptToken]:
    return [PromptToken(id, tokenizer.token_text(id), -1.0) for id in ids]


def places(tokenizer: TextTokenizer, text: str, ids: list[int]) -> list[int]:
    return TokenPlaces(token_bytes=tokenizer.token_bytes()).prompt(prompt(tokenizer, ids), text)


def generated(tokenizer: TextTokenizer, ids: list[int]) -> list[int]:
    stream = tokenizer.stream(())
    tokens = [Token(id, stream.push(id), -1.0, False) for id in ids]
    events = [Event(at, token, (), token.text) for at, token in enumerate(tokens, 1)]
    return TokenPlaces(token_bytes=tokenizer.token_bytes()).generated(events)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("😀" * 9 + " Hello there", [*(at for at in range(9) for _ in range(3)), 9, 11, 15]),
        ("Hé 😀 日本", [0, 1, 2, 3, 3, 4, 5, 5, 5, 6, 6, 6]),
        ("x日本 b", [0, 1, 1, 1, 2, 2, 2, 3]),
        ("<|im_start|>é", [0, 12]),
    ],
)
def test_parts_of_a_character_begin_where_it_does(text: str, expected: list[int]) -> None:
    tokenizer = embedded.tokenizer()
    assert places(tokenizer, text, tokenizer.encode(text, add_special_tokens=True)) == expected


@given(TEXTS)
@pytest.mark.parametrize("make", EXACT)
def test_places_are_exact_where_the_tokens_bytes_are_the_texts(make: Make, text: str) -> None:
    tokenizer, data = make(), text.encode()
    table = tokenizer.token_bytes() or ()
    ids = tokenizer.encode(text, add_special_tokens=False)
    expected, at = [], 0  # bytes
    for id in ids:
        expected.append(len(data[:at].decode(errors="ignore")))
        at += len(table[id] or tokenizer.token_text(id).encode())
    assert at == len(data)
    starts = places(tokenizer, text, ids)
    assert starts == expected
    assert all(
        text.startswith(own, start)
        for own, start in zip(map(tokenizer.token_text, ids), starts, strict=True)
        if "\ufffd" not in own
    )


@given(TEXTS)
@pytest.mark.parametrize("make", [embedded.tokenizer, llama, gemma])
def test_places_are_those_that_the_tokenizer_tells(make: Make, text: str) -> None:
    tokenizer, data = make(), text.encode()
    tokens = tokenizer.tokenize(text, add_special_tokens=False)
    expected = [len(data[: token.start].decode()) for token in tokens]
    assert places(tokenizer, text, [token.id for token in tokens]) == expected


@given(TEXTS, st.booleans())
@pytest.mark.parametrize("make", [*EXACT, llama, *CHANGING])
def test_places_never_fall_and_are_in_the_text(make: Make, text: str, special: bool) -> None:
    starts = places(make(), text, make().encode(text, add_special_tokens=special))
    assert starts == sorted(starts)
    assert all(0 <= start <= len(text) for start in starts)


@given(st.lists(st.integers(0, 10_000), max_size=30))
@pytest.mark.parametrize("make", [*EXACT, llama, *CHANGING])
def test_so_are_those_of_a_prompt_given_as_ids(make: Make, numbers: list[int]) -> None:
    tokenizer = make()
    ids = [number % tokenizer.vocabulary_size for number in numbers]
    text = tokenizer.decode(ids)
    starts = places(tokenizer, text, ids)
    assert starts == sorted(starts)
    assert all(0 <= start <= len(text) for start in starts)


@given(st.lists(st.integers(0, 10_000), max_size=30))
@pytest.mark.parametrize("make", [embedded.tokenizer, byte_level])
def test_ids_are_placed_as_they_would_be_if_they_were_generated(make: Make, numbers: list[int]) -> None:
    tokenizer = make()
    ids = [number % tokenizer.vocabulary_size for number in numbers]
    ids = [id for id in ids if id not in tokenizer.special_ids]
    assert places(tokenizer, tokenizer.decode(ids), ids) == generated(tokenizer, ids)


@given(st.lists(st.integers(0, 10_000), max_size=30))
@pytest.mark.parametrize("make", [embedded.tokenizer, byte_level])
def test_what_begins_a_character_stands_behind_bytes_that_are_none(make: Make, numbers: list[int]) -> None:
    """These are one in the text, too."""
    tokenizer = make()
    ids = [number % tokenizer.vocabulary_size for number in numbers]
    ids = [id for id in ids if id not in tokenizer.special_ids]
    text, known = tokenizer.decode(ids), tokenizer.token_bytes()
    assert known is not None
    for id, at in zip(ids, generated(tokenizer, ids), strict=True):
        with suppress(UnicodeDecodeError):  # a part of a character
            assert text.startswith(known[id].decode(), at)


def test_a_character_that_is_never_complete_has_a_place_of_its_own() -> None:
    tokenizer = embedded.tokenizer()
    known = list(tokenizer.token_bytes() or ())
    ids = [known.index(data) for data in (b"\xe6", b"\x97", b"\xe6", b"a", b"\xe6")]
    assert tokenizer.decode(ids) == "\ufffd\ufffda\ufffd"
    assert generated(tokenizer, ids) == places(tokenizer, tokenizer.decode(ids), ids) == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "text", "expected"),
    [
        # A BOS that was added stands nowhere, nor does the space that SentencePiece puts before a text
        (llama, "hello", [("<s>", 0), (" ", 0), ("he", 0), ("ll", 2), ("o", 4)]),
        (llama, " he", [("<s>", 0), (" ", 0), (" ", 0), ("he", 1)]),
        (llama, "a <s>", [("<s>", 0), (" ", 0), ("a", 0), (" ", 1), ("<s>", 2)]),
        # The client's own BOS does
        (gemma, "<s>he", [("<s>", 0), ("<s>", 0), ("he", 3)]),
        (gemma, "<s><s>he</s>", [("<s>", 0), ("<s>", 0), ("<s>", 3), ("he", 6), ("</s>", 8)]),
        # An unknown character has a token that doesn't say so, and so have some in a row
        (unigram, "日 hello", [("", 0), ("<unk>", 0), ("hello", 1)]),
        (unigram, "日本語" * 9 + " hello", [("", 0), ("<unk>", 0), ("hello", 27)]),
        (unigram, "x日本 b", [("", 0), ("x", 0), ("<unk>", 1), ("", 3), ("b", 4)]),
        # Special tokens that take spaces along
        (spaces, "a  <|end|> \n hello", [("a", 0), ("<|end|>", 3), ("hello", 13)]),
        # What was changed before is met again by its letters
        (nfc, "cafe\u0301 the", [("caf", 0), ("é", 3), (" the", 5)]),
        (nfkc, "ﬁ hello", [("f", 0), ("i", 1), (" ", 1), ("hello", 2)]),
        (plain, "Hello HELLO hello", [("hello", 0), (" ", 5), ("hello", 6), (" ", 11), ("hello", 12)]),
        (plain, "Hé日本 É</s>", [("he", 0), ("日本", 2), (" ", 4), ("e", 5), ("</s>", 6)]),
        # Without bytes tokens are found by their texts
        (wordpiece, "日本語 hello  world", [("<unk>", 0), ("hello", 4), ("world", 11)]),
    ],
)
def test_tokens_without_a_place_take_no_room(make: Make, text: str, expected: list[tuple[str, int]]) -> None:
    tokenizer = make()
    ids = tokenizer.encode(text, add_special_tokens=True)
    found = zip(map(tokenizer.token_text, ids), places(tokenizer, text, ids), strict=True)
    assert list(found) == expected


def test_the_one_mark_of_an_image_is_where_all_its_tokens_are() -> None:
    tokenizer = byte_level()
    (mark,) = tokenizer.encode("<unk>", add_special_tokens=False)
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in ("e", "hello"))
    ids = [*before, *[mark] * 5, *after]
    assert places(tokenizer, "e<unk>hello", ids) == [0, 1, 1, 1, 1, 1, 6]


def test_parts_of_characters_whose_bytes_are_unknown_dont_hide_what_follows() -> None:
    tokens = [PromptToken(1, "\ufffd", -1.0)] * 60 + [PromptToken(2, "end", -1.0)]
    assert TokenPlaces().prompt(tokens, "😀" * 20 + "end") == [*[0] * 60, 20]


@pytest.mark.parametrize("make", [embedded.tokenizer, unigram, wordpiece, plain])
def test_long_prompts_take_no_longer_for_each_token(make: Make) -> None:
    """By the square of their length these would take minutes."""
    tokenizer = make()
    for text in ("😀" * 10_000, "HÉLLO 日本 " * 5_000, "ｘ\n" * 10_000):
        ids = tokenizer.encode(text, add_special_tokens=False)
        # Another text's tokens, of which none is met, and its own
        assert places(tokenizer, "一" * len(text), ids)[-1] <= len(text)
        assert places(tokenizer, text, ids)[-1] <= len(text)
