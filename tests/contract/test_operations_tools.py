"""Tools, as a client of the chat route sees them: offered, called, answered, refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests.contract.serving import Served, events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
PARAMETERS = {
    "type": "object",
    "properties": {"location": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["location"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "Tells the weather.", "parameters": PARAMETERS}
TOOLS = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "get_time"}},
]
PARIS, ROME = '{"location":"Paris"}', '{"location":"Rome","days":2}'  # as TGI and OpenAI tell them


def called(name: str, arguments: str) -> str:
    """Return a call as the embedded model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ONE = called("get_weather", '{"location": "Paris"}')
TWO = ONE + "\n" + called("get_weather", '{"location": "Rome", "days": 2}')
THOUGHT = f"I could write {called('get_time', '{}')}.</think>"
REPLIES = {
    "replies": {
        "two": TWO,
        "say first": "Let me see.\n" + ONE,
        "chat": "Hello there.",
        "what time": called("get_time", "{}"),
        "weather": ONE,
    }
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def asking(content: str, **members: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": content}],
        "tools": TOOLS,
        "temperature": 0,
        "max_tokens": 200,
        **members,
    }


async def whole(server: Served, body: dict[str, Any]) -> dict[str, Any]:
    response = await server.post(PATH, body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


async def streamed(server: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of a stream's chunks."""
    response = await server.post(PATH, {**body, "stream": True})
    assert response.status_code == 200, response.text
    *chunks, done = events_of(response)
    assert done == "[DONE]"
    return [choice for chunk in chunks for choice in chunk["choices"]]


def put_together(choices: Sequence[dict[str, Any]]) -> tuple[str, list[tuple[str, str, str]], str]:
    """Return text, calls (id, name, arguments) and finish reason of one choice, as OpenAI's client would."""
    *before, reason = [choice["finish_reason"] for choice in choices]
    assert set(before) <= {None}
    text = ""
    calls: dict[int, tuple[str, str, str]] = {}
    for choice in choices:
        text += choice["delta"].get("content", "")
        for part in choice["delta"].get("tool_calls", []):
            id, name, arguments = calls.get(part["index"], ("", "", ""))
            function = part["function"]
            calls[part["index"]] = (
                id + (part["id"] or ""),
                name + (function["name"] or ""),
                arguments + function["arguments"],
            )
    return text, list(calls.values()), reason


def as_told(choice: dict[str, Any]) -> tuple[str, list[tuple[str, str, str]], str]:
    """Return the same of a whole answer."""
    message = choice["message"]
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", [])
    ]
    return message["content"] or "", calls, choice["finish_reason"]


async def test_a_call_has_tgis_and_openais_form() -> None:
    async with served(fake=REPLIES) as server:
        choice = await whole(server, asking("the weather?"))
    function = {"description": None, "name": "get_weather", "arguments": PARIS}
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "0", "type": "function", "function": function}],
    }
    assert choice["finish_reason"] == "tool_calls"


async def test_a_streamed_call_begins_with_its_name_and_a_brace_and_ends_with_an_empty_piece() -> None:
    async with served(fake=REPLIES) as server:
        choices = await streamed(server, asking("the weather?"))
    parts = [choice["delta"]["tool_calls"] for choice in choices]
    assert all(len(part) == 1 and part[0]["type"] == "function" for part in parts)
    assert {choice["delta"]["role"] for choice in choices} == {"assistant"}
    first, *others = [part[0] for part in parts]
    assert (first["index"], first["id"]) == (0, "0")
    assert first["function"] == {"name": "get_weather", "arguments": "{"}
    assert {(part["id"], part["function"]["name"]) for part in others} == {(None, None)}
    assert others[-1]["function"]["arguments"] == ""
    pieces = [part["function"]["arguments"] for part in others[:-1]]
    assert all(pieces), "a token of white space is none"
    assert put_together(choices) == ("", [("0", "get_weather", PARIS)], "tool_calls")


@pytest.mark.parametrize("content", ["the weather?", "two, please", "say first", "just chat", "what time?"])
async def test_a_stream_adds_up_to_the_whole(content: str) -> None:
    body = asking(content, logprobs=True, top_logprobs=1)
    async with served(fake=REPLIES) as server:
        choice = await whole(server, body)
        choices = await streamed(server, body)
    assert put_together(choices) == as_told(choice)
    told = [entry for part in choices for entry in part["logprobs"]["content"]]
    assert told == choice["logprobs"]["content"]


