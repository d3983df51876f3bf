"""A tokenizer for random weights, made of syllables: the same everywhere, of any size, without a corpus.

It is a byte-level BPE as SmolLM2's and Qwen2.5's are, pre-tokenised like them, so that llama.cpp and OpenVINO
read it as one of those. Its words, " bataku" and the like, are one token each in whatever company.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONSONANTS, VOWELS = "bdfghjklmnprstvz", "aeiou"
SPACE = "Ġ"  # how byte-level BPE writes it
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# written as they are
BYTES = [
    *range(ord("!"), ord("~") + 1),
    *range(0xA1, 0xAC + 1),
    *range(0xAE, 0xFF + 1),
]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Qwen2's own expression, which its tokenizer.json states, too
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "smollm": [{"type": "Digits", "individual_digits": True}, {**_BYTE_LEVEL, "use_regex": True}],
    "qwen2": [
        {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False},
        {**_BYTE_LEVEL, "use_regex": False},
    ],
}


def write_tokenizer(directory: Path, kind: str, size: int) -> None:
    """Write tokenizer.json of exactly `size` tokens, tokenizer_config.json, and words.json, its words."""
    vocabulary = {token: id for id, token in enumerate([*SPECIAL, *_byte_letters()])}
    merges, words = [], []
    for left, right in itertools.islice(_merges(), size - len(vocabulary)):
        vocabulary[left + right] = len(vocabulary)
        merges.append([left, right])
        if len(left) > 2 and left.startswith(SPACE):
            words.append(" " + (left + right)[1:])
    assert len(vocabulary) == size
    (directory / "tokenizer.json").write_text(json.dumps(_tokenizer(kind, vocabulary, merges)))
    (directory / "tokenizer_config.json").write_text(json.dumps(_config()))
    (directory / "words.json").write_text(json.dumps({"words": words}))


def _byte_letters() -> Iterator[str]:
    """Yield how each byte is written, as GPT-2 does."""
    unprintable = 0
    for byte in range(256):
        yield chr(byte if byte in BYTES else 256 + unprintable)
        unprintable += byte not in BYTES


def _merges() -> Iterator[tuple[str, str]]:
    """Yield pairs in the order they are merged in: syllables, then words of one, of two, of three."""
    syllables = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
    yield from ((syllable[0], syllable[1]) for syllable in syllables)
    words = [SPACE]
    while True:
        longer = []
        for word, syllable in itertools.product(words, syllables):
            yield word, syllable
            longer.append(word + syllable)
        words = longer


def _tokenizer(kind: str, vocabulary: dict[str, int], merges: list[list[str]]) -> dict[str, Any]:
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": vocabulary, "merges": merges,
    }  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id, "content": token, **added} for id, token in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[kind]},
        "post_processor": None,
        "decoder": {**_BYTE_LEVEL, "use_regex": True},
        "model": model,
    }


def _config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "unk_token": SPECIAL[0],
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "chat_template": TEMPLATE,
    }
