"""Tools of OpenAI's Responses that aren't functions, as a client sees them: what Codex CLI sends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.serving import events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

PATH, CHAT = "/v1/responses", "/v1/chat/completions"
RECORDED = Path(__file__).parent / "recorded"
PATCH = '*** Begin Patch\n*** Add File: a.py\n+say = "ä\\n"\n*** End Patch\n'
ROOM = 100_000  # tokens: Codex sends thousands


def call(name: str, **arguments: Any) -> str:
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


REPLIES = {
    "patch it": "I do.\n" + call("patch", input=PATCH),
    "end it": call("crm__end"),
    "note it": call("crm__note", input="So."),
    "find it": call("tool_search", query="time"),
    "What time is it?": call("exec_command", cmd="date"),
}
FAKE = {"replies": REPLIES}
CUSTOM: dict[str, Any] = {"type": "custom", "name": "patch", "description": "Edits files."}
GROUP = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [{"type": "function", "name": "end"}, {"type": "custom", "name": "note"}],
}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}
RUN = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def matching(expression: str) -> dict[str, Any]:
    """Return a custom tool whose input matches an expression."""
    return {**CUSTOM, "format": {"type": "grammar", "syntax": "regex", "definition": expression}}


def body(asked: str, *tools: Any, **more: Any) -> dict[str, Any]:
    return {"input": asked, "tools": list(tools), "temperature": 0, **more}


def told(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def ignored(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    named = response.headers.get("x-ignored-parameters")
    return named.split(",") if named else []


async def test_a_custom_tool_is_called_with_a_text_whole_and_streamed() -> None:
    async with served(fake=FAKE) as server:
        answer = told(await server.post(PATH, body("patch it", CUSTOM)))
        events = events_of(await server.post(PATH, body("patch it", CUSTOM, stream=True)))
    message, called = answer["output"]
    assert message["content"][0]["text"] == "I do."
    assert (called["type"], called["name"], called["status"]) == ("custom_tool_call", "patch", "completed")
    assert called["input"] == PATCH
    assert "namespace" not in called
    assert answer["tools"] == [{**CUSTOM, "format": {"type": "text"}}]
    deltas = [each["delta"] for each in events if each["type"] == "response.custom_tool_call_input.delta"]
    (done,) = [each for each in events if each["type"] == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done["input"] == PATCH
    assert len(deltas) > 5
    assert events[-1]["response"]["output"][1]["input"] == PATCH


async def test_a_custom_call_that_is_cut_has_what_there_was_of_its_input() -> None:
    async with served(fake={"replies": {"patch it": call("patch", input=PATCH)}}) as server:
        answer = told(await server.post(PATH, body("patch it", CUSTOM, max_output_tokens=25)))
    (called,) = answer["output"]
    assert (answer["status"], called["status"]) == ("incomplete", "incomplete")
    assert PATCH.startswith(called["input"])


@pytest.mark.parametrize(
    ("syntax", "definition", "pattern"),
    [
        ("regex", "^[ab]{3}c$", "[ab]{3}c"),
        ("lark", 'start: part+ "."\npart: "x" | "\\"" /[0-9]/', r'(x|"[0-9])+\.'),
    ],
)
async def test_an_input_follows_its_format(syntax: str, definition: str, pattern: str) -> None:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    tool, choice = {**CUSTOM, "format": form}, {"type": "custom", "name": "patch"}
    async with served() as server:
        for seed in range(3):
            asked = body("Hi", tool, tool_choice=choice, temperature=1, seed=seed, max_output_tokens=200)
            response = await server.post(PATH, asked)
            (called,) = told(response)["output"]
            if called["status"] == "completed":
                assert re.fullmatch(pattern, called["input"])
            assert ignored(response) == []
    assert response.json()["tools"] == [tool]
    assert response.json()["tool_choice"] == choice


async def test_a_format_that_no_input_can_be_held_to_is_named() -> None:
    nested = {"type": "grammar", "syntax": "lark", "definition": 'start: "(" start? ")"'}
    around = {"type": "grammar", "syntax": "regex", "definition": "a(?!b)"}
    group = {**GROUP, "tools": [{**CUSTOM, "format": around}]}
    async with served() as server:
        response = await server.post(PATH, body("Hi", {**CUSTOM, "format": nested}, group))
        wrong = await server.post(PATH, body("Hi", {**CUSTOM, "format": {**around, "definition": "a("}}))
        lacking = await server.post(PATH, body("Hi", {**CUSTOM, "format": {"type": "grammar"}}))
    assert ignored(response) == ["tools[].format", "tools[].tools[].format"]
    assert (wrong.status_code, lacking.status_code) == (422, 422)
    assert "`tools['patch'].format.definition`" in error_of(wrong)["error"]["message"]
    assert "`tools[0].format` is of type 'grammar' and has no `syntax`" in lacking.text


async def test_tools_of_a_group_are_called_by_the_groups_name_and_theirs() -> None:
    async with served(fake=FAKE) as server:
        ended = told(await server.post(PATH, body("end it", GROUP)))
        noted = told(await server.post(PATH, body("note it", GROUP)))
        same = [{"type": "function", "name": "crm__end", "description": "Customers."}]
        flat = told(await server.post(PATH, body("end it", *same)))
        alone = told(await server.post(PATH, body("end it", {**GROUP, "tools": GROUP["tools"][:1]})))
        choice = {"type": "custom", "name": "note"}
        chosen = told(await server.post(PATH, body("note it", GROUP, tool_choice=choice)))
    (end,), (note,) = ended["output"], noted["output"]
    assert (end["type"], end["namespace"], end["name"]) == ("function_call", "crm", "end")
    assert (note["type"], note["namespace"], note["name"]) == ("custom_tool_call", "crm", "note")
    assert flat["usage"]["input_tokens"] == alone["usage"]["input_tokens"]
    assert [item["name"] for item in chosen["output"]] == ["note"]


async def test_calls_and_results_go_back_as_those_of_functions() -> None:
    items: list[Any] = [
        {"role": "user", "content": "patch it"},
        {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": PATCH},
        {"type": "custom_tool_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "OK"}]},
        {"type": "function_call", "call_id": "2", "name": "end", "namespace": "crm", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "2", "output": "Ended"},
    ]
    flat = [
        items[0],
        {
            "type": "function_call",
            "call_id": "1",
            "name": "patch",
            "arguments": json.dumps({"input": PATCH}),
        },
        {**items[2], "type": "function_call_output"},
        {"type": "function_call", "call_id": "2", "name": "crm__end", "arguments": "{}"},
        items[4],
    ]
    async with served() as server:
        response = await server.post(PATH, {"input": items, "temperature": 0, "max_output_tokens": 5})
        other = told(await server.post(PATH, {"input": flat, "temperature": 0, "max_output_tokens": 5}))
    assert ignored(response) == []
    assert told(response)["usage"]["input_tokens"] == other["usage"]["input_tokens"]


async def test_a_search_by_the_client_finds_tools_that_can_be_called() -> None:
    found = {"type": "tool_search_output", "tools": [GROUP]}
    async with served(fake={"replies": {"crm__end": call("crm__end"), **REPLIES}}) as server:
        answer = told(await server.post(PATH, body("find it", SEARCH)))
        (search,) = answer["output"]
        events = events_of(await server.post(PATH, body("find it", SEARCH, stream=True)))
        items = [{"role": "user", "content": "Now?"}, search, {**found, "call_id": search["call_id"]}]
        again = await server.post(PATH, {**body("", SEARCH), "input": items})
        nothing = [*items[:2], {**items[2], "tools": []}]
        without = await server.post(PATH, {**body("", SEARCH), "input": nothing, "max_output_tokens": 5})
    assert (search["type"], search["execution"], search["arguments"]) == (
        *("tool_search_call", "client"),
        {"query": "time"},
    )
    kinds = [each["type"] for each in events if each["type"].startswith("response.output_item")]
    assert kinds == ["response.output_item.added", "response.output_item.done"]
    assert events[-1]["response"]["output"][0]["arguments"] == {"query": "time"}
    assert ignored(again) == []
    (called,) = told(again)["output"]
    assert (called["name"], called["namespace"]) == ("end", "crm")
    assert told(without)["usage"]["input_tokens"] < told(again)["usage"]["input_tokens"]


async def test_tools_that_the_input_adds_can_be_called_the_later_of_one_name() -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [CUSTOM]}
    items = [{**added, "tools": [{**RUN, "name": "patch"}, GROUP]}, {"role": "user", "content": "patch it"}]
    async with served(fake=FAKE) as server:
        answer = told(await server.post(PATH, {"input": [added, items[1]], "temperature": 0}))
        later = told(await server.post(PATH, {"input": [*items, added], "temperature": 0}))
    for each in (answer, later):
        assert [item["type"] for item in each["output"]] == ["message", "custom_tool_call"]
        assert each["tools"] == []


async def test_what_openai_runs_itself_is_left_out_and_named() -> None:
    tools = [RUN, {"type": "web_search"}, {"type": "tool_search"}, {"type": "mcp", "server_label": "x"}]
    items = [{"role": "user", "content": "Hi"}, {"type": "web_search_call", "id": "ws_1"}]
    allowed = {"type": "allowed_tools", "tools": [{"type": "function", "name": "run"}, {"type": "mcp"}]}
    async with served() as server:
        response = await server.post(PATH, {**body("", *tools, tool_choice=allowed), "input": items})
        plain = told(await server.post(PATH, body("Hi", RUN)))
        counted = await server.post(f"{PATH}/input_tokens", {"input": items, "tools": tools})
    names = ["tools[].mcp", "tools[].server_label", "tools[].tool_search", "tools[].web_search"]
    assert ignored(response) == ["input[].web_search_call", "tool_choice.tools[].mcp", *names]
    assert [tool["name"] for tool in told(response)["tools"]] == ["run"]
    assert told(response)["usage"]["input_tokens"] == plain["usage"]["input_tokens"]
    assert counted.json()["input_tokens"] == plain["usage"]["input_tokens"]
    assert ignored(counted) == ["input[].web_search_call", *names]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "this server runs no tools itself"),
        ({"tools": [RUN], "tool_choice": {"type": "web_search"}}, "`tool_choice.type` is 'web_search'"),
        ({"tools": [{"type": "functoin", "name": "f"}]}, "`tools[0].type` is 'functoin', and is one of"),
        ({"tools": [{**GROUP, "tools": [GROUP]}]}, "`tools[0].tools[0].type` is 'namespace'"),
        ({"tools": [{"type": "namespace", "name": "crm"}]}, "has no `tools`: add them"),
        ({"tools": [GROUP, {**RUN, "name": "crm__end"}]}, "`tools[1].name` is 'crm__end', as is that of"),
        ({"tools": [{**RUN, "format": {"type": "text"}}]}, "`tools[0].format` does not go with the type"),
        (
            {"tools": [GROUP, {**GROUP, "name": "x"}], "tool_choice": {"type": "custom", "name": "note"}},
            "say",
        ),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "which OpenAI alone can read"),
        ({"input": [{"type": "custom_tool_call", "call_id": "1", "name": "f"}]}, "has no `input`: add it"),
        ({"input": [{"type": "additional_tools"}]}, "`input[0]` is of type 'additional_tools' and has no"),
        ({"tools": [matching("cat)|(dog")]}, "`tools[0].format.definition` closes a group that it doesn't"),
        ({"tools": [matching("a" * 8187)]}, "`tools[0].format.definition` must have <= 8186 characters"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_what_to_do(members: Any, words: str) -> None:
    async with served() as server:
        response = await server.post(PATH, {"input": "Hi", **members})
    assert response.status_code == 422
    assert words in error_of(response)["error"]["message"]


async def test_there_are_128_tools_at_most_those_of_groups_counted() -> None:
    groups = [
        {"type": "namespace", "name": f"g{at}", "tools": [{**RUN, "name": f"f{each}"} for each in range(65)]}
        for at in range(2)
    ]
    async with served() as server:
        response = await server.post(PATH, body("Hi", *groups))
    assert response.status_code == 422
    assert "`tools` are more than 128 tools" in error_of(response)["error"]["message"]


async def test_a_grammar_that_is_long_once_it_is_written_out_is_shown_and_named() -> None:
    rules = "start: " + "b " * 12 + "\nb: " + "c " * 7 + "\nc: d d d d\nd: /[a][b][c][d][e][f][g][h][i]{n}/"
    lark = {"type": "grammar", "syntax": "lark", "definition": rules}
    async with served() as server:
        response = await server.post(PATH, body("Hi", {**CUSTOM, "format": lark}, max_output_tokens=5))
    assert ignored(response) == ["tools[].format"]


async def test_a_search_that_the_client_runs_is_called_where_it_is_chosen() -> None:
    async with served(fake=FAKE) as server:
        for choice in (
            {"type": "tool_search"},
            {"type": "allowed_tools", "tools": [{"type": "tool_search"}]},
        ):
            answer = told(await server.post(PATH, body("find it", SEARCH, RUN, tool_choice=choice)))
            assert [item["type"] for item in answer["output"]] == ["tool_search_call"]


async def test_who_adds_tools_is_named_unless_it_is_the_system() -> None:
    async with served() as server:
        for role, named in (("developer", []), ("user", ["input[].role"])):
            items = [
                {"type": "additional_tools", "role": role, "tools": [RUN]},
                {"role": "user", "content": "Hi"},
            ]
            response = await server.post(PATH, {"input": items, "max_output_tokens": 5})
            assert ignored(response) == named


async def test_what_one_agent_tells_another_is_said_by_the_user() -> None:
    parts = [
        {"type": "input_text", "text": "Task: "},
        {"type": "encrypted_content", "encrypted_content": "Go"},
    ]
    told_by_agent = {"type": "agent_message", "author": "/root", "recipient": "/root/a", "content": parts}
    async with served() as server:
        response = await server.post(PATH, {"input": [told_by_agent], "max_output_tokens": 5})
        plain = told(await server.post(PATH, {"input": "Task: Go", "max_output_tokens": 5}))
    assert ignored(response) == ["input[].author", "input[].recipient"]
    assert told(response)["usage"]["input_tokens"] == plain["usage"]["input_tokens"]


OF_CODEX = ["client_metadata", "include.reasoning.encrypted_content", "prompt_cache_key"]


async def test_codex_is_answered() -> None:
    asked = json.loads((RECORDED / "codex.json").read_text())
    async with served(fake=FAKE, max_total_tokens=ROOM) as server:
        response = await server.post(PATH, asked)
    hosted = ["tools[].external_web_access", "tools[].search_content_types", "tools[].web_search"]
    assert ignored(response) == [*OF_CODEX, "reasoning.effort", "text.verbosity", *hosted]
    answer = events_of(response)[-1]["response"]
    (called,) = answer["output"]
    assert (called["name"], called["arguments"]) == ("exec_command", '{"cmd":"date"}')
    assert [tool["type"] for tool in answer["tools"]] == [
        *("function", "custom", "namespace", "function", "tool_search")
    ]


async def test_codex_that_runs_code_is_answered() -> None:
    asked = json.loads((RECORDED / "codex_with_code.json").read_text())
    fake = {"replies": {"What time is it?": call("exec", input="text(await tools.clock__now())")}}
    async with served(fake=fake, max_total_tokens=ROOM) as server:
        response = await server.post(PATH, asked)
    assert ignored(response) == [*OF_CODEX, "reasoning.context", "reasoning.effort", "text.verbosity"]
    (called,) = events_of(response)[-1]["response"]["output"]
    assert (called["type"], called["namespace"], called["name"]) == ("custom_tool_call", "functions", "exec")
    assert called["input"] == "text(await tools.clock__now())"
