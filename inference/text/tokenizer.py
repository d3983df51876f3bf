"""Tokenizers: text to ids, with places, and ids back to text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from inference.config import ModelConfig
from inference.errors import ModelUnavailable
from inference.files.model_files import check_directory
from inference.text.added_tokens import add_tokens, special_texts
from inference.text.detokenizer import (
    CONTEXT_TOKENS,
    ByteStream,
    TextStream,
    WindowStream,
    byte_table,
    metaspace_table,
)
from inference.text.files import ModelFiles, named_tokens, refuse_huge
from inference.text.tokens import placed_tokens
from inference.types import TextToken

MAX_VOCABULARY = 1 << 24  # the largest there are have some 2**18
VOCABULARIES = "tokenizer.json *.model *.model.v* *.spm vocab.json vocab.txt *.tiktoken tekken.json".split()
UNLOADED = "transformers can't load its tokenizer"
KEEPING = frozenset({"ByteLevel", "Split", "Digits", "Punctuation"})  # pre-tokenizers that keep all text


class TextTokenizer(Protocol):
    """What the engine needs of a tokenizer; every method can be called from any thread."""

    special_ids: frozenset[int]  # ids whose text is not part of what the model says
    vocabulary_size: int  # added tokens included; every id that it gives is below it
    longest_token: int | None  # bytes of text that one token stands for at most; None where that isn't known

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens' included."""

    def tokenize(self, text: str, *, add_special_tokens: bool) -> Sequence[TextToken]:
        """Return the tokens of a text with their places."""

    def token_bytes(self) -> Sequence[bytes] | None:
        """Return what each id adds to the UTF-8 of a text, or None where that depends on its neighbours.

        Special tokens add nothing. A tokenizer that strips the space before a text leaves out that one.
        """

    def token_text(self, token_id: int) -> str:
        """Return the text of a token by itself, U+FFFD for parts of a character."""

    def stream(self, prompt_ids: Sequence[int]) -> TextStream:
        """Return what turns the tokens that follow a prompt into text."""


