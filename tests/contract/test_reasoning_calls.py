"""Calls of models that think: behind the thought, or as messages in a channel."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.serving import served
from tests.contract.thinking import PATH, answers, chat, thinking_engine

pytestmark = pytest.mark.anyio

THOUGHT = "Is it?\n\nIt is."
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
BARE_CALL = '{"name": "now", "parameters": {}}'
NOW = {"type": "function", "function": {"name": "now"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_calls_follow_a_thought(choice: str) -> None:
    body = chat(reasoning_format="parsed", tools=[NOW], tool_choice=choice)
    async with served(
        engine=thinking_engine("think", f"<think>{CALL} {BARE_CALL}?</think>\n{BARE_CALL}")
    ) as server:
        (answer,) = await answers(server, body)
    assert answer["reasoning_content"] == f"{CALL} {BARE_CALL}?"
    assert (answer["content"], answer["calls"], answer["reason"]) == ("", ["now"], "tool_calls")


async def test_calls_follow_a_thought_that_the_prompt_opened() -> None:
    body = chat(reasoning_format="parsed", tools=[NOW], stop=["now", "\n"])
    async with served(engine=thinking_engine("hermes", f"{CALL}?</think>\n\nSo.\n{CALL}")) as server:
        (answer,) = await answers(server, body)
    assert answer["reasoning_content"] == f"{CALL}?"
    assert (answer["content"], answer["calls"], answer["reason"]) == ("So.", ["now"], "tool_calls")


@pytest.mark.parametrize("wanted", [{"tools": [NOW], "tool_choice": "required"}, {"response_format": SCHEMA}])
async def test_a_prompt_that_ends_the_thought_leaves_room_for_none(wanted: dict[str, Any]) -> None:
    body = chat(reasoning_format="parsed", chat_template_kwargs={"no_thought": True}, **wanted)
    body["messages"][-1]["content"] = ">"
    async with served(engine=thinking_engine("think", "<think>Hm</think>")) as server:
        (answer,) = await answers(server, body)
    assert "reasoning_content" not in answer
    assert answer["calls"] or json.loads(answer["content"]) in ("yes", "no")


AGAIN, MESSAGE = "<|end|><|start|>assistant", "<|message|>"
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
}
CALLS_IN_CHANNELS = [
    "<|channel|>commentary to=functions.add<|constrain|>json",
    "<|channel|>commentary to=functions.add <|constrain|>json",
    "<|channel|>commentary to=functions.add",
    " to=functions.add<|channel|>commentary json",
]


@pytest.mark.parametrize("head", CALLS_IN_CHANNELS)
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_calls_may_be_messages_in_a_channel(head: str, choice: str) -> None:
    remark = f"<|channel|>commentary{MESSAGE}I add.\n{AGAIN}" if choice == "auto" else ""
    says = f'<|channel|>analysis{MESSAGE}{THOUGHT}{AGAIN}{remark}{head}{MESSAGE}{{"a": 1}}'
    body = chat(
        tools=[ADD, NOW], tool_choice=choice, stop=["add", "I", '"'] if choice == "required" else None
    )
    async with served(engine=thinking_engine("harmony", says)) as server:
        whole = (await server.post(PATH, body)).json()["choices"][0]["message"]
        (answer,) = await answers(server, body)
        raw = await server.post(PATH, {**body, "reasoning_format": "raw"})
    assert whole["tool_calls"][0]["function"]["arguments"] == '{"a":1}'
    assert (answer["calls"], answer["reason"]) == (["add"], "tool_calls")
    assert answer["reasoning_content"] == THOUGHT
    assert answer["content"] == ("I add.\n" if remark else "")
    assert raw.headers["x-ignored-parameters"] == "reasoning_format"


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "add"}}])
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_said_in_channels_calls_are_valid(choice: Any, seed: int) -> None:
    body = chat(tools=[ADD, NOW], tool_choice=choice, temperature=1, seed=seed, max_tokens=3000)
    async with served(engine=thinking_engine("harmony", None)) as server:
        (answer,) = await answers(server, body)
        whole = (await server.post(PATH, body)).json()["choices"][0]
    assert choice == "auto" or answer["calls"] or answer["reason"] == "length"
    for call in whole["message"].get("tool_calls", ()) if whole["finish_reason"] == "tool_calls" else ():
        arguments = json.loads(call["function"]["arguments"])
        assert arguments == {} if call["function"]["name"] == "now" else isinstance(arguments["a"], int)


@pytest.mark.parametrize(
    ("says", "content", "calls"),
    [
        (f'<|channel|>final{MESSAGE}"yes"', '"yes"', []),
        (f'{CALLS_IN_CHANNELS[0]}{MESSAGE}{{"a": 1}}', "", ["add"]),
    ],
)
async def test_a_form_and_calls_in_channels_go_together(says: str, content: str, calls: list[str]) -> None:
    body = chat(tools=[ADD], response_format=SCHEMA)
    engine = thinking_engine("harmony", says)
    async with served(engine=engine, response_format_with_tools="all") as server:
        (answer,) = await answers(server, body)
    assert (answer["content"], answer["calls"]) == (content, calls)


async def test_a_message_in_channels_that_is_begun_is_not_gone_on_with_beside_tools() -> None:
    body = chat(tools=[ADD])
    body["messages"].append({"role": "assistant", "content": "I"})
    async with served(engine=thinking_engine("harmony", None)) as server:
        refused = await server.post(PATH, body)
        taken = await server.post(PATH, {**body, "continue_final_message": False})
    assert (refused.status_code, taken.status_code) == (422, 200)
    assert "continue_final_message" in refused.json()["error"]


async def test_a_stop_sequence_that_begins_before_a_call_leaves_it_whole() -> None:
    says = f'<|channel|>commentary{MESSAGE}I add.{AGAIN}{CALLS_IN_CHANNELS[0]}{MESSAGE}{{"a": 1}}'
    async with served(engine=thinking_engine("harmony", says)) as server:
        (answer,) = await answers(server, chat(tools=[ADD], stop=[".X"]))
        message = await server.post("/v1/messages", anthropic(stop_sequences=[".X"]))
    assert (answer["content"], answer["calls"], answer["reason"]) == ("I add.", ["add"], "tool_calls")
    assert [block["type"] for block in message.json()["content"]] == ["text", "tool_use"]


async def test_texts_of_several_messages_are_put_together_where_they_are_one() -> None:
    says = f"<|channel|>analysis{MESSAGE}Hm.{AGAIN}<|channel|>commentary{MESSAGE}So.{AGAIN}"
    says += f"<|channel|>analysis{MESSAGE}Well.{AGAIN}<|channel|>final{MESSAGE}Yes."
    async with served(engine=thinking_engine("harmony", says)) as server:
        (answer,) = await answers(server, chat())
        message = await server.post("/v1/messages", anthropic(tools=None))
    assert (answer["content"], answer["reasoning_content"]) == ("So.\n\nYes.", "Hm.\n\nWell.")
    told = [block.get("text", block.get("thinking")) for block in message.json()["content"]]
    assert told == ["Hm.", "So.", "Well.", "Yes."]


async def test_a_tool_of_any_name_can_be_called_in_a_channel() -> None:
    tool = {"type": "function", "function": {"name": "n" * 300}}
    says = f"<|channel|>commentary to=functions.{'n' * 300}{MESSAGE}{{}}"
    async with served(engine=thinking_engine("harmony", says)) as server:
        (answer,) = await answers(server, chat(tools=[tool]))
    assert answer["calls"] == ["n" * 300]


@pytest.mark.parametrize("kind", ["mistral", "think"])
async def test_a_call_behind_any_mark_is_held_to_its_schema(kind: str) -> None:
    marks = {"mistral": ("[THINK]", "[/THINK]"), "think": ("<think>", "</think>")}[kind]
    says = f'{marks[0]}Hm{marks[1]}{{"name": "add", "parameters": {{"bogus": [}}'
    body = chat(tools=[ADD], reasoning_format="parsed", parallel_tool_calls=False)
    async with served(engine=thinking_engine(kind, says)) as server:
        whole = (await server.post(PATH, body)).json()["choices"][0]
    (call,) = whole["message"]["tool_calls"]
    assert whole["finish_reason"] == "tool_calls"
    assert isinstance(json.loads(call["function"]["arguments"])["a"], int)


@pytest.mark.parametrize("begun", [None, "<think>I"])
async def test_a_sign_of_calls_that_is_thought_forces_none(begun: str | None) -> None:
    says = f"{'' if begun else '<think>'}could write {CALL} so</think>Done."
    body = chat(reasoning_format="parsed", tools=[NOW])
    body["messages"] += [{"role": "assistant", "content": begun}] if begun else []
    async with served(engine=thinking_engine("hermes", says)) as server:
        (answer,) = await answers(server, body)
    assert (answer["content"], answer["calls"], answer["reason"]) == ("Done.", [], "stop")


def anthropic(**members: Any) -> dict[str, Any]:
    tool = {"name": "add", "input_schema": ADD["function"]["parameters"]}  # type: ignore[index]
    asked = {"max_tokens": 400, "temperature": 0, "messages": [{"role": "user", "content": "Is it?"}]}
    return {**asked, "tools": [tool], **members}
