from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from inference.config import ModelConfig
from inference.errors import ModelUnavailable
from inference.text.detokenizer import Utf8Decoder
from inference.text.files import ModelFiles
from inference.text.tokenizer import FastTokenizer, SlowTokenizer, TextTokenizer, load_tokenizer
from inference.types import TextToken
from tests.unit.inference_text import tokenizers_in_memory as made

Make = Callable[[], Tokenizer]
byte_level = cache(made.byte_level)
llama = cache(lambda: made.sentencepiece(strips=True))
gemma = cache(lambda: made.sentencepiece(strips=False))
unigram = cache(lambda: made.unigram(byte_fallback=False))
unigram_bytes = cache(lambda: made.unigram(byte_fallback=True))
wordpiece = cache(made.wordpiece)


def load(directory: Path, tokenizer: Tokenizer, **tokenizer_config: object) -> TextTokenizer:
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return load_tokenizer(ModelFiles(directory), ModelConfig())


@given(st.text(max_size=40))
@pytest.mark.parametrize("make", [byte_level, llama, wordpiece])
def test_places_are_in_order_and_texts_are_their_slices(make: Make, text: str) -> None:
    data = text.encode()
    tokens = FastTokenizer(make()).tokenize(text, add_special_tokens=False)
    assert [token.id for token in tokens] == make().encode(text, add_special_tokens=False).ids
    for token in tokens:
        assert 0 <= token.start <= token.stop <= len(data)
        assert token.text == data[token.start : token.stop].decode("utf-8", "replace")
    assert [token.start for token in tokens] == sorted(token.start for token in tokens)
    assert [token.stop for token in tokens] == sorted(token.stop for token in tokens)


@given(st.text(max_size=40))
def test_byte_offsets_are_the_character_offsets_of_the_library(text: str) -> None:
    tokens = FastTokenizer(byte_level()).tokenize(text, add_special_tokens=False)
    data = text.encode()
    characters = [(len(data[: t.start].decode()), len(data[: t.stop].decode())) for t in tokens]
    assert characters == byte_level().encode(text, add_special_tokens=False).offsets


def test_tokens_added_by_the_tokenizer_have_no_place() -> None:
    first, *rest = FastTokenizer(llama()).tokenize("hé", add_special_tokens=True)
    assert first == TextToken(0, "", 0, 0, True)
    assert [(token.text, token.start, token.stop) for token in rest] == [
        ("h", 0, 1),
        ("é", 1, 3),  # its two bytes are two tokens: both show the character
        ("é", 1, 3),
    ]


def test_special_tokens_written_in_the_text_have_their_place() -> None:
    *_, last = FastTokenizer(byte_level()).tokenize("a </s>", add_special_tokens=False)
    assert last == TextToken(1, "</s>", 2, 6, True)


def test_a_token_that_is_part_of_a_character_has_a_text_of_its_own() -> None:
    tokenizer = FastTokenizer(byte_level())
    first, *_ = tokenizer.encode("€", add_special_tokens=False)
    assert tokenizer.token_text(first) == "\ufffd"


@given(st.lists(st.integers(0, 10_000), max_size=30), st.text(max_size=30))
@pytest.mark.parametrize("make", [byte_level, llama, gemma, unigram, unigram_bytes])
def test_the_bytes_of_tokens_add_up_to_the_text_that_is_shown(
    make: Make, numbers: list[int], text: str
) -> None:
    tokenizer = FastTokenizer(make())
    table = tokenizer.token_bytes()
    assert table is not None
    assert len(table) == tokenizer.vocabulary_size
    given = [number % len(table) for number in numbers]  # whatever a model may generate
    for ids in (given, tokenizer.encode(text, add_special_tokens=False)):
        ordinary = [token_id for token_id in ids if token_id not in tokenizer.special_ids]
        stream = tokenizer.stream(tokenizer.encode("hello", add_special_tokens=False))
        shown = "".join(map(stream.push, ordinary))
        decoder = Utf8Decoder("replace")  # the bytes of a character that the end cuts off are not shown
        assert shown == "".join(decoder.decode(table[token_id]) for token_id in ids)