async def test_the_model_decides_between_text_calls_and_text_before_a_call() -> None:
    async with served(fake=REPLIES) as server:
        text = as_told(await whole(server, asking("just chat")))
        both = as_told(await whole(server, asking("say first")))
        two = as_told(await whole(server, asking("two, please")))
    assert text == ("Hello there.", [], "stop")
    assert both[0].startswith("Let me see.")
    assert both[1:] == ([("0", "get_weather", PARIS)], "tool_calls")
    assert two == ("", [("0", "get_weather", PARIS), ("1", "get_weather", ROME)], "tool_calls")


@pytest.mark.parametrize(("begun", "thought"), [("<think>\n", THOUGHT), ("Well, ", f"<think>{THOUGHT}")])
async def test_a_call_that_is_only_thought_of_is_none(begun: str, thought: str) -> None:
    """Whether the prompt opened the thought, as those of many models do, or the answer."""
    body = asking("think of it")
    body["messages"].append({"role": "assistant", "content": begun})
    async with served(fake={"replies": {"think of it": f"{thought}\n{ONE}"}}) as server:
        text, calls, reason = as_told(await whole(server, body))
        assert put_together(await streamed(server, body)) == (text, calls, reason)
    assert (text, calls, reason) == (thought, [("0", "get_weather", PARIS)], "tool_calls")


async def test_no_call_where_none_is_to_be_made_and_the_tools_are_not_shown() -> None:
    async with served(fake=REPLIES) as server:
        tokenized = (await server.post("/chat_tokenize", asking("x", tool_choice="none"))).json()
        bare = (await server.post("/chat_tokenize", asking("x", tools=[]))).json()
        choice = await whole(server, asking("just chat", tool_choice="none"))
    assert tokenized == bare
    assert as_told(choice) == ("Hello there.", [], "stop")


@pytest.mark.parametrize("choice", ["required", "get_time", {"function": {"name": "get_time"}}])
async def test_a_call_that_must_be_made_is_made_whatever_the_model_would_say(choice: Any) -> None:
    async with served(fake=REPLIES) as server:
        text, calls, _ = as_told(await whole(server, asking("just chat", tool_choice=choice)))
    assert text == ""
    names = {"get_weather", "get_time"} if choice == "required" else {"get_time"}
    assert {name for _, name, _ in calls} <= names
    assert len(calls) == 1 or choice == "required"
    for _, _, arguments in calls[:-1]:
        assert isinstance(json.loads(arguments), dict)


async def test_only_one_call_where_calls_may_not_be_parallel() -> None:
    async with served(fake=REPLIES) as server:
        choice = await whole(server, asking("two, please", parallel_tool_calls=False))
    assert as_told(choice) == ("", [("0", "get_weather", PARIS)], "tool_calls")


async def test_a_call_that_is_cut_is_given_as_far_as_it_came_and_is_not_called_one() -> None:
    seen = set()
    async with served(fake=REPLIES) as server:
        for limit in range(1, 30):
            body = asking("the weather?", max_tokens=limit)
            text, calls, reason = as_told(await whole(server, body))
            assert (text, calls, reason) == put_together(await streamed(server, body))
            arguments = "".join(arguments for _, _, arguments in calls)
            assert (text, reason) == ("", "tool_calls" if reason == "tool_calls" else "length")
            assert PARIS.startswith(arguments)
            assert arguments == PARIS or reason == "length"
            seen.add((len(calls), reason))
    assert seen == {(0, "length"), (1, "length"), (1, "tool_calls")}


async def test_results_go_into_the_prompt_and_ids_go_on() -> None:
    history = [
        {"role": "user", "content": "the weather?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "0", "type": "function", "function": {"name": "get_weather", "arguments": PARIS}}
            ],
        },
        {"role": "tool", "tool_call_id": "0", "name": "get_weather", "content": "18 degrees"},
        {"role": "tool", "tool_call_id": "5", "content": "of a call that was left out"},
    ]
    async with served(fake=REPLIES) as server:
        body = asking("x", messages=history)
        text = (await server.post("/chat_tokenize", body)).json()["templated_text"]
        _, calls, _ = as_told(await whole(server, body))
    for shown in ("Let me see.", "Paris", "18 degrees", "of a call that was left out", "get_time"):
        assert shown in text
    assert [id for id, _, _ in calls] == ["6"]


async def test_choices_side_by_side_have_calls_with_ids_of_their_own() -> None:
    body = asking("two, please", n=2, temperature=1, seed=5)
    async with served(fake=REPLIES) as server:
        response = (await server.post(PATH, body)).json()
        chunks = await streamed(server, body)
    told = [as_told(choice) for choice in response["choices"]]
    assert [choice["index"] for choice in response["choices"]] == [0, 1]
    assert told == [put_together([part for part in chunks if part["index"] == index]) for index in (0, 1)]
    assert [[id for id, _, _ in calls] for _, calls, _ in told] == [["0", "2"], ["1", "3"]]


