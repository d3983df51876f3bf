from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.unit.inference_text.test_tokenizer import load

END = {"content": "<|im_end|>", "special": True}
MARKED = "a <|im_end|>  b<|x|> <s>c"


@pytest.mark.parametrize(
    ("in_file", "config"),
    [
        ([], {"eos_token": "<|im_end|>"}),  # in the model's vocabulary alone
        ([], {"additional_special_tokens": ["<|x|>"]}),
        ([], {"added_tokens_decoder": {"270": {"content": "<|im_end|>", "special": True}}}),
        (["<|im_end|>"], {"added_tokens_decoder": {"270": {**END, "rstrip": True}}}),
        (["<|im_end|>"], {"added_tokens_decoder": {"270": {**END, "lstrip": True, "normalized": False}}}),
        (["<|im_end|>"], {"added_tokens_decoder": {"270": {**END, "special": False}}}),
    ],
)
def test_tokens_of_the_vocabulary_stand_whole_in_texts_as_with_transformers(
    in_file: list[str], config: dict[str, Any], tmp_path: Path
) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: at for at, char in enumerate([*alphabet, "<|x|>", "<s>"])}
    inner = Tokenizer(models.BPE(vocab={**vocabulary, "<|im_end|>": 270}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens(in_file)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    loaded = load(tmp_path, inner, **config)
    oracle = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path)
    ids = oracle.encode(MARKED, add_special_tokens=False)
    assert loaded.encode(MARKED, add_special_tokens=False) == ids
    shown = "".join(loaded.token_text(token_id) for token_id in ids if token_id not in loaded.special_ids)
    assert shown == oracle.decode(ids, skip_special_tokens=True)