@pytest.mark.parametrize(
    ("make", "tokens"),
    [
        (
            byte_level,
            {"Ġw": b" w", "â": b"\xe2", "foo bar": b"foo bar", "日本": "日本".encode(), "</s>": b""},
        ),
        (llama, {"▁w": b" w", "<0x0A>": b"\n", "<0xE2>": b"\xe2", "he": b"he", "<s>": b""}),
        (unigram_bytes, {"▁▁": b"  ", "<0x0A>": b"\n", "é": "é".encode(), "</s>": b""}),
        (unigram, {"▁hello": b" hello", "é": "é".encode(), "<unk>": b""}),
    ],
)
def test_tokens_have_their_bytes(make: Make, tokens: dict[str, bytes]) -> None:
    table = FastTokenizer(make()).token_bytes()
    assert table is not None
    assert {token: table[make().token_to_id(token) or 0] for token in tokens} == tokens


def test_tokens_whose_text_depends_on_their_neighbours_have_no_bytes() -> None:
    assert FastTokenizer(wordpiece()).token_bytes() is None
    assert SlowTokenizer(Letters()).token_bytes() is None


def test_ids_are_below_the_size_of_the_vocabulary_though_some_are_missing() -> None:
    holes = Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    tokenizer = FastTokenizer(holes)
    assert holes.get_vocab_size() == 2
    assert tokenizer.vocabulary_size == 1 + max(tokenizer.encode("b", add_special_tokens=False))


@given(st.text(max_size=30))
@pytest.mark.parametrize("make", [byte_level, gemma])
def test_decoding_gives_the_text_back_with_its_special_tokens(make: Make, text: str) -> None:
    tokenizer = FastTokenizer(make())
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert tokenizer.decode((1,)) == "</s>"


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    tokenizer = made.byte_level()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=64)
    assert len(load(tmp_path, tokenizer).encode("one two three", add_special_tokens=True)) > 2
    assert len(load(tmp_path, tokenizer).encode("a", add_special_tokens=True)) == 1


def test_add_special_tokens_adds_what_the_post_processor_says(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, made.sentencepiece(strips=True))
    bare = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello", add_special_tokens=True) == [0, *bare]


@pytest.mark.parametrize(
    ("config", "before", "after"),
    [
        ({}, [0], []),
        ({"add_bos_token": True}, [0], []),
        ({"add_bos_token": True, "add_eos_token": True}, [0], [1]),
        ({"add_bos_token": False}, [], []),
    ],
)
def test_bos_and_eos_are_added_as_the_configuration_says(
    tmp_path: Path, config: dict[str, object], before: list[int], after: list[int]
) -> None:
    tokenizer = load(
        tmp_path, made.sentencepiece(strips=True), bos_token="<s>", eos_token={"content": "</s>"}, **config
    )
    bare = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello", add_special_tokens=True) == [*before, *bare, *after]


def test_special_ids_come_from_every_file(tmp_path: Path) -> None:
    tokenizer = made.byte_level()
    added = {"900": {"content": "<tool>", "special": True}, "901": {"content": "<plain>", "special": False}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "foo bar"}))
    loaded = load(
        tmp_path, tokenizer, added_tokens_decoder=added, additional_special_tokens=["日本"], eos_token="</s>"
    )
    (tool,) = loaded.encode("<tool>", add_special_tokens=False)
    (plain,) = loaded.encode("<plain>", add_special_tokens=False)
    named = {tokenizer.token_to_id("foo bar"), tokenizer.token_to_id("日本")}
    assert loaded.special_ids == {0, 1, 2, tool} | named
    assert plain not in loaded.special_ids


@pytest.mark.parametrize("decoder", [True, False], ids=["tokenizer_config.json", "added_tokens.json"])
def test_tokens_that_tokenizer_json_lacks_are_those_of_transformers(tmp_path: Path, decoder: bool) -> None:
    tokenizer = made.byte_level()
    first = tokenizer.get_vocab_size()
    texts = ("<|im_start|>", "<|im_end|>", "<tool>", "<plain>")
    special = dict(zip(texts, (True, True, True, False), strict=True))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    named = {"additional_special_tokens": ["<|im_start|>", "<tool>"]}
    if decoder:
        described = [{"content": text, "special": special[text]} for text in texts]
        config |= {"added_tokens_decoder": {str(at): each for at, each in enumerate(described, first)}}
    else:
        listed = {text: at for at, text in reversed([*enumerate(texts, first)])}
        (tmp_path / "added_tokens.json").write_text(json.dumps(listed))
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(named))
    loaded = load(tmp_path, tokenizer, **config)
    oracle = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path)
    text = "<|im_start|>user\nsay <plain> or <tool><|im_end|>\n"
    assert loaded.encode(text, add_special_tokens=False) == oracle.encode(text, add_special_tokens=False)
    assert [at in loaded.special_ids for at in range(first, first + 4)] == [*special.values()]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.json can't be read"):
        load_tokenizer(ModelFiles(tmp_path), ModelConfig())


