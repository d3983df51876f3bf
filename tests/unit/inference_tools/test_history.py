from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.tools.habits import Habits
from inference.tools.history import fit, one_call_each, short_id
from inference.tools.known_formats import FORMATS, GENERIC

ALL = Habits(shows_tools=True, shows_calls=True, shows_results=True)
USER = {"role": "user", "content": "Weather?"}


def call(id: str, name: str = "f", arguments: Any = None) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments or {"a": id}}}


def calling(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(id: str, content: str = "22") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def test_messages_without_calls_stay_as_they_are() -> None:
    chat = [{"role": "system", "content": "Be"}, USER, {"role": "assistant", "content": "Hi"}]
    for habits in (ALL, Habits(), replace(ALL, short_ids=True, single_calls=True)):
        assert fit(chat, habits, GENERIC) == chat


def test_an_empty_list_of_calls_is_left_out() -> None:
    assert fit([{"role": "assistant", "content": "Hi", "tool_calls": []}], ALL, GENERIC) == [
        {"role": "assistant", "content": "Hi"}
    ]


@pytest.mark.parametrize(("null_content", "content"), [(False, ""), (True, None)])
def test_calls_without_words_have_the_content_that_the_template_wants(
    null_content: bool, content: str | None
) -> None:
    for given_content in ("", None):
        (message,) = fit(
            [calling(call("0"), content=given_content)], replace(ALL, null_content=null_content), GENERIC
        )
        assert message["content"] == content
        assert message["tool_calls"] == [call("0")]


def test_arguments_become_text_where_the_template_wants_text() -> None:
    (message,) = fit([calling(call("0", arguments={"ä": 1}))], replace(ALL, text_arguments=True), GENERIC)
    assert message["tool_calls"][0]["function"]["arguments"] == '{"ä": 1}'


def test_a_call_whose_arguments_are_no_object_is_text_where_the_template_needs_one() -> None:
    cut = calling(call("0", arguments='{"a": "cut o'), call("1"), content="I look.")
    whole = calling(call("2"))
    chat = [USER, cut, result("0", "bad JSON"), result("1"), whole, result("2"), USER]
    habits = replace(ALL, needs_object=True)
    user, told, results, *rest = fit(chat, habits, GENERIC)
    assert (user, told["role"], results["role"]) == (USER, "assistant", "user")
    assert told["content"].startswith("I look.\n")
    assert '{"a": "cut o' in told["content"]
    assert "tool_calls" not in told
    assert "bad JSON" in results["content"]
    assert "The function f returned:\n22" in results["content"]
    assert rest == fit([whole, result("2"), USER], habits, GENERIC)
    assert fit(chat, ALL, GENERIC)[1]["tool_calls"] == cut["tool_calls"]
    sound = [USER, whole, result("2")]
    assert fit(sound, habits, GENERIC) == fit(sound, ALL, GENERIC)


def test_thoughts_beside_words_and_a_call_are_left_out_where_the_template_refuses_them() -> None:
    alone = calling(call("0")) | {"reasoning_content": "Hm."}
    wordy = calling(call("0"), content="I look.") | {"reasoning": "Hm.", "reasoning_content": "Hm."}
    first, second = fit([alone, wordy], replace(ALL, thinks_alone=True), GENERIC)
    assert first["reasoning_content"] == "Hm."
    assert not {"reasoning", "reasoning_content"} & second.keys()
    assert second["content"] == "I look."
    assert fit([wordy], ALL, GENERIC) == [wordy]


def test_words_that_would_hide_calls_get_a_message_of_their_own() -> None:
    habits = replace(ALL, null_content=True, content_hides_calls=True)
    said, called = fit([calling(call("0"), content="Let me see")], habits, GENERIC)
    assert said == {"role": "assistant", "content": "Let me see"}
    assert (called["content"], called["tool_calls"]) == (None, [call("0")])


def test_calls_are_taken_apart_and_each_keeps_its_results() -> None:
    chat = [USER, calling(call("0"), call("1"), content="So"), result("1", "one"), result("0", "zero"), USER]
    apart = fit(chat, replace(ALL, single_calls=True), GENERIC)
    assert apart == [
        USER,
        {"role": "assistant", "content": "So", "tool_calls": [call("0")]},
        result("0", "zero"),
        {"role": "assistant", "content": "", "tool_calls": [call("1")]},
        result("1", "one"),
        USER,
    ]


ids = st.sampled_from(["0", "1", "2"])
turns = st.one_of(
    st.just(USER),
    st.builds(
        lambda ids, content: calling(*map(call, ids), content=content), st.lists(ids), st.sampled_from("xy")
    ),
    st.builds(result, ids, st.sampled_from("xy")),
    st.just({"role": "tool", "content": "of no call"}),
)


def plainly_apart(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what `one_call_each` returns, in the plainest way."""
    apart: list[dict[str, Any]] = []
    rest = list(chat)
    while rest:
        message = rest.pop(0)
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            apart.append(message)
            continue
        answers = []
        while rest and rest[0]["role"] == "tool":
            answers.append(rest.pop(0))
        for made in calls:
            apart.append(message | {"content": message["content"] if made is calls[0] else None})
            apart[-1]["tool_calls"] = [made]
            apart += [answer for answer in answers if answer.get("tool_call_id") == made["id"]]
            answers = [answer for answer in answers if answer.get("tool_call_id") != made["id"]]
        apart += answers
    return apart


@given(st.lists(turns, max_size=12))
def test_calls_taken_apart_are_those_of_a_plain_search(chat: list[dict[str, Any]]) -> None:
    assert one_call_each(chat) == plainly_apart(chat)


class Uncompared(str):
    """A text that nobody may compare: comparing each with each would take time without a limit."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError


def test_results_of_one_call_are_not_compared_with_each_other() -> None:
    results = [result("1", Uncompared(number)) for number in range(100)]
    apart = one_call_each([calling(call("1"), call("2")), *results])
    assert [id(message) for message in apart[1:101]] == [id(each) for each in results]


class Counted(str):
    """An id that counts how often one is compared."""

    __slots__ = ()
    __hash__ = str.__hash__
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def test_each_call_finds_its_results_without_a_search() -> None:
    numbers = [str(number) for number in range(200)]
    calls, results = map(call, map(Counted, numbers)), [result(Counted(number)) for number in numbers]
    apart = one_call_each([calling(*calls), *reversed(results)])
    assert [message["tool_call_id"] for message in apart[1::2]] == numbers
    # Its own result's, once or twice, and what happens to have the same hash
    assert Counted.compared < 5 * len(numbers)


def test_ids_get_nine_letters_and_digits_and_still_match() -> None:
    chat = [calling(call("0"), call("call-with-a-long-id")), result("0"), result("call-with-a-long-id")]
    message, *results = fit(chat, replace(ALL, short_ids=True), GENERIC)
    ids = [made["id"] for made in message["tool_calls"]]
    assert ids == [answer["tool_call_id"] for answer in results]
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", id) for id in ids)
    assert chat[0]["tool_calls"][0]["id"] == "0", "what was given stays as it is"


def test_a_result_gets_the_name_of_its_function_where_the_template_wants_one() -> None:
    chat = [USER, calling(call("0"), call("1", "g")), result("1"), result("0") | {"name": "own"}, result("2")]
    habits = replace(ALL, needs_names=True, short_ids=True)
    names = [message.get("name") for message in fit(chat, habits, GENERIC)]
    assert names == [None, None, "g", "own", None]
    assert fit(chat, ALL, GENERIC)[2:] == chat[2:]


def test_an_id_that_comes_again_in_a_later_turn_is_of_another_call() -> None:
    chat = [USER, calling(call("0")), result("0"), USER, calling(call("0", "g")), result("0", "23")]
    habits = replace(ALL, needs_names=True)
    names = [message.get("name") for message in fit(chat, habits, GENERIC)]
    assert names == [None, None, "f", None, None, "g"]
    *_, told, after = fit(chat, Habits(), GENERIC)
    assert told["role"] == "assistant"
    assert after["content"] == "The function g returned:\n23"


def test_an_id_that_was_a_broken_calls_may_be_a_whole_calls_later() -> None:
    cut = calling(call("0", arguments='{"a": "cut o'))
    turn = [USER, calling(call("0", "g")), result("0", "23")]
    habits = replace(ALL, needs_object=True, needs_names=True)
    shown = fit([*turn, USER, cut, result("0", "bad JSON"), *turn], habits, GENERIC)
    assert [message["role"] for message in shown] == [
        *("user", "assistant", "tool", "user", "assistant", "user", "assistant", "tool")
    ]
    assert [message.get("name") for message in shown if message["role"] == "tool"] == ["g", "g"]
    assert "The function f returned:\nbad JSON\n\nWeather?" in shown[5]["content"]


@given(st.lists(st.text(), min_size=2, max_size=20, unique=True))
def test_short_ids_tell_calls_apart(ids: list[str]) -> None:
    short = [short_id(id) for id in ids]
    assert len(set(short)) == len(ids)
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", id) for id in short)
    assert [short_id(id) for id in short] == short


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("generic", '{"name": "f", "parameters": {"a": "0"}}\n{"name": "g", "parameters": {"a": "1"}}'),
        (
            "llama3",
            '<|python_tag|>{"name": "f", "parameters": {"a": "0"}}; {"name": "g", "parameters": {"a": "1"}}',
        ),
        (
            "hermes",
            '<tool_call>\n{"name": "f", "arguments": {"a": "0"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {"a": "1"}}\n</tool_call>',
        ),
        (
            "mistral",
            '[TOOL_CALLS][{"name": "f", "arguments": {"a": "0"}}, {"name": "g", "arguments": {"a": "1"}}]',
        ),
        ("mistral_args", '[TOOL_CALLS]f[ARGS]{"a": "0"}[TOOL_CALLS]g[ARGS]{"a": "1"}'),
    ],
)
def test_calls_that_the_template_leaves_out_are_told_as_the_model_writes_them(name: str, text: str) -> None:
    (message,) = fit([calling(call("0"), call("1", "g"))], Habits(), FORMATS[name])
    assert message == {"role": "assistant", "content": text}
    (message,) = fit([calling(call("0"), call("1", "g"), content="Hm")], Habits(), FORMATS[name])
    assert message["content"] == f"Hm\n{text}"


