from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from handlers.wire import messages as wire
from handlers.wire.types import Message, MessageChunk
from inference.errors import InvalidInput
from inference.types import Messages


def to_template(messages: Iterable[Message]) -> Messages:
    """Return messages without images as the template gets them."""
    read, images = wire.to_template(messages)
    assert images == ()
    return read


def call(arguments: Any, **changes: Any) -> Any:
    function = {"name": "get_weather", "arguments": arguments}
    return {"id": "0", "type": "function", "function": function} | changes


def rendered_arguments(given: Any) -> Any:
    (message,) = to_template([{"role": "assistant", "content": None, "tool_calls": [call(given)]}])
    calls: Any = message["tool_calls"]
    return calls[0]["function"]["arguments"]


def test_a_plain_message_passes_through() -> None:
    assert to_template([{"role": "user", "content": "Hi"}]) == ({"role": "user", "content": "Hi"},)


def test_parts_of_text_are_put_together_without_anything_between() -> None:
    parts: list[MessageChunk] = [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]
    assert to_template([{"role": "user", "content": parts}])[0]["content"] == "a b"


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"content": None, "refusal": "I can't."}, "I can't."),
        ({"content": "Well. ", "refusal": "I can't."}, "Well. I can't."),
        ({"content": [{"type": "text", "text": "No"}], "refusal": "."}, "No."),
        ({"content": [{"type": "refusal", "refusal": "No.", "text": None}]}, "No."),
        ({"content": "x", "refusal": ""}, "x"),
    ],
)
def test_a_refusal_is_what_the_assistant_said(message: Any, content: str) -> None:
    given: Any = {"role": "assistant", **message}
    assert to_template([given]) == ({"role": "assistant", "content": content},)


def test_images_stand_between_the_texts_around_them_in_order() -> None:
    parts: list[MessageChunk] = [
        {"type": "image_url", "image_url": "https://x/1"},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
        {"type": "image_url", "image_url": {"url": "https://x/2", "detail": "low"}},
        {"type": "text", "text": ""},
        {"type": "image_url", "image_url": {"url": "https://x/2"}},
    ]
    read, images = wire.to_template(
        [{"role": "user", "content": "Hi"}, {"role": "tool", "content": parts, "tool_call_id": "0"}]
    )
    image = {"type": "image"}
    assert read[1]["content"] == [image, {"type": "text", "text": "ab"}, image, image]
    assert [(image.part, image.where.path, image.url) for image in images] == [
        ("messages[1].content[0]", "messages[1].content[0].image_url", "https://x/1"),
        ("messages[1].content[3]", "messages[1].content[3].image_url.url", "https://x/2"),
        ("messages[1].content[5]", "messages[1].content[5].image_url.url", "https://x/2"),
    ]


def test_name_and_tool_call_id_reach_the_template() -> None:
    message: Message = {
        "role": "tool",
        "content": "18 degrees",
        "name": "get_weather",
        "tool_call_id": "0",
    }
    assert to_template([message]) == (message,)


def test_members_that_templates_do_not_know_stay_behind() -> None:
    message: Message = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "name": None,
        "audio": None,
    }
    assert to_template([message]) == ({"role": "assistant", "content": "x"},)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"location": "Paris"}', {"location": "Paris"}),
        ({"location": "Paris"}, {"location": "Paris"}),
        ("not json", "not json"),
        ("[1]", "[1]"),
        (None, {}),
        ("", {}),
        (" \n", {}),
        ("null", {}),
    ],
)
def test_arguments_given_as_json_text_become_the_object(given: Any, expected: Any) -> None:
    assert expected == rendered_arguments(given)


def test_arguments_may_be_called_parameters() -> None:
    function = {"name": "f", "parameters": '{"a": 1}', "description": "does f"}
    (message,) = to_template([{"role": "assistant", "tool_calls": [call(None, function=function)]}])
    rendered = {"name": "f", "arguments": {"a": 1}, "description": "does f"}
    assert message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "0", "type": "function", "function": rendered}],
    }


def called_with(**members: Any) -> Any:
    (message,) = to_template(
        [{"role": "assistant", "tool_calls": [call(None, function={"name": "f", **members})]}]
    )
    calls: Any = message["tool_calls"]
    return calls[0]["function"]["arguments"]