async def test_the_tools_are_shown_with_their_schemas_and_one_that_is_named_alone() -> None:
    async with served(fake=REPLIES) as server:
        messages = [{"role": "user", "content": "x"}]
        response = await server.post("/chat_tokenize", {"messages": messages, "tools": TOOLS})
        named = await server.post("/chat_tokenize", asking("x", tool_choice="get_time"))
    assert response.status_code == 200
    text = response.json()["templated_text"]
    for shown in ("get_weather", "Tells the weather.", "location", "get_time"):
        assert shown in text
    assert "x-ignored-parameters" not in response.headers
    assert "get_weather" not in named.json()["templated_text"]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tool_choice": "fly"}, "Tool error: Tool with name fly not found", "tool_error"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "fly"}}},
        "Tool error: Tool with name fly not found",
        "tool_error",
    ),
    (
        {"tools": [], "tool_choice": "required"},
        "Tool error: `tool_choice` is 'required' and there are no `tools`: give at least one",
        "tool_error",
    ),
    (
        {"tools": [{"type": "function"}]},
        "Input validation error: `tools[0]` must be of type 'function' and have a `function`, or of "
        "type 'custom' and have a `custom`. "
        "Given: 'function'",
        "validation",
    ),
]


@pytest.mark.parametrize(("members", "message", "error_type"), REFUSED)
async def test_tools_that_can_not_be_called_are_refused(
    members: dict[str, Any], message: str, error_type: str
) -> None:
    async with served() as server:
        replies: list[httpx.Response] = [
            await server.post(PATH, asking("x", **members)),
            await server.post(PATH, asking("x", stream=True, **members)),
            await server.post("/chat_tokenize", asking("x", **members)),
        ]
        counted = server.metric('tgi_request_failure{err="validation"}')
    assert {reply.status_code for reply in replies} == {422}
    assert all(error_of(reply) == {"error": message, "error_type": error_type} for reply in replies)
    assert counted == 3


async def test_a_tool_whose_schema_is_not_supported_is_refused_with_its_place() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    async with served() as server:
        response = await server.post(PATH, asking("x", tools=tools))
    assert response.status_code == 422, response.text
    assert "`tools['f'].function.parameters` at /properties/a/$ref" in response.json()["error"]


async def test_the_prompt_for_calls_can_be_chosen() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "tool_prompt": "Call one!"}
    async with served(fake=REPLIES) as server:
        text = (await server.post("/chat_tokenize", body)).json()["templated_text"]
        unused = {**body, "tool_choice": "none"}
        without = (await server.post("/chat_tokenize", unused)).json()["templated_text"]
    assert "Call one!" in text
    assert "Call one!" not in without


async def test_tools_need_grammars() -> None:
    async with served(disable_grammar_support=True) as server:
        response = await server.post(PATH, asking("x"))
        without = await server.post(PATH, asking("x", tool_choice="none"))
    assert response.status_code == 422
    assert "grammar is not supported" in response.json()["error"]
    assert without.status_code == 200


async def test_to_openais_clients_answers_begin_in_order_whichever_has_something_to_tell_first() -> None:
    headers = {"x-stainless-lang": "python"}
    body = asking("hi", tool_choice="required", n=8, seed=0, temperature=1, stream=True)
    async with served(fake={"step_seconds": 0.001}) as server:
        response = await server.http.post(PATH, json=body, headers=headers)
    *chunks, _ = events_of(response)
    begun = dict.fromkeys(chunk["choices"][0]["index"] for chunk in chunks)
    assert list(begun) == list(range(8))


@pytest.mark.parametrize(("mode", "reason"), [("required", "tool_calls"), ("auto", "stop")])
async def test_a_choice_among_some_tools_leaves_the_others_out(mode: str, reason: str) -> None:
    time = {"type": "function", "function": {"name": "get_time"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [time]}}
    async with served(fake=REPLIES) as server:
        answer = (await server.post(PATH, asking("chat", tool_choice=choice))).json()["choices"][0]
        shown = (await server.post("/chat_tokenize", asking("chat", tool_choice=choice))).json()
    assert answer["finish_reason"] == reason
    assert [call["function"]["name"] for call in answer["message"].get("tool_calls") or ()] == (
        ["get_time"] if mode == "required" else []
    )
    assert "get_time" in shown["templated_text"]
    assert "get_weather" not in shown["templated_text"]
