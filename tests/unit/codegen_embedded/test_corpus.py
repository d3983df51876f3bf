"""The embedded model's text: always the same, split cleanly, rendered as the shipped template renders it."""

from __future__ import annotations

import json
import random
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from codegen.embedded import completions, corpus, toolcalls, transforms
from codegen.embedded.chat import CHAT_TEMPLATE, prompt, render
from codegen.embedded.turns import draw, is_held_out, normalise

SHIPPED = Path(__file__).resolve().parents[3] / "inference" / "embedded"
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "README.md",
}
CALL = {"name": "get_weather", "arguments": {"city": "Zürich"}}


@cache
def shipped_template() -> Template:
    """Return the template that ships, in the environment that transformers gives to templates."""
    shipped = json.loads((SHIPPED / "tokenizer_config.json").read_text())["chat_template"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(shipped)


def templated(messages: list[dict[str, Any]], tools: list[dict[str, Any]], generation: bool = False) -> str:
    """Render by the template that ships."""
    return shipped_template().render(messages=messages, tools=tools or None, add_generation_prompt=generation)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))


def test_the_same_seed_gives_the_same_documents() -> None:
    assert list(islice(corpus.documents(3), 200)) == list(islice(corpus.documents(3), 200))
    assert list(islice(corpus.documents(3), 20)) != list(islice(corpus.documents(4), 20))


def test_the_same_seed_gives_the_same_held_out_questions() -> None:
    assert corpus.held_out(5) == corpus.held_out(5)


def test_every_kind_is_asked_equally_often() -> None:
    questions = corpus.held_out(3)
    assert [kind for kind in corpus.KINDS for _ in range(3)] == [question.kind for question in questions]


@pytest.mark.parametrize("kind", corpus.MIX)
def test_training_and_held_out_turns_share_no_key(kind: str) -> None:
    rng = random.Random(0)
    generator = corpus.MIX[kind][1]

    def keys(held_out: bool, count: int) -> set[str]:
        return {normalise(draw(generator, rng, held_out).key) for _ in range(count)}

    assert not keys(False, 1000) & keys(True, 100)


def test_the_split_looks_past_case_and_closing_marks() -> None:
    assert is_held_out("What is the capital of Peru?") == is_held_out(" what is the capital of peru")


def test_no_plain_text_gives_a_held_out_sum_away() -> None:
    passages = (completions.passage(random.Random(seed)) for seed in range(500))
    asked = [
        text for segments in passages for text, written in segments if text.endswith("=") and not written
    ]
    assert asked
    assert not any(is_held_out(text) for text in asked)


def test_no_exercise_gives_a_held_out_text_away() -> None:
    exercises = (transforms.exercise(random.Random(seed)) for seed in range(300))
    lines = [segments[place][0] for segments in exercises for place in range(2, len(segments), 2)]
    texts = [line.strip().removesuffix(":") for line in lines]
    assert not any(is_held_out(text) for text in texts if " " in text)


def test_the_tool_asked_for_is_new() -> None:
    rng = random.Random(0)
    assert all(is_held_out(toolcalls.offer(rng, True)[0].name) for _ in range(50))
    assert not any(is_held_out(tool.name) for _ in range(50) for tool in toolcalls.offer(rng, False))


def test_documents_render_as_the_template_renders_them() -> None:
    rng = random.Random(0)
    for number in range(300):
        talk = corpus.tool_chat(rng) if number % 2 else corpus.chat(rng)
        written = "".join(text for text, _ in render(talk.messages, talk.tools))
        assert templated(talk.messages, talk.tools) == written
        assert templated(talk.messages[:-1], talk.tools, True) == prompt(talk.messages[:-1], talk.tools)


def test_stretches_are_tokenized_as_the_whole(tokenizer: Tokenizer) -> None:
    for segments in islice(corpus.documents(5), 500):
        apart = [token for text, _ in segments for token in tokenizer.encode(text).ids]
        assert tokenizer.encode("".join(text for text, _ in segments)).ids == apart


def test_the_template_is_the_one_in_the_source() -> None:
    assert json.loads((SHIPPED / "tokenizer_config.json").read_text())["chat_template"] == CHAT_TEMPLATE


@pytest.mark.parametrize("arguments", [{"city": "Zürich"}, '{"city": "Zürich"}'])
def test_arguments_may_be_an_object_or_its_text(arguments: Any) -> None:
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "Weather in Zürich?"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "get_weather", "arguments": arguments}}]},
        {"role": "tool", "content": "Sunny"},
        {"role": "tool", "content": "21"},
    ]
    assert templated(history, [], True) == (
        "<|im_start|>user\nWeather in Zürich?<|im_end|>\n"
        f"<|im_start|>assistant\n{toolcalls.written(CALL)}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nSunny\n</tool_response>\n"
        "<tool_response>\n21\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_content_may_come_in_parts() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "image_url"}, {"type": "text", "text": "lo"}]
    assert templated([{"role": "user", "content": parts}], []) == "<|im_start|>user\nHello<|im_end|>\n"


def test_tools_are_listed_after_the_system_message() -> None:
    tools: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f"}}, {"name": "g"}]
    text = templated([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], tools)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert '<tools>\n{"name": "f"}\n{"name": "g"}\n</tools>' in text


@given(text=st.text())
def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert text == tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)


def test_digits_and_capitals_are_tokens_of_their_own(tokenizer: Tokenizer) -> None:
    assert ["1", "2", "+", "3", "4", "="] == tokenizer.encode("12+34=").tokens
    assert ["A", "B", "ĠC"] == tokenizer.encode("AB C").tokens


def test_what_ships_is_complete_and_small() -> None:
    assert {path.name for path in SHIPPED.iterdir()} == FILES
    assert (SHIPPED / "model.safetensors").stat().st_size <= 12_000_000


@pytest.mark.parametrize(
    ("kind", "answers", "mentions", "output", "right"),
    [
        ("facts", ("Paris.",), (), "Paris.<|im_end|>", True),
        ("facts", ("Paris.",), (), "Paris.", False),
        ("facts", ("Paris.",), (), "Paris. Rome.<|im_end|>", False),
        ("completion", (" 4",), (), " 4, 5", True),
        ("completion", (" 4",), (), " 5", False),
        ("stories", (), ("Once", " fox"), "Once. A fox. It. Ran.<|im_end|>", True),
        ("stories", (), ("Once", " fox"), "Once. A fox. It. Ran.", False),
        ("stories", (), ("Once", " fox"), "Once. A cat. It. Ran.<|im_end|>", False),
    ],
)
def test_judging(
    kind: str, answers: tuple[str, ...], mentions: tuple[str, ...], output: str, right: bool
) -> None:
    assert corpus.Question(kind, "", answers, mentions).is_right(output) is right