@pytest.mark.parametrize(
    "members",
    [
        {"arguments": None, "parameters": {"b": 2}},
        {"arguments": {"b": 2}, "parameters": None},
        {"arguments": '{"b": 2}', "parameters": {"b": 2}},
    ],
)
def test_arguments_under_one_of_their_names_are_kept_where_the_other_says_nothing_else(
    members: dict[str, Any],
) -> None:
    assert called_with(**members) == {"b": 2}


@pytest.mark.parametrize("other", [{"b": 2}, "text", {}])
def test_arguments_that_differ_under_their_two_names_are_refused(other: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        called_with(arguments={"a": 1}, parameters=other)
    assert str(refusal.value) == (
        "`messages[0].tool_calls[0].function` has `arguments` and `parameters`: they mean the same, give one"
    )


@pytest.mark.parametrize("content", [None, ""])
def test_tool_calls_are_kept_whatever_the_content(content: str | None) -> None:
    (message,) = to_template([{"role": "assistant", "content": content, "tool_calls": [call("{}")]}])
    assert message["content"] == content
    assert "tool_calls" in message


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"role": "user"}, "`messages[1]` has no `content`, `refusal` or `tool_calls`: give it one of them"),
        (
            {"role": "assistant", "content": None, "tool_calls": []},
            "`messages[1]` has no `content`, `refusal` or `tool_calls`: give it one of them",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            "`messages[1].content[1]` is of type 'image_url' and has no `image_url`: add it",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio"}]},
            "`messages[1].content[0].type` is 'input_audio': send parts of type 'text' or 'image_url'",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "image_url": "https://x/"}]},
            "`messages[1].content[0]` is of type 'text' and has `image_url`, too: make it a part of its own",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": "https://x/", "text": "a"}]},
            "`messages[1].content[0]` is of type 'image_url' and has `text`, too: make it a part of its own",
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No", "text": "a"}]},
            "`messages[1].content[0]` is of type 'refusal' and has `text`, too: make it a part of its own",
        ),
        (
            {"role": "user", "content": [{"type": "text"}]},
            "`messages[1].content[0]` is of type 'text' and has no `text`: add it",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "0", "type": "custom"}]},
            "`messages[1].tool_calls[0]` must be of type 'function' and have a `function`, or of type "
            "'custom' and have a `custom`. Given: 'custom'",
        ),
        (
            {"role": "assistant", "tool_calls": [{**call("{}"), "custom": {"name": "f", "input": "x"}}]},
            "`messages[1].tool_calls[0].custom` does not go with the type 'function': leave it out",
        ),
    ],
)
def test_what_can_not_be_rendered_is_refused_with_its_place(message: Message, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        to_template([{"role": "system", "content": "s"}, message])
    assert str(refusal.value) == complaint


def test_a_call_of_a_custom_tool_is_one_of_a_function_with_a_text() -> None:
    custom: Any = {
        "id": "0",
        "type": "custom",
        "custom": {"name": "patch", "input": '{"a": "\n"}'},
    }
    (message,) = to_template([{"role": "assistant", "tool_calls": [custom]}])
    assert message["tool_calls"] == [
        {"id": "0", "type": "function", "function": {"name": "patch", "arguments": {"input": '{"a": "\n"}'}}}
    ]


def test_arguments_nested_without_end_stay_text() -> None:
    endless = "[" * 50_000 + "]" * 50_000
    (message,) = to_template([{"role": "assistant", "tool_calls": [call(endless)]}])
    assert message["tool_calls"][0]["function"]["arguments"] == endless  # type: ignore[index]


def test_parts_may_have_null_for_what_they_have_not() -> None:
    text: Any = {"type": "text", "text": "a"}
    image: Any = {"type": "image_url", "image_url": {"url": "https://x/1"}}
    with_nulls: Any = [{**text, "image_url": None}, {**image, "text": None}]
    told = [wire.to_template([{"role": "user", "content": parts}]) for parts in (with_nulls, [text, image])]
    assert told[0] == told[1]


@pytest.mark.parametrize("member", ["reasoning_content", "reasoning"])
def test_what_the_assistant_thought_is_given_to_the_template(member: str) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": "4", member: "2 and 2"}
    silent: Any = {**message, member: None}
    told: Any = message
    assert wire.to_template([told]) == ((message,), ())
    assert wire.to_template([silent]) == (({"role": "assistant", "content": "4"},), ())
