"""What real templates make of conversations that they weren't written for."""

from __future__ import annotations

from typing import Any

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
