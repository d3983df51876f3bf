"""The text side of a model that is not there: the embedded model's, or the smallest that works."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from inference.config import EMBEDDED_MODEL, ModelConfig
from inference.text.chat_template import ChatTemplate, load_chat_template
from inference.text.files import ModelFiles, named_tokens
from inference.text.tokenizer import FastTokenizer, TextTokenizer, load_tokenizer

EOS = "<|im_end|>"
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def stand_in_text() -> tuple[TextTokenizer, ChatTemplate, int]:
    """Return the embedded model's tokenizer, chat template and EOS id, or small ones where it is missing."""
    files, config = ModelFiles(EMBEDDED_MODEL), ModelConfig()
    eos_text = named_tokens(files, files.json("tokenizer_config.json")).get("eos_token")
    if files.path("tokenizer.json") is None or eos_text is None:
        tokenizer: TextTokenizer = FastTokenizer(small_tokenizer())
        template = ChatTemplate({"default": CHATML}, {"eos_token": EOS})
        (eos,) = tokenizer.encode(EOS, add_special_tokens=False)
        return tokenizer, template, eos
    tokenizer = load_tokenizer(files, config)
    (eos,) = tokenizer.encode(eos_text, add_special_tokens=False)
    return tokenizer, load_chat_template(files, config), eos


def plausible_tokens(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Return the ids whose text is made of letters, a space before them allowed."""
    return tuple(
        token_id
        for token_id in range(tokenizer.vocabulary_size)
        if token_id not in tokenizer.special_ids and is_word(tokenizer.token_text(token_id))
    )


def is_word(text: str) -> bool:
    """Return whether a text is plain letters, a space before them allowed, or just that space."""
    return text.isascii() and (text == " " or text.removeprefix(" ").isalpha())


def small_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer without merges, with ChatML's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True) for text in ("<|im_start|>", EOS, "<|endoftext|>")]
    )
    return tokenizer
