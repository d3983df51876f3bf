"""The tokenizer: byte-level BPE over words, with digits and capital letters kept apart."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from codegen.embedded.chat import CHAT_TEMPLATE, END_OF_TEXT, MARKERS, TURN_END, TURN_START
from codegen.embedded.corpus import document

VOCABULARY = 2048
DOCUMENTS = 40_000
SPECIALS = (END_OF_TEXT, TURN_START, TURN_END)
# Digits stand alone so that sums can be read place by place; capitals stand alone so that a word and its
# capitalised or upper-case form share tokens, which is what lets copying and casing generalise.
WORDS = r" ?\p{Lu}| ?[\p{Ll}\p{Lm}\p{Lo}\p{Lt}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


def train(seed: int) -> Tokenizer:
    """Train the tokenizer on a sample of the text that the model will see."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKERS),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=20,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKERS])
    return tokenizer


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the tokenizer and its chat template the way transformers expects them."""
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    )


def _texts(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(DOCUMENTS):
        for text, _ in document(rng):
            # The markers are tokens of their own: leave them out, or merges would grow around them.
            for marker in (*SPECIALS, *MARKERS):
                text = text.replace(marker, "\n")
            yield text