def test_arguments_that_are_no_json_are_told_as_they_came() -> None:
    (message,) = fit([calling(call("0", arguments="{oops"))], Habits(), GENERIC)
    assert message["content"] == '{"name": "f", "parameters": {oops}'


def test_results_that_the_template_leaves_out_are_told_by_the_user_who_goes_on() -> None:
    chat = [USER, calling(call("0"), call("1", "g")), result("0"), result("1", "23"), USER, USER]
    *_, told, after = fit(chat, Habits(), GENERIC)
    assert told == {
        "role": "user",
        "content": "The function f returned:\n22\n\nThe function g returned:\n23\n\nWeather?",
    }
    assert after == USER


@given(st.lists(turns, max_size=8))
def test_results_told_by_the_user_join_and_what_the_user_says_next_joins_them(
    chat: list[dict[str, Any]],
) -> None:
    runs: list[list[str]] = [[]]  # what the user says at a time
    after_result = False
    for message in chat:
        is_result = message["role"] == "tool"
        if not after_result or message["role"] == "assistant":
            runs.append([])
        if message["role"] != "assistant":
            runs[-1].append(f"returned:\n{message['content']}" if is_result else message["content"])
        after_result = is_result
    said = [each["content"] for each in fit(chat, Habits(), GENERIC) if each["role"] == "user"]
    said = [re.sub(r"The function( f)? returned", "returned", text) for text in said]
    assert said == ["\n\n".join(run) for run in runs if run]


def test_a_result_without_a_name_is_told_all_the_same() -> None:
    assert fit([{"role": "tool", "content": "22"}], Habits(), GENERIC) == [
        {"role": "user", "content": "The function returned:\n22"}
    ]
    assert fit([{"role": "tool", "name": "h", "content": "22"}], Habits(), GENERIC) == [
        {"role": "user", "content": "The function h returned:\n22"}
    ]
