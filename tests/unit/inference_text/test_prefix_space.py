"""The space before a text's first word, as tokenizer_config.json has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from tests.unit.inference_text import tokenizers_in_memory as made
from tests.unit.inference_text.test_tokenizer import load


@pytest.mark.parametrize("configured", [True, False])
@pytest.mark.parametrize("stored", [True, False])
def test_a_space_before_the_first_word_is_as_transformers_has_it(
    tmp_path: Path, stored: bool, configured: bool
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = made.byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=stored)
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": configured}
    found = load(tmp_path, tokenizer, **config).encode("hello world", add_special_tokens=False)
    oracle = transformers.AutoTokenizer.from_pretrained(tmp_path, config=transformers.GPT2Config())
    assert found == oracle.encode("hello world", add_special_tokens=False)
    assert found != load(tmp_path, tokenizer, add_prefix_space=not configured).encode(
        "hello world", add_special_tokens=False
    )


def test_nothing_that_cuts_words_otherwise_gets_a_space_before_the_first(tmp_path: Path) -> None:
    tokenizer = made.sentencepiece(strips=True)
    bare = load(tmp_path, tokenizer).encode("hello", add_special_tokens=False)
    for configured in (True, False, None, "yes"):
        found = load(tmp_path, tokenizer, add_prefix_space=configured)
        assert found.encode("hello", add_special_tokens=False) == bare
