from __future__ import annotations

import pytest

from inference.thoughts.formats import ChannelFormat, TagFormat, detect
from inference.thoughts.types import Place
from tests.unit.inference_thoughts.answers import SPECIAL, known
from tests.unit.inference_tools.templates import WEATHER, needs_corpus, prompt, template

OF_MODELS = {  # the format that a template shows, whose marks may be special tokens
    "Qwen-Qwen3-0.6B": "think",
    "Qwen/Qwen3.5-4B": "think",
    "deepseek-ai/DeepSeek-R1": "think",
    "GLM-4.6": "think",
    "deepseek-ai-DeepSeek-V3.1": "think",
    "NVIDIA-Nemotron-Nano-v2": "think",
    "mistralai-Ministral-3-14B-Reasoning": "mistral",
    "CohereLabs/command-a-reasoning": "command",
    "openai-gpt-oss-120b": "harmony",
    "google-gemma-4-31B-it.jinja": "gemma",
    "ByteDance-Seed-OSS": "seed",
    "MiniMax-M3": "minimax",
    "Apertus-8B-Instruct": "apertus",
    "meta-llama-Llama-3.1-8B-Instruct": None,
    "Qwen2.5": None,
}


@needs_corpus
@pytest.mark.parametrize(("model", "name"), OF_MODELS.items())
def test_a_models_template_shows_how_it_thinks(model: str, name: str | None) -> None:
    found = detect(template(model).texts, SPECIAL)
    assert (found and found.name) == name


@needs_corpus
@pytest.mark.parametrize(
    ("model", "place"),
    [
        ("R1-Distill-Llama-8B", Place.THOUGHT),
        ("Qwen3.5-4B", Place.THOUGHT),
        ("Qwen3-0.6B", Place.START),
        ("DeepSeek-V3.1", Place.WORDS),
    ],
)
def test_a_template_may_open_the_thought_or_close_it(model: str, place: Place) -> None:
    chat = template(model)
    fmt, rendered = detect(chat.texts, {}), prompt(chat, [{"role": "user", "content": "Hi"}], WEATHER)
    assert fmt is not None
    assert rendered is not None
    assert fmt.place(rendered) is place


@needs_corpus
def test_gpt_oss_is_asked_for_a_whole_message() -> None:
    fmt = known("harmony")
    rendered = prompt(template("openai-gpt-oss-120b"), [{"role": "user", "content": "Hi"}])
    assert rendered is not None
    assert rendered.endswith("<|start|>assistant")
    assert fmt.place(rendered) is Place.START


def test_marks_are_text_unless_both_are_special_tokens() -> None:
    tags = "a</think>b"
    assert detect([tags], {}) == known("think")
    with_ids = detect([tags], {"<think>": 7, "</think>": 8})
    assert isinstance(with_ids, TagFormat)
    assert (with_ids.opening.id, with_ids.closing.id) == (7, 8)
    assert with_ids.is_hidden
    assert not known("think").is_hidden
    assert detect([tags], {"</think>": 8}) is None  # nobody could tell where the other one is
    assert detect(["<|channel|>analysis"], {"<|channel|>": 1}) is None


def test_what_an_answer_was_begun_with_says_where_it_is() -> None:
    tags, channels = known("think"), known("harmony")
    assert tags.place("...<think>\n") is Place.THOUGHT
    assert tags.place("...<think>\n\n</think>\n\n") is Place.WORDS
    assert tags.place("...assistant\n") is Place.START
    assert tags.place_within("<think>Hm") is Place.THOUGHT
    assert tags.place_within("<think>Hm</think>So") is Place.WORDS
    assert tags.place_within("So") is Place.WORDS
    assert tags.place_within("In HTML the <think> tag") is Place.WORDS
    assert isinstance(channels, ChannelFormat)
    assert channels.place("<|start|>assistant<|channel|>analysis<|message|>Hm") is Place.THOUGHT
    assert channels.place("<|start|>assistant<|channel|>final<|message|>So") is Place.WORDS
    assert channels.place("<|channel|>final<|message|>So<|return|><|start|>assistant") is Place.START


def test_a_label_behind_the_opening_mark_belongs_to_it() -> None:
    assert known("gemma").place("<|turn>model\n<|channel>thought\n") is Place.THOUGHT
    assert known("gemma").place("<|turn>model\n<|channel>thought\n<channel|>") is Place.WORDS
