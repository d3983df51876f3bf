from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from inference.text.detokenizer import ByteStream, Utf8Decoder, WindowStream, byte_table, unfinished
from inference.text.tokenizer import FastTokenizer
from tests.unit.inference_text import tokenizers_in_memory as made

byte_level = cache(made.byte_level)
llama = cache(lambda: made.sentencepiece(strips=True))
gemma = cache(lambda: made.sentencepiece(strips=False))
metaspace = cache(made.metaspace)
wordpiece = cache(made.wordpiece)

Make = Callable[[], Tokenizer]

EURO = [0xE2, 0x82, 0xAC]  # "€" in UTF-8


def stream_text(tokenizer: Tokenizer, ids: list[int], prompt_ids: list[int] | None = None) -> list[str]:
    stream = FastTokenizer(tokenizer).stream(prompt_ids or [])
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


def id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


def byte_ids(data: bytes | list[int]) -> list[int]:
    return [id_of(llama(), f"<0x{byte:02X}>") for byte in data]


@pytest.mark.parametrize(("begun", "shown"), [(1, "€5"), (2, "€5"), (3, "5")])
def test_a_character_that_a_prompt_of_tokens_begins_is_completed(begun: int, shown: str) -> None:
    tokens, five = byte_ids(EURO), byte_ids(b"5")
    rest = [*tokens[begun:], *five]
    assert "".join(stream_text(llama(), rest, [*byte_ids(b"price"), *tokens[:begun]])) == shown
    assert "".join(stream_text(llama(), rest[-1:], [*tokens[:begun], *byte_ids(b"!")])) == "5"


@given(st.text(max_size=9), st.integers(0, 3))
def test_what_is_unfinished_is_what_a_decoder_holds(text: str, cut: int) -> None:
    data = text.encode("utf-8", "replace")[: -cut or None]
    decoder = Utf8Decoder("replace")
    decoder.decode(data)
    assert unfinished(data) == decoder.getstate()[0]


byte_level_ids = st.lists(st.integers(min_value=3, max_value=401), max_size=30)  # no special token


@given(byte_level_ids)
def test_byte_level_pieces_add_up_to_the_whole_decode_for_any_tokens(ids: list[int]) -> None:
    ids = [token_id for token_id in ids if token_id < byte_level().get_vocab_size()]
    pieces = stream_text(byte_level(), ids)
    whole = byte_level().decode(ids, skip_special_tokens=False)
    # only the very end may differ: there a cut character is dropped, not replaced
    assert whole.startswith("".join(pieces))
    assert set(whole[len("".join(pieces)) :]) <= {"\ufffd"}


@given(st.text(max_size=40))
@pytest.mark.parametrize("make", [byte_level, gemma, llama])
def test_any_text_comes_back_character_for_character(make: Make, text: str) -> None:
    tokenizer = make()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = stream_text(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)
    assert "".join(pieces) == text


words = st.lists(st.sampled_from("hello world the quick fox 東京 wörld naive , . 12".split()), max_size=12)


@given(words)
@pytest.mark.parametrize("make", [metaspace, wordpiece])
def test_the_window_adds_up_to_the_whole_decode(make: Make, words: list[str]) -> None:
    ids = make().encode(" ".join(words), add_special_tokens=False).ids
    assert byte_table(make()) is None
    assert "".join(stream_text(make(), ids)) == make().decode(ids, skip_special_tokens=False)


@given(words, words)
@pytest.mark.parametrize("make", [byte_level, gemma, llama, metaspace, wordpiece])
def test_a_continuation_has_the_space_that_the_whole_text_has(
    make: Make, before: list[str], after: list[str]
) -> None:
    tokenizer = make()
    ids = tokenizer.encode(" ".join([*before, *after]), add_special_tokens=False).ids
    at = len(tokenizer.encode(" ".join(before), add_special_tokens=False).ids)
    prompt = tokenizer.decode(ids[:at], skip_special_tokens=False)
    continued = "".join(stream_text(tokenizer, ids[at:], ids[:at]))
    assert prompt + continued == tokenizer.decode(ids, skip_special_tokens=False)


def test_both_ways_agree_where_both_apply() -> None:
    ids = byte_level().encode("héllo 東京 €").ids
    table = byte_table(byte_level())
    assert table is not None
    window = WindowStream(lambda part: byte_level().decode(part, skip_special_tokens=False), [])
    direct = ByteStream(table, strip_space=False)
    assert "".join(map(window.push, ids)) == "".join(map(direct.push, ids)) == "héllo 東京 €"


def test_a_character_comes_with_the_token_that_completes_it() -> None:
    assert stream_text(llama(), byte_ids(EURO)) == ["", "", "€", ""]


def test_a_character_that_is_cut_off_is_dropped_and_nothing_else() -> None:
    ids = [*llama().encode("hello", add_special_tokens=False).ids, *byte_ids(EURO[:2])]
    assert "".join(stream_text(llama(), ids)) == "hello"


def test_bytes_that_are_no_character_are_replaced_where_they_stand() -> None:
    ids = [*byte_ids(EURO[:2]), id_of(llama(), "x")]
    assert stream_text(llama(), ids) == ["", "", "\ufffdx", ""]


def test_a_replacement_character_that_the_model_wrote_is_shown_at_once() -> None:
    assert stream_text(llama(), byte_ids("\ufffd".encode())) == ["", "", "\ufffd", ""]


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    assert stream_text(byte_level(), [100_000]) == ["", ""]


def test_the_window_lets_go_of_what_never_becomes_a_character() -> None:
    stream = WindowStream(lambda ids: "\ufffd" * len(ids), [])
    pieces = [stream.push(token_id) for token_id in range(40)]
    assert "\ufffd" * 16 in pieces


def test_the_window_drops_an_incomplete_tail() -> None:
    texts = {(0,): "a", (0, 1): "a\ufffd", (0, 1, 2): "ab\ufffd"}
    stream = WindowStream(lambda ids: texts[tuple(ids)] if ids else "", [])
    assert [stream.push(token_id) for token_id in range(3)] == ["a", "", ""]
    assert stream.flush() == "b"


def test_a_leading_space_is_stripped_only_at_the_start_of_the_text() -> None:
    hello = llama().encode("hello", add_special_tokens=False).ids
    assert "".join(stream_text(llama(), hello)) == "hello"
    assert "".join(stream_text(llama(), hello, prompt_ids=hello)) == " hello"
    assert "".join(stream_text(llama(), hello, prompt_ids=[id_of(llama(), "<s>")])) == "hello"
