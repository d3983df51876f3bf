"""Small tokenizers of each kind, built in memory."""

from __future__ import annotations

import json

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "hello world, the quick brown fox jumps over the lazy dog",
    "héllo wörld, naïve café, 東京タワー, привет мир",
    "numbers 1234567890 and signs !?.,;:-_()[]{}",
]
SPECIAL = ["<s>", "</s>", "<unk>"]


def byte_level() -> Tokenizer:
    """Return a byte-level BPE as GPT-2's and Llama 3's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("foo bar"), AddedToken("日本")])
    return tokenizer


def sentencepiece(*, strips: bool) -> Tokenizer:
    """Return a BPE with byte fallback: as Llama 2's, which strips a leading space, or as Gemma's."""
    pieces = sorted({char for line in CORPUS for char in line if char.isascii() and char != " "} | {"▁"})
    merges = [("h", "e"), ("l", "l"), ("▁", "w"), ("▁", "h")]
    vocab = {text: at for at, text in enumerate(SPECIAL)}
    for text in (*(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *("".join(pair) for pair in merges)):
        vocab[text] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.add_special_tokens(SPECIAL)
    spaces = [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *spaces] if strips else spaces)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", vocab["<s>"])]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """Return a tokenizer with the Metaspace decoder, as T5's."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(special_tokens=SPECIAL, show_progress=False))
    return tokenizer


def unigram(*, byte_fallback: bool) -> Tokenizer:
    """Return a Unigram model: as Helium's, with byte fallback, or as XGLM's, with the Metaspace decoder."""
    characters = sorted({char for line in CORPUS for char in line if char != " "} | {"▁"})
    pieces = [*characters, "▁hello", "▁wor", "ld", "▁the", "▁▁", "ick"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = [(text, 0.0) for text in SPECIAL]
    vocab += [(text, -20.0) for text in fallback] if byte_fallback else []
    vocab += [(text, -2.0 - 10.0 / len(text)) for text in pieces]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=2, byte_fallback=byte_fallback))
    tokenizer.add_special_tokens(SPECIAL)
    if byte_fallback:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def wordpiece() -> Tokenizer:
    """Return a tokenizer with the WordPiece decoder, as BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def as_json(tokenizer: Tokenizer) -> dict[str, object]:
    """Return what tokenizer.json holds."""
    content: dict[str, object] = json.loads(tokenizer.to_str())
    return content