def test_a_directory_without_any_tokenizer_is_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ModelUnavailable, match="has no tokenizer"):
        load_tokenizer(ModelFiles(tmp_path), ModelConfig())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2", "gemma"])
def test_a_tokenizer_is_never_made_of_nothing(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    for config in ({}, {"tokenizer_class": "LlamaTokenizer"}, {"tokenizer_class": "Qwen2Tokenizer"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        with pytest.raises(ModelUnavailable, match=r"has no tokenizer files: none of tokenizer\.json"):
            load_tokenizer(ModelFiles(tmp_path), ModelConfig())


def test_a_tokenizer_of_bytes_needs_no_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    tokenizer = load_tokenizer(ModelFiles(tmp_path), ModelConfig())
    ids = tokenizer.encode("héllo", add_special_tokens=False)
    assert (len(ids), tokenizer.decode(ids)) == (6, "héllo")


def test_a_vocabulary_without_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(ModelUnavailable, match="can't load its tokenizer: it has no tokens"):
        load_tokenizer(ModelFiles(tmp_path), ModelConfig())


def test_a_directory_without_a_model_is_told_so_first(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"holds no model: no `config\.json` is in it, and it has no"):
        load_tokenizer(ModelFiles(tmp_path), ModelConfig())
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    with pytest.raises(ModelUnavailable, match="holds a LoRA adapter of `org/base`"):
        load_tokenizer(ModelFiles(tmp_path), ModelConfig())


def without(*names: str) -> Callable[[str], object]:
    """Return a find_spec for which some packages aren't installed."""

    def find(name: str) -> object:
        if name.partition(".")[0] in names:
            if "." in name:
                raise ModuleNotFoundError(name)
            return None
        return object()

    return find


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (("sentencepiece",), "sentencepiece: `pip install sentencepiece`"),
        (("sentencepiece", "google"), "sentencepiece and protobuf: `pip install sentencepiece protobuf`"),
        (("google",), "protobuf: `pip install protobuf`"),
        ((), None),
    ],
)
def test_the_package_that_a_vocabulary_needs_is_named(
    missing: tuple[str, ...], told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("inference.text.tokenizer.find_spec", without(*missing))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    (tmp_path / "tokenizer.model").write_bytes(b"no vocabulary at all")
    expected = (
        f"needs the package {told}, or save.*\\(transformers says: .+"
        if told
        else "transformers can't load its tokenizer"
    )
    with pytest.raises(ModelUnavailable, match=expected):
        load_tokenizer(ModelFiles(tmp_path), ModelConfig())


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"x": {"content": "<a>"}}},
        {"added_tokens_decoder": {"900": {}}},
        {"added_tokens_decoder": ["<a>"]},
        {"added_tokens_decoder": {"900": {"content": "<a>", "lstrip": "yes"}}},
        {"additional_special_tokens": 5},
    ],
)
def test_tokens_described_in_another_form_are_refused(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"tokenizer_config\.json describes tokens in a form"):
        load(tmp_path, made.byte_level(), **config)


class Letters:
    """A tokenizer in Python, with the interface of transformers: a letter is a token."""

    all_special_ids = (0,)

    def get_vocab(self) -> dict[str, int]:
        return {chr(code): code for code in range(128)}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*([0] if add_special_tokens else []), *text.encode("ascii")]

    def decode(self, ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        return bytes(ids).decode()


def test_a_tokenizer_in_python_knows_no_places() -> None:
    tokenizer = SlowTokenizer(Letters())
    assert tokenizer.tokenize("a", add_special_tokens=True) == (
        TextToken(0, "", 0, 0, True),
        TextToken(97, "", 0, 0, False),
    )
    assert "".join(map(tokenizer.stream([98]).push, b"hello")) == "hello"
    assert tokenizer.decode([104, 128, 105]) == "hi"  # a model can have more ids than its tokenizer


@settings(deadline=None)  # the first run imports transformers
@given(st.text(max_size=30))
def test_offsets_and_ids_are_those_of_transformers(text: str) -> None:
    reference = transformers_tokenizer()
    expected = reference(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens = FastTokenizer(byte_level()).tokenize(text, add_special_tokens=False)
    data = text.encode()
    places = [(len(data[: t.start].decode()), len(data[: t.stop].decode())) for t in tokens]
    assert [token.id for token in tokens] == expected["input_ids"]
    assert places == expected["offset_mapping"]


@cache
def transformers_tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made.byte_level())
