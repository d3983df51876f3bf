from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from handlers.wire.items import Turns, to_turns
from handlers.wire.messages import to_template
from inference.errors import InvalidInput

CALL = {"type": "function_call", "call_id": "7", "name": "f", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "7", "output": "warm"}
CUSTOM = {"type": "custom_tool_call", "call_id": "9", "name": "f", "input": "a"}
USER: dict[str, object] = {"role": "user", "content": "Hi"}


def turns(items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    return list(to_turns(items, instructions).messages)


def test_a_text_is_a_message_of_the_user() -> None:
    assert turns("Hi") == [{"role": "user", "content": "Hi"}]


def test_what_the_system_says_first_is_one_message() -> None:
    items = [{"role": "developer", "content": "B"}, {"role": "system", "content": "C"}, USER]
    assert turns(items, "A") == [{"role": "system", "content": "A\n\nB\n\nC"}, USER]
    late = [USER, {"role": "developer", "content": "B"}]
    assert turns(late, "A") == [{"role": "system", "content": "A"}, USER, {"role": "system", "content": "B"}]


def test_parts_are_put_together() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b", "annotations": []},
        {"type": "refusal", "refusal": "c"},
    ]
    assert turns([{"type": "message", "role": "assistant", "content": parts}]) == [
        {"role": "assistant", "content": "abc"}
    ]


def test_a_message_and_the_calls_behind_it_are_one() -> None:
    said = {"role": "assistant", "content": "I look it up."}
    second = {**CALL, "call_id": "8", "arguments": "no JSON"}
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    items: Any = [USER, said, reasoning, CALL, second, RESULT]
    found = to_turns(items, None)
    function = {"name": "f", "arguments": {"a": 1}}
    assert found == Turns(
        (
            USER,
            {
                **said,
                "tool_calls": [
                    {"id": "7", "type": "function", "function": function},
                    {"id": "8", "type": "function", "function": {**function, "arguments": "no JSON"}},
                ],
            },
            {"role": "tool", "content": "warm", "tool_call_id": "7", "name": "f"},
        ),
        images=(),
        has_unread=True,
    )