class FastTokenizer:
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, tokenizer: Tokenizer, special_ids: frozenset[int] = frozenset()) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = special_ids | {token_id for token_id, token in added.items() if token.special}
        # Not the library's count of tokens: ids may be missing in between
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary_size = plausible_size(1 + max(vocabulary.values(), default=-1))
        self.longest_token = longest_token(tokenizer, vocabulary)
        self._bytes = byte_table(tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # The batch functions release the GIL, `Tokenizer.encode` does not
        encoding = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        return encoding.ids

    def tokenize(self, text: str, *, add_special_tokens: bool) -> Sequence[TextToken]:
        encoding = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        return placed_tokens(text, encoding, self.special_ids)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def token_bytes(self) -> Sequence[bytes] | None:
        table = self._bytes or metaspace_table(self._tokenizer)
        if table is None:
            return None
        special = self.special_ids
        return [b"" if at in special else table(at) for at in range(self.vocabulary_size)]

    def token_text(self, token_id: int) -> str:
        if token_id in self.special_ids:
            return self._tokenizer.id_to_token(token_id) or ""
        if self._bytes is not None:
            return self._bytes(token_id).decode("utf-8", "replace")
        return self.decode([token_id])

    def stream(self, prompt_ids: Sequence[int]) -> TextStream:
        context = [token_id for token_id in prompt_ids[-CONTEXT_TOKENS:] if token_id not in self.special_ids]
        if self._bytes is not None:
            strips = self._bytes.strips_space and not context
            ends = prompt_ids[-1:] and prompt_ids[-1] not in self.special_ids
            return ByteStream(self._bytes, strip_space=strips, context=context if ends else ())
        return WindowStream(self.decode, context)


class SlowTokenizer:
    """A tokenizer written in Python, loaded by transformers; it knows no places in the text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.special_ids = frozenset(int(token_id) for token_id in tokenizer.all_special_ids)
        self.vocabulary_size = plausible_size(1 + max(tokenizer.get_vocab().values(), default=-1))
        self.longest_token: int | None = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def tokenize(self, text: str, *, add_special_tokens: bool) -> Sequence[TextToken]:
        # As in TGI: without places there is no slice to show
        ids = self.encode(text, add_special_tokens=add_special_tokens)
        return tuple(TextToken(token_id, "", 0, 0, token_id in self.special_ids) for token_id in ids)

    def decode(self, ids: Sequence[int]) -> str:
        # Models pad their vocabulary: such an id has no token, and some tokenizers fail on it
        known = [token_id for token_id in ids if token_id < self.vocabulary_size]
        text: str = self._tokenizer.decode(
            known, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def token_bytes(self) -> Sequence[bytes] | None:
        return None

    def token_text(self, token_id: int) -> str:
        return self.decode([token_id])

    def stream(self, prompt_ids: Sequence[int]) -> TextStream:
        context = [token_id for token_id in prompt_ids[-CONTEXT_TOKENS:] if token_id not in self.special_ids]
        return WindowStream(self.decode, context)


def load_tokenizer(files: ModelFiles, config: ModelConfig) -> TextTokenizer:
    """Load the model's tokenizer, by the `tokenizers` library alone where tokenizer.json exists.

    Raises ModelUnavailable.
    """
    path = files.path("tokenizer.json")
    if path is None:
        return load_with_transformers(files, config)
    refuse_huge(path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises plain Exception; where it panics, not even that
        raise ModelUnavailable(f"{path} can't be read: {error}") from error
    tokenizer_config = files.json("tokenizer_config.json")
    named = named_tokens(files, tokenizer_config)
    try:
        names = special_texts(tokenizer_config, files.json("special_tokens_map.json"), named)
        add_tokens(tokenizer, tokenizer_config, files.json("added_tokens.json"), names)
        apply_bos_eos(tokenizer, tokenizer_config, named)
        apply_prefix_space(tokenizer, tokenizer_config.get("add_prefix_space"))
        ids = (tokenizer.token_to_id(text) for text in names)
        special = frozenset(token_id for token_id in ids if token_id is not None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # of values of another form
        raise ModelUnavailable(
            f"{files.directory / 'tokenizer_config.json'} describes tokens in a form that can't be read "
            f"({type(error).__name__}: {error}): mend its `added_tokens_decoder` or download it again"
        ) from error
    return FastTokenizer(tokenizer, special)


def load_with_transformers(files: ModelFiles, config: ModelConfig) -> TextTokenizer:
    """Load a tokenizer that has no tokenizer.json; slow to import, so only then.

    Those of bytes have no file at all. Of others transformers makes one without tokens then, by which every
    prompt is empty.
    """
    nothing = without_vocabulary(files.directory, config)
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(
            str(files.directory), trust_remote_code=config.trust_remote_code
        )
    except Exception as error:  # what a damaged file leads to can be anything
        if nothing is not None:
            raise nothing from error
        package = missing_package(files.directory)
        why = f"{package} (transformers says: {error})" if package else f"{UNLOADED}: {error}"
        raise ModelUnavailable(f"{files.directory} has no tokenizer.json, and {why}") from error
    if nothing is not None and loaded.vocab_files_names:
        raise nothing
    if loaded.get_vocab().keys() <= set(loaded.all_special_tokens):
        raise ModelUnavailable(f"{files.directory} has no tokenizer.json, and {UNLOADED}: it has no tokens")
    backend = getattr(loaded, "backend_tokenizer", None)
    if isinstance(backend, Tokenizer):
        return FastTokenizer(backend, frozenset(int(token_id) for token_id in loaded.all_special_ids))
    return SlowTokenizer(loaded)


def without_vocabulary(directory: Path, config: ModelConfig) -> ModelUnavailable | None:
    """Return the refusal of a tokenizer that isn't one of bytes, None where it may have a vocabulary.

    Raises ModelUnavailable for what isn't a model's directory.
    """
    patterns = (*VOCABULARIES, "*.py") if config.trust_remote_code else VOCABULARIES
    if any(any(directory.glob(pattern)) for pattern in patterns):
        return None
    check_directory(directory)
    if not (directory / "config.json").is_file():
        raise ModelUnavailable(
            f"`{directory}` holds no model: no `config.json` is in it, and it has no tokenizer files either"
        )
    return ModelUnavailable(
        f"`{directory}` has no tokenizer files: none of {', '.join(VOCABULARIES)} is in it; copy those "
        "of the model there"
    )


def missing_package(directory: Path) -> str | None:
    """Return which packages a tokenizer can't be loaded without, as far as can be said.

    transformers says of any that is missing that it was tiktoken.
    """
    wanted = {"sentencepiece": "sentencepiece", "protobuf": "google.protobuf"}
    missing = [package for package, module in wanted.items() if not importable(module)]
    found = next((file.name for kind in ("*.model", "*.spm") for file in directory.glob(kind)), None)
    if not missing or found is None:
        return None
    return (
        f"its {found} needs the package {' and '.join(missing)}: `pip install {' '.join(missing)}`, "
        "or save a tokenizer.json beside it (`AutoTokenizer.from_pretrained(...).save_pretrained(...)`)"
    )


def importable(module: str) -> bool:
    """Return whether a module is installed; it isn't imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


def plausible_size(vocabulary: int) -> int:
    """Return the size of a vocabulary; raise ModelUnavailable if no model has one like it."""
    if vocabulary > MAX_VOCABULARY:
        raise ModelUnavailable(
            f"the tokenizer has ids up to {vocabulary - 1}, and {MAX_VOCABULARY} tokens are the most there "
            "may be: its file is damaged, or not meant well"
        )
    return vocabulary


def longest_token(tokenizer: Tokenizer, vocabulary: Mapping[str, int]) -> int | None:
    """Return how many bytes of a text one token stands for at most, None unless that is sure.

    It is where every byte of a text ends up in a token: in byte-level BPE, if nothing is changed before.
    """
    if tokenizer.normalizer is not None or not isinstance(tokenizer.model, models.BPE):
        return None
    if tokenizer.pre_tokenizer is None:
        return None
    steps = pre_tokenizer_steps(json.loads(tokenizer.pre_tokenizer.__getstate__()))
    added = tokenizer.get_added_tokens_decoder().values()
    if (
        not any(step["type"] == "ByteLevel" for step in steps)
        or not all(step["type"] in KEEPING and step.get("behavior") != "Removed" for step in steps)
        or not all(char in vocabulary for char in pre_tokenizers.ByteLevel.alphabet())
        or any(token.lstrip or token.rstrip for token in added)
    ):
        return None
    own = max((len(token.content.encode()) for token in added), default=1)
    return max(own, max(map(len, vocabulary), default=1))


def pre_tokenizer_steps(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a pre-tokenizer's steps in order, nested sequences unfolded."""
    if state["type"] != "Sequence":
        return [state]
    return [step for inner in state["pretokenizers"] for step in pre_tokenizer_steps(inner)]


def apply_bos_eos(tokenizer: Tokenizer, tokenizer_config: dict[str, Any], named: dict[str, str]) -> None:
    """Let `add_bos_token` and `add_eos_token` of tokenizer_config.json win over tokenizer.json, as in TGI."""
    if not {"add_bos_token", "add_eos_token"} & tokenizer_config.keys():
        return
    bos, eos = named.get("bos_token"), named.get("eos_token")
    around = tokenizer.encode("").ids  # what the post-processor adds to any text
    wants_bos = bool(tokenizer_config.get("add_bos_token")) and bos is not None
    wants_eos = bool(tokenizer_config.get("add_eos_token")) and eos is not None
    wanted = [token for token, wants in ((bos, wants_bos), (eos, wants_eos)) if wants and token is not None]
    ids = {token: tokenizer.token_to_id(token) for token in wanted}
    if None in ids.values() or around == [ids[token] for token in wanted]:
        return
    template = [*([f"{bos}:0"] if wants_bos else []), "$A:0", *([f"{eos}:0"] if wants_eos else [])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair=None, special_tokens=list(ids.items())
    )


def apply_prefix_space(tokenizer: Tokenizer, wanted: object) -> None:
    """Let `add_prefix_space` of tokenizer_config.json win where words are cut as GPT-2's are, as in TGI."""
    if isinstance(wanted, bool) and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
        tokenizer.pre_tokenizer.add_prefix_space = wanted
