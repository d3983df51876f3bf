"""Anthropic's content blocks as the messages that chat templates want."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.wire.blocks import to_transcript
from handlers.wire.images import image_characters
from inference.errors import InvalidInput

PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
CALL = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "1"}


def text(words: str) -> Any:
    return {"type": "text", "text": words}


def user(*content: Any) -> Any:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(*content: Any) -> Any:
    return {**user(*content), "role": "assistant"}


def read(*messages: Any, system: Any = None) -> tuple[dict[str, object], ...]:
    return to_transcript(messages, system).messages


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ("Be short.", "Be short."),
        ([text("Be short."), text("Be kind.")], "Be short.\n\nBe kind."),
        ([text("x-anthropic-billing-header: cc_version=2;"), text("Be short.")], "Be short."),
    ],
)
def test_what_the_system_says_is_one_message_with_what_follows(system: Any, said: str) -> None:
    first, asked = read({"role": "system", "content": "Be quick."}, user("Hi"), system=system)
    assert first == {"role": "system", "content": f"{said}\n\nBe quick."}
    assert asked == {"role": "user", "content": "Hi"}


def test_what_is_for_anthropics_accounts_is_named() -> None:
    assert to_transcript([user("Hi")], [text("x-anthropic-billing-header: a")]).unread == (
        "system[].x-anthropic-billing-header",
    )
    assert read(user("Hi"), system=[text("x-anthropic-billing-header: a")]) == (user("Hi"),)


def test_messages_of_one_role_are_one_and_texts_of_a_message_stand_together() -> None:
    told = read(user(text("a"), text("b")), user("c"), assistant("d"), assistant(text("e")))
    assert told == (user("ab\n\nc"), assistant("d\n\ne"))


@pytest.mark.parametrize(
    ("said", "text_of_all"),
    [
        (["It", ""], "It"),
        (["It", "", "is"], "It\n\nis"),
        (["", "It"], "It"),
        (["It", [text("")], [text(""), text("is")]], "It\n\nis"),
        (["It", [{"type": "redacted_thinking"}]], "It"),
    ],
    ids=str,
)
def test_what_adds_no_text_parts_nothing(said: list[Any], text_of_all: str) -> None:
    told = read(user("Hi"), *({"role": "assistant", "content": content} for content in said))
    assert told[1:] == (assistant(text_of_all),)


def test_results_come_before_what_else_a_message_says() -> None:
    other = {**CALL, "id": "2"}
    results = [{**RESULT, "content": "18"}, {**RESULT, "tool_use_id": "2", "content": "19"}]
    told = read(
        user("Hi"), assistant(CALL, other), user(text("a"), results[0], text("b"), results[1], text("c"))
    )
    assert [(turn["role"], turn["content"]) for turn in told[2:]] == [
        *(("tool", "18"), ("tool", "19")),
        ("user", "abc"),
    ]


def test_thoughts_calls_and_results_have_their_places() -> None:
    thought = {"type": "thinking", "thinking": "So.", "signature": ""}
    told = read(
        user("Hi"), assistant(thought, text("I call."), CALL), user({**RESULT, "content": "18"}, text("?"))
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert told == (
        user("Hi"),
        {"role": "assistant", "content": "I call.", "reasoning_content": "So.", "tool_calls": [call]},
        {"role": "tool", "content": "18", "tool_call_id": "1", "name": "f"},
        user("?"),
    )
    assert read(user("Hi"), assistant(CALL))[1]["content"] is None


def test_a_result_without_content_is_empty() -> None:
    *_, result = read(user("Hi"), assistant(CALL), user(RESULT))
    assert result["content"] == ""


def test_images_are_marked_in_order_those_of_results_among_them() -> None:
    picture, address = {"type": "image", "source": PNG}, {"type": "url", "url": "https://a.example/b.png"}
    seen = to_transcript(
        [
            user(text("a"), picture, text("b")),
            assistant(CALL),
            user({**RESULT, "content": [text("c"), {"type": "image", "source": address}]}),
        ],
        None,
    )
    assert [image.url for image in seen.images] == [f"data:image/png;base64,{PNG['data']}", address["url"]]
    assert [image.where.path for image in seen.images] == [
        "messages[0].content[1].source.data",
        "messages[2].content[0].content[1].source.url",
    ]
    contents = [message["content"] for message in seen.messages]
    assert contents[0] == [text("a"), {"type": "image"}, text("b")]
    assert contents[2] == [text("c"), {"type": "image"}]


def test_a_document_is_its_text_behind_what_is_said_of_it() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "It rains."}
    document = {"type": "document", "source": source, "title": "Rain", "context": "Of 1999"}
    assert read(user(document, text(" So?"))) == (user("Rain\nOf 1999\nIt rains. So?"),)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([user(RESULT)], "`messages[0].content[0].tool_use_id` is '1', and no `tool_use`"),
        ([assistant(CALL, CALL)], "`messages[0].content[1].id` is '1', as is that of a call before"),
        ([assistant({"type": "tool_use", "name": "f"})], "has no `id`: add it"),
        ([assistant(*[{"type": "tool_use", "name": "f"}] * 2)], "has no `id`: add it"),
        ([user({"type": "image"})], "is of type 'image' and has no `source`: add it"),
        ([user({"type": "text"})], "has no `text`: add it"),
        ([user({"type": "image", "source": "a.png"})], "`messages[0].content[0].source` is a text: give an"),
        ([assistant({"type": "thinking"})], "has no `thinking`: add it"),
        ([user({"type": "image", "source": {"type": "file"}})], "of type 'base64' or 'url'"),
        ([user({"type": "image", "source": {"type": "base64", "data": ""}})], "has no `media_type`: add it"),
        (
            [assistant(CALL), user({**RESULT, "content": [{"type": "tool_reference"}]})],
            "`messages[1].content[0].content[0].type` is 'tool_reference': send blocks of type 'text'",
        ),
    ],
)
def test_what_lacks_something_or_is_not_read_is_refused_with_its_place(messages: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        to_transcript(messages, None)
    assert words in str(caught.value)


def test_an_image_that_is_sent_whole_is_not_counted_as_text_and_arguments_are() -> None:
    picture = {"type": "image", "source": PNG}
    assert image_characters({"messages": [user(picture, picture)]}) == 2 * len(PNG["data"])
    assert image_characters({"messages": [assistant({**CALL, "input": picture})]}) == 0
    source = {"type": "url", "url": f"data:image/png;base64,{PNG['data']}"}
    assert image_characters({"messages": [user({"type": "image", "source": source})]}) == len(source["url"])
    source = {"type": "url", "url": "https://a.example/b.png"}
    assert image_characters({"messages": [user({"type": "image", "source": source})]}) == 0


@pytest.mark.parametrize("kind", ["text", "url", "content", None])
def test_a_documents_text_is_no_image_whatever_is_written_in_it(kind: str | None) -> None:
    words = f"![](data:{'a' * 100})"
    for source in ({"type": kind, "data": words}, {"type": kind, "more": {"type": "base64", "data": words}}):
        assert image_characters({"messages": [user({"type": "document", "source": source})]}) == 0