def test_calls_after_a_result_are_another_message() -> None:
    again = [CALL, RESULT, {**CALL, "call_id": "8"}]
    assert [turn["role"] for turn in turns(again)] == ["assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"role": "user"}, "`input[0]` is a message and has no `content`: add it"),
        ({"content": "Hi"}, "`input[0]` is a message and has no `role`: add it"),
        ({"role": "tool", "content": "Hi"}, "`input[0].role` is 'tool'"),
        ({"id": "msg_1"}, "`input[0].type` is 'item_reference', and items are not stored"),
        ({"type": "item_reference", "id": "msg_1"}, "`input[0].type` is 'item_reference'"),
        ({"type": "compaction", "encrypted_content": "x"}, "`input[0].type` is 'compaction', which OpenAI"),
        ({"type": "compaction_trigger"}, "`input[0].type` is 'compaction_trigger', and is one of"),
        ({**CUSTOM, "input": None}, "`input[0]` is of type 'custom_tool_call' and has no `input`: add it"),
        ({**CUSTOM, "arguments": "{}"}, "`input[0].arguments` does not go with the type 'custom_tool_call'"),
        ({"type": "agent_message"}, "`input[0]` is a message and has no `content`: add it"),
        ({"type": "additional_tools"}, "`input[0]` is of type 'additional_tools' and has no `tools`"),
        ({"type": "additional_tools", "tools": [{"type": "x"}]}, "`input[0].tools[0].type` is 'x'"),
        ({**CALL, "name": None}, "`input[0]` is of type 'function_call' and has no `name`: add it"),
        ({**CALL, "call_id": ""}, "`input[0]` is of type 'function_call' and has no `call_id`: add it"),
        ({**RESULT, "output": None}, "`input[0]` is of type 'function_call_output' and has no `output`"),
        (RESULT, "`input[0].call_id` is '7', and no call in `input` has it"),
        ({**USER, "output": "warm"}, "`input[0].output` does not go with the type 'message'"),
        ({**CALL, "role": "user"}, "`input[0].role` does not go with the type 'function_call'"),
        (
            {"role": "user", "content": [{"type": "input_image"}]},
            "`input[0].content[0]` is of type 'input_image' and has no `image_url`: add it",
        ),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:,", "text": "Hi"}]},
            "`input[0].content[0]` is of type 'input_image' and has `text`, too: make it a part",
        ),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "", "image_url": "https://x"}]},
            "`input[0].content[0]` is of type 'input_text' and has `image_url`, too: make it a part",
        ),
        ({"role": "a" * 999, "content": "Hi"}, f"`input[0].role` is {'a' * 80!r}..., and is one of"),
        ({"type": "a" * 999}, f"`input[0].type` is {'a' * 80!r}..., and is one of"),
        (
            {"role": "user", "content": [{"type": "input_file"}]},
            "`input[0].content[0].type` is 'input_file': send parts of type 'input_text' or 'input_image'",
        ),
        (
            {"role": "user", "content": [{"type": "input_text"}]},
            "`input[0].content[0]` is of type",
        ),
    ],
)
def test_an_item_that_is_not_read_is_refused_with_what_to_do(item: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        turns([item])
    assert message in str(refused.value)


def test_what_tells_of_openais_own_tools_is_left_out_and_named_once() -> None:
    server = {"type": "tool_search_call", "execution": "server", "call_id": "7"}
    call = {"type": "web_search_call", "id": "ws_1"}
    found = to_turns([USER, call, call, server], None)  # type: ignore[list-item]
    assert found.messages == (USER,)
    assert found.left_out == ("input[].web_search_call", "input[].tool_search_call")


def test_what_the_model_calls_is_told_by_the_name_that_it_knows() -> None:
    search = {"type": "tool_search_call", "call_id": "8", "arguments": {"q": 1}}
    tools = [{"type": "namespace", "name": "g", "tools": [{"type": "function", "name": "f"}]}]
    found = {"type": "tool_search_output", "call_id": "8", "tools": tools}
    grouped = {**CALL, "namespace": "functions"}
    items: Any = [{**CUSTOM, "namespace": "g"}, grouped, search, found, {**found, "tools": []}]
    said, first, second = turns(items)
    functions = [call["function"] for call in said["tool_calls"]]
    assert functions == [
        {"name": "g__f", "arguments": {"input": "a"}},
        {"name": "f", "arguments": {"a": 1}},
        {"name": "tool_search", "arguments": {"q": 1}},
    ]
    assert (first["name"], first["content"]) == ("tool_search", "Found, and to be called from now on: g__f")
    assert second["content"] == "Nothing is found."
    offered: Any = to_turns(items, None).offered
    assert [list(offers.by_name) for offers in offered] == [["g__f"], []]


def test_calls_are_told_apart_by_their_ids() -> None:
    with pytest.raises(InvalidInput, match=r"^`input\[1\].call_id` is '7', as is that of a call before"):
        turns([CALL, {**CALL, "name": "g"}, RESULT])


def test_a_message_tells_who_speaks() -> None:
    assert turns([{**USER, "name": "Ann"}]) == [{**USER, "name": "Ann"}]


def test_images_stand_between_texts_and_are_named_by_their_places() -> None:
    picture = {"type": "input_image", "image_url": "https://example.com/cat.png"}
    shown: Any = [
        {"role": "system", "content": [picture]},
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "input_text", "text": "A"}, picture, picture]},
        CALL,
        {**RESULT, "output": [picture]},
    ]
    found = to_turns(shown, None)
    mark = {"type": "image"}
    contents = [turn["content"] for turn in found.messages]
    assert [[mark], "Be short.", [{"type": "text", "text": "A"}, mark, mark], None, [mark]] == contents
    places = ["input[0].content[0].image_url", "input[2].content[1].image_url"]
    places += ["input[2].content[2].image_url", "input[4].output[0].image_url"]
    assert places == [image.where.path for image in found.images]


ROUNDS = some.lists(
    some.tuples(some.text(min_size=1), some.text(max_size=3), some.integers(0, 2), some.text(min_size=1)),
    max_size=3,
)


@given(ROUNDS)
def test_a_conversation_is_rendered_as_the_same_chat_is(rounds: list[tuple[str, str, int, str]]) -> None:
    """The oracle is the chat route's own reading of the conversation in its own form."""
    items: list[Any] = []
    messages: list[Any] = []
    number = 0
    for asked, said, calls, result in rounds:
        items.append({"role": "user", "content": asked})
        messages.append({"role": "user", "content": asked})
        ids = [str(number + at) for at in range(calls)]
        number += calls
        if said or not calls:
            items.append(
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}
            )
        items += [{"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"} for id in ids]
        told = {"role": "assistant", "content": said if said or not calls else None}
        if calls:
            told["tool_calls"] = [  # type: ignore[assignment]
                {"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids
            ]
        messages.append(told)
        for id in ids:
            items.append({"type": "function_call_output", "call_id": id, "output": result})
            messages.append({"role": "tool", "tool_call_id": id, "name": "f", "content": result})
    same, _ = to_template(messages)
    assert json.dumps(turns(items), sort_keys=True) == json.dumps(same, sort_keys=True)
