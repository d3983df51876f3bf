from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from inference.config import ModelConfig
from inference.errors import InvalidInput, ModelUnavailable, TemplateFailed
from inference.text.pipeline import INLINE_CHARACTERS, TextPipeline, load_text
from inference.text.stand_in import CHATML
from tests.unit.inference_text import tokenizers_in_memory as made


def pipeline(directory: Path) -> TextPipeline:
    made.byte_level().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    return load_text(ModelConfig(model_id=str(directory)))


@pytest.mark.parametrize("length", [1, INLINE_CHARACTERS, INLINE_CHARACTERS + 1, 20_000])
def test_long_and_short_texts_are_encoded_alike(tmp_path: Path, length: int) -> None:
    text = ("hello wörld " * length)[:length]
    expected = made.byte_level().encode(text)
    loaded = pipeline(tmp_path)
    assert asyncio.run(loaded.encode(text)) == expected.ids
    tokens = asyncio.run(loaded.tokenize(text))
    assert [token.id for token in tokens] == expected.ids
    loaded.close()


@pytest.mark.parametrize("padding", ["", "a" * INLINE_CHARACTERS])
def test_half_a_surrogate_pair_is_refused(tmp_path: Path, padding: str) -> None:
    loaded = pipeline(tmp_path)
    with pytest.raises(InvalidInput, match=f"surrogate pair at character {len(padding)}"):
        asyncio.run(loaded.encode(padding + "\ud83d"))
    with pytest.raises(InvalidInput, match="tokenizer error"):
        asyncio.run(loaded.tokenize(padding + "\ud83d"))
    loaded.close()


def test_chats_are_rendered_and_failures_come_through(tmp_path: Path) -> None:
    loaded = pipeline(tmp_path)
    prompt = asyncio.run(loaded.render_chat([{"role": "user", "content": "Hi"}]))
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(TemplateFailed):
        asyncio.run(loaded.render_chat([{"role": "user"}]))
    loaded.close()


def test_a_model_that_is_nowhere_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelUnavailable, match="give a local directory, or go online"):
        load_text(ModelConfig(model_id="nobody/nothing", cache_dir=str(tmp_path)))


def test_a_name_that_cannot_be_a_model_is_refused() -> None:
    with pytest.raises(ModelUnavailable, match="neither a directory nor a hub id"):
        load_text(ModelConfig(model_id="no such/place/at all"))


def test_a_snapshot_in_the_cache_is_found_without_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    repository = tmp_path / "models--some--model"
    snapshot = repository / "snapshots" / "0123456789012345678901234567890123456789"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    pipeline(snapshot).close()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    loaded = load_text(ModelConfig(model_id="some/model", cache_dir=str(tmp_path)))
    assert asyncio.run(loaded.encode("a")) == made.byte_level().encode("a").ids
    loaded.close()
