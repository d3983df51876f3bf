"""What real templates make of conversations that they weren't written for."""

from __future__ import annotations

from typing import Any

import pytest

from inference.tools.types import NO_ARGUMENTS, Tool
from tests.unit.inference_tools.templates import needs_corpus, prompt, template, templates

USER = {"role": "user", "content": "Weather?"}
ANSWER = {"role": "assistant", "content": "Warm."}
CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
}
RESULT = {"role": "tool", "tool_call_id": "call-1", "name": "get_weather", "content": "22 degrees"}


def calling(content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": [CALL]}


@needs_corpus
def test_words_beside_a_call_are_no_reason_to_refuse_what_follows() -> None:
    refused = []
    for name, chat in templates().items():
        silent, wordy = (
            prompt(chat, [USER, calling(words), RESULT, ANSWER, USER, calling(words), RESULT, ANSWER, USER])
            for words in (None, "I look it up.")
        )
        if silent is not None and wordy is None:
            refused.append(name)
    assert refused == []


@needs_corpus
def test_a_template_that_counts_turns_shows_the_call_and_what_follows() -> None:
    """Mistral Nemo's leaves out words beside a call, and refuses those before it once the chat goes on."""
    shown = prompt(template("Mistral-Nemo"), [USER, calling("I look it up."), RESULT, ANSWER, USER])
    assert shown is not None
    assert '[TOOL_CALLS][{"name": "get_weather"' in shown
    assert shown.endswith("Warm.</s>[AVAILABLE_TOOLS]" + shown.rpartition("[AVAILABLE_TOOLS]")[2])


NAMELESS = {member: value for member, value in RESULT.items() if member != "name"}


@needs_corpus
def test_results_without_a_name_are_no_reason_to_refuse_a_chat() -> None:
    refused = []
    for name, chat in templates().items():
        named, nameless = (prompt(chat, [USER, calling(), answer]) for answer in (RESULT, NAMELESS))
        if named is not None and nameless is None:
            refused.append(name)
    assert refused == []


@needs_corpus
@pytest.mark.parametrize("part", ["Hermes-2-Pro-Llama-3-8B (JSON Schema)", "functionary-medium-v2.2"])
def test_a_result_has_the_name_that_its_call_tells_where_a_template_wants_one(part: str) -> None:
    chat = template(part)
    expected = prompt(chat, [USER, calling(), RESULT])
    assert expected is not None
    assert expected.count("get_weather") > 1
    assert prompt(chat, [USER, calling(), NAMELESS]) == expected


@needs_corpus
def test_a_template_with_a_word_in_place_of_the_name_keeps_it() -> None:
    shown = prompt(template("Kimi-K2"), [USER, calling(), NAMELESS])
    assert shown is not None
    assert "<|im_system|>tool<|im_middle|>" in shown


@needs_corpus
def test_tools_that_say_little_are_no_reason_to_refuse_a_chat() -> None:
    undescribed = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [
        Tool(name="f", parameters=parameters, description=description)
        for parameters in (undescribed, {"type": "object"}, NO_ARGUMENTS)
        for description in (None, "Get the weather")
    ]
    refused = [
        (name, tool)
        for name, chat in templates().items()
        for tool in tools
        if prompt(chat, [USER]) is not None and prompt(chat, [USER], tool) is None
    ]
    assert refused == []


@needs_corpus
def test_descriptions_are_made_up_for_no_template_that_does_without() -> None:
    needy = {name for name, chat in templates().items() if chat.habits(has_tools=True).describes_parameters}
    assert 0 < len(needy) < 5
    assert any("command-r-plus" in name for name in needy)
