from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from inference.config import ModelConfig
from inference.errors import InvalidInput, ModelUnavailable, TemplateFailed
from inference.text.chat_template import ChatTemplate
from inference.text.lanes import LARGE_SIZE
from inference.text.pipeline import INLINE_CHARACTERS, TextPipeline, load_text
from inference.text.stand_in import CHATML
from inference.text.tokenizer import FastTokenizer
from inference.tools.prompt import INSTRUCTION
from inference.tools.types import Tool, ToolUse
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


class Held(FastTokenizer):
    """A tokenizer that keeps its thread, on a text that is large, until the test lets it go."""

    def __init__(self) -> None:
        super().__init__(made.byte_level())
        self.begun, self.may_end = threading.Event(), threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) > LARGE_SIZE:
            self.begun.set()
            assert self.may_end.wait(60)
        return super().encode(text, add_special_tokens=add_special_tokens)


def test_long_texts_and_chats_keep_only_their_like_waiting() -> None:
    tokenizer = Held()
    loaded = TextPipeline(tokenizer, ChatTemplate({"default": CHATML}, {}), workers=1)
    message = {"role": "user", "content": "Hi"}

    async def test() -> None:
        large: list[asyncio.Future[Any]] = [asyncio.ensure_future(loaded.encode("a" * (LARGE_SIZE + 1)))]
        await asyncio.to_thread(tokenizer.begun.wait, 60)
        large.append(asyncio.ensure_future(loaded.tokenize("a" * (LARGE_SIZE + 1))))
        chat = asyncio.ensure_future(loaded.render_chat([message] * 5_000))
        assert await asyncio.wait_for(loaded.encode("a" * 2_000), 60)
        assert await asyncio.wait_for(loaded.render_chat([message]), 60)
        assert not any(task.done() for task in (*large, chat))
        tokenizer.may_end.set()
        assert (await chat).count("Hi") == 5_000
        await asyncio.gather(*large)

    try:
        asyncio.run(test())
    finally:
        tokenizer.may_end.set()
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


def test_what_a_developer_says_reaches_a_model_that_knows_none(tmp_path: Path) -> None:
    loaded = pipeline(tmp_path)
    template = CHATML.replace(
        "{% for message in messages %}", "{% for message in messages if message.role in known %}"
    )
    assert template != CHATML
    known = "{% set known = ['system', 'user', 'assistant'] %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": known + template}))
    loaded.close()
    loaded = load_text(ModelConfig(model_id=str(tmp_path)))
    chat = [{"role": "developer", "content": "In French."}, {"role": "user", "content": "Hi"}]
    assert asyncio.run(loaded.render_chat(chat)).startswith("<|im_start|>system\nIn French.<|im_end|>")
    loaded.close()


WEATHER = Tool(name="get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
USE = ToolUse(tools=(WEATHER,), required=True, parallel=True)
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "0",
                "type": "function",
                "function": {"name": "get_weather", "arguments": {"city": "Oslo"}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "0", "content": "22"},
]


def test_the_embedded_model_is_told_of_tools_in_its_own_words() -> None:
    loaded = load_text(ModelConfig())
    assert loaded.tool_format.name == "hermes"
    assert {"messages", "tools"} <= loaded.template_names
    prompt = asyncio.run(loaded.render_chat(HISTORY, tools=USE))
    assert '"name": "get_weather"' in prompt.partition("</tools>")[0]
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>' in prompt
    assert "<tool_response>\n22\n</tool_response>" in prompt
    loaded.close()


def test_a_template_that_knows_no_tools_is_told_of_them_in_tgis_words(tmp_path: Path) -> None:
    loaded = pipeline(tmp_path)
    assert loaded.tool_format.name == "generic"
    prompt = asyncio.run(loaded.render_chat(HISTORY, tools=USE))
    assert (
        '<|im_start|>assistant\n{"name": "get_weather", "parameters": {"city": "Oslo"}}<|im_end|>' in prompt
    )
    assert '<|im_start|>user\nWeather?\n---\n[{"type": "function"' in prompt
    assert "<|im_start|>tool\n22<|im_end|>" in prompt
    assert INSTRUCTION in prompt
    given = asyncio.run(loaded.render_chat(HISTORY, tools=USE, tool_prompt="Go!"))
    assert "]\nGo!<|im_end|>" in given
    assert INSTRUCTION not in given
    loaded.close()


def test_only_a_last_message_that_can_be_gone_on_with_is(tmp_path: Path) -> None:
    loaded = pipeline(tmp_path)
    spoken = [{"role": "assistant", "content": "So"}]
    assert asyncio.run(loaded.render_chat(spoken)).endswith("\nSo")
    assert asyncio.run(loaded.render_chat(spoken, continue_final=False)).endswith("assistant\n")
    with pytest.raises(InvalidInput, match="continue_final_message"):
        asyncio.run(loaded.render_chat([{"role": "user", "content": "Hi"}], continue_final=True))
    loaded.close()


@pytest.mark.parametrize("member", ["template_kwargs", "tools", "tool_prompt"])
def test_what_is_nested_without_end_is_refused(tmp_path: Path, member: str) -> None:
    loaded = pipeline(tmp_path)
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"a": deep}
    tool = Tool(name="f", parameters=deep)
    use = ToolUse(tools=(tool,), required=False, parallel=True)
    members: dict[str, dict[str, Any]] = {
        "template_kwargs": {"template_kwargs": deep},
        "tools": {"tools": use},
        "tool_prompt": {"tools": use, "tool_prompt": "Go!"},
    }
    with pytest.raises(TemplateFailed, match="nested too deeply"):
        asyncio.run(loaded.render_chat([{"role": "user", "content": "Hi"}], **members[member]))
    loaded.close()


def test_messages_that_are_none_are_the_templates_to_take(tmp_path: Path) -> None:
    loaded = pipeline(tmp_path)
    assert asyncio.run(loaded.render_chat([])) == "<|im_start|>assistant\n"
    loaded.close()
    first = ChatTemplate({"default": "{{ messages[0].content }}"}, {})
    loaded = TextPipeline(FastTokenizer(made.byte_level()), first, workers=1)
    with pytest.raises(TemplateFailed, match=r"no element 0.*; `messages` is empty: send at least one$"):
        asyncio.run(loaded.render_chat([]))
    loaded.close()


def test_a_model_without_a_template_has_a_format_and_refuses_chats(tmp_path: Path) -> None:
    made.byte_level().save(str(tmp_path / "tokenizer.json"))
    loaded = load_text(ModelConfig(model_id=str(tmp_path)))
    assert (loaded.tool_format.name, loaded.template_names) == ("generic", frozenset())
    with pytest.raises(TemplateFailed, match="template not found"):
        asyncio.run(loaded.render_chat(HISTORY))
    loaded.close()


def test_a_model_that_is_nowhere_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelUnavailable, match="not in the hub's cache, and HF_HUB_OFFLINE keeps it"):
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
