from __future__ import annotations

from typing import Any

import pytest

from handlers.wire.limits import Limits
from handlers.wire.openai import Stamp
from handlers.wire.responses import LOGPROBS, Asked, to_asked
from inference.errors import InvalidInput

LIMITS = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5)
STAMP = Stamp(id="resp_1", created=1763600000, model="org/m", fingerprint="1-native")
SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}}}


def asked(**members: Any) -> Asked:
    body: Any = {"input": "Hi", **members}
    return to_asked(body, LIMITS)


def test_a_body_is_understood_as_the_chat_that_it_is() -> None:
    chat = asked(
        instructions="Be short.", max_output_tokens=5, temperature=0, reasoning={"effort": "low"}
    ).chat
    assert chat.conversation.messages == (
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi"},
    )
    assert (chat.parameters.max_new_tokens, chat.parameters.greedy, chat.choices) == (5, True, 1)
    assert chat.conversation.continue_final is False
    assert chat.conversation.variables == {"reasoning_effort": "low"}
    assert chat.conversation.without_effect(frozenset()) == ("reasoning.effort",)


def test_an_answer_that_begins_echoes_what_was_understood() -> None:
    blank = asked().blank(STAMP)
    assert (blank["status"], blank["output"], blank["usage"], blank["store"]) == (
        "in_progress",
        [],
        None,
        False,
    )
    assert (blank["temperature"], blank["top_p"], blank["metadata"]) == (1.0, 1.0, {})
    told = asked(temperature=0, top_p=0.5, metadata={"a": "b"}, parallel_tool_calls=False).blank(STAMP)
    assert (told["temperature"], told["top_p"], told["metadata"]) == (0, 0.5, {"a": "b"})
    assert told["parallel_tool_calls"] is False
    assert told["tool_choice"] == "auto"


def test_log_probabilities_are_told_if_they_are_included() -> None:
    chat = asked(include=[LOGPROBS, "reasoning.encrypted_content"], top_logprobs=2).chat
    assert (chat.logprobs, chat.top_logprobs) == (True, 2)
    assert chat.without_effect == ("include.reasoning.encrypted_content",)
    chat = asked(top_logprobs=2).chat
    assert (chat.logprobs, chat.top_logprobs, chat.without_effect) == (False, 0, ("top_logprobs",))


def test_what_another_model_thought_is_named() -> None:
    items = [{"role": "user", "content": "Hi"}, {"type": "reasoning", "id": "rs_1", "summary": []}]
    assert asked(input=items).chat.without_effect == ("input[].reasoning",)


def test_a_form_beside_tools_is_known_to_both() -> None:
    text, tools = {"format": {"type": "json_schema", "schema": SCHEMA}}, [{"type": "function", "name": "f"}]
    both = asked(text=text, tools=tools).chat
    assert both.grammar is not None
    assert both.conversation.tools is not None
    assert both.conversation.tools.formed
    alone = asked(tools=tools).chat.conversation.tools
    assert alone is not None
    assert not alone.formed
    assert asked(text=text, tools=tools, tool_choice="none").chat.conversation.tools is None


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"max_output_tokens": 0}, "`max_output_tokens` must be >= 1. Given: 0"),
        ({"top_logprobs": 21}, "`top_logprobs` must be >= 0 and <= 20. Given: 21"),
        ({"top_p": 2}, "`top_p` must be > 0.0 and < 1.0"),
        (
            {"include": ["everything"]},
            "`include[0]` is 'everything', and is one of message.output_text.logprobs",
        ),
        ({"metadata": {"a": "x" * 513}}, "`metadata.a` must have at most 512 characters. Given: 513"),
        ({"metadata": {"a" * 65: ""}}, "a name in `metadata` must have at most 64 characters. Given: 65"),
        (
            {"reasoning": {"effort": "low"}, "chat_template_kwargs": {"reasoning_effort": "high"}},
            "`reasoning.effort` is 'low' and `chat_template_kwargs.reasoning_effort` is not",
        ),
    ],
)
def test_a_value_out_of_range_is_refused(members: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        asked(**members)
    assert message in str(refused.value)
