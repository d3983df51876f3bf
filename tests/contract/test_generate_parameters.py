"""Grammars, biases, lengths and marks of TGI's routes, as a client sees them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.contract.serving import Served, events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

REPLIES = {"replies": {"weather": " It is sunny. Bye"}}
INPUTS = "the weather"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def generated(server: Served, **parameters: Any) -> dict[str, Any]:
    response = await server.post("/generate", {"inputs": "x", "parameters": {**parameters, "details": True}})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_grammar_holds_for_the_whole_text_streamed_or_not() -> None:
    grammar = {"type": "regex", "value": r"[0-9]{2,4}-[a-c]+"}
    schema = {
        "type": "object",
        "properties": {"b": {"type": "integer"}, "a": {"enum": ["x"]}},
        "required": ["b"],
        "additionalProperties": False,
    }
    async with served() as server:
        text = (await generated(server, grammar=grammar))["generated_text"]
        body = {"inputs": "x", "parameters": {"grammar": grammar}}
        streamed = events_of(await server.post("/generate_stream", body))[-1]["generated_text"]
        forms = [
            {"type": "json", "value": schema},
            {"type": "json_object", "value": json.dumps(schema)},
            {"type": "json_schema", "value": {"name": "s", "schema": schema}},
        ]
        objects = [(await generated(server, grammar=form))["generated_text"] for form in forms]
    assert re.fullmatch(grammar["value"], text)
    assert streamed == text
    assert all(isinstance(json.loads(each)["b"], int) for each in objects)


async def test_a_text_that_is_cut_short_says_so() -> None:
    async with served() as server:
        answer = await generated(server, grammar={"type": "regex", "value": "[0-9]{50}"}, max_new_tokens=3)
    assert answer["details"]["finish_reason"] == "length"
    assert re.fullmatch("[0-9]+", answer["generated_text"])


async def test_every_candidate_of_best_of_follows_the_grammar_with_a_seed_of_its_own() -> None:
    grammar = {"type": "regex", "value": "[0-9]{3}"}
    async with served() as server:
        details = (await generated(server, grammar=grammar, best_of=2, do_sample=True))["details"]
        alone = await generated(server, grammar=grammar, do_sample=True, seed=details["seed"])
    (loser,) = details["best_of_sequences"]
    assert re.fullmatch("[0-9]{3}", loser["generated_text"])
    assert details["seed"] != loser["seed"]
    assert alone["details"]["tokens"] == details["tokens"]


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (
            {"type": "json", "value": 3},
            "grammar is not supported: `parameters.grammar.value` must be a JSON Schema, as an object or as "
            "a text that holds one. Given: 3",
        ),
        (
            {"type": "json", "value": "{"},
            "grammar is not valid: `parameters.grammar.value` holds no JSON: unexpected end of data: "
            "line 1 column 2 (char 1)",
        ),
    ],
)
async def test_a_wrong_grammar_is_refused_before_anything_is_generated(
    path: str, grammar: dict[str, Any], message: str
) -> None:
    async with served() as server:
        response = await server.post(
            path, {"inputs": "x", "parameters": {"grammar": grammar}, "stream": True}
        )
    assert response.status_code == 422
    assert error_of(response) == {"error": f"Input validation error: {message}", "error_type": "validation"}


@pytest.mark.parametrize("bad", [{"type": "json", "value": "{"}, {"type": "regex", "value": "("}])
@pytest.mark.parametrize("supported", [True, False])
async def test_of_several_faults_the_grammar_is_told_last_as_in_tgi(
    bad: dict[str, Any], supported: bool
) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1000}
    schema: dict[str, Any] = {"properties": {"a": {"not": {"type": "null"}}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    asked: list[tuple[str, dict[str, Any], str]] = [
        (path, {"inputs": inputs, "parameters": {"grammar": bad, **others}}, words)
        for path in ("/generate", "/generate_stream", "/")
        for inputs, others, words in (
            ("", {}, "`inputs` cannot be empty"),
            ("x", {"truncate": 0}, "`truncate` must be strictly positive"),
            ("x", {"max_new_tokens": 1000}, "`inputs` tokens + `max_new_tokens` must be <= 128"),
            ("x", {}, "grammar is not "),
        )
    ]
    asked += [
        ("/v1/chat/completions", {**chat, "response_format": bad}, "`inputs` tokens + `max_new_tokens` must"),
        (
            "/v1/chat/completions",
            {**chat, "tools": [tool]},
            "`inputs` tokens + `max_new_tokens` must be <= 128",
        ),
        ("/v1/chat/completions", {**chat, "max_tokens": 1, "response_format": bad}, "grammar is not "),
        ("/v1/chat/completions", {**chat, "max_tokens": 1, "tools": [tool]}, "grammar is not "),
    ]
    async with served(max_total_tokens=128, disable_grammar_support=not supported) as server:
        for path, body, words in asked:
            response = await server.post(path, body)
            assert response.status_code == 422, (path, body)
            assert response.json()["error"].startswith(f"Input validation error: {words}"), (path, body)


async def test_a_bad_expression_or_keyword_is_named() -> None:
    async with served() as server:
        expression = {"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": "("}}}
        schema = {"type": "object", "properties": {"a": {"type": "strin"}}}
        keyword = {"inputs": "x", "parameters": {"grammar": {"type": "json", "value": schema}}}
        refused = [await server.post("/generate", body) for body in (expression, keyword)]
    assert [response.status_code for response in refused] == [422, 422]
    assert "`parameters.grammar.value`" in refused[0].json()["error"]
    assert "/properties/a" in refused[1].json()["error"]


async def test_grammars_can_be_switched_off_at_start() -> None:
    body = {"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": "a"}}}
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with served(disable_grammar_support=True) as server:
        refused = [
            await server.post("/generate", body),
            await server.post("/v1/chat/completions", {**chat, "response_format": {"type": "json_object"}}),
            await server.post("/v1/chat/completions", {**chat, "tools": tools}),
        ]
        fine = await server.post("/v1/chat/completions", {**chat, "tools": tools, "tool_choice": "none"})
    errors = [response.json()["error"] for response in refused]
    assert all(error.startswith("Input validation error: grammar is not supported: ") for error in errors)
    assert fine.status_code == 200


async def test_a_bias_moves_the_choice_in_both_of_its_forms() -> None:
    async with served() as server:
        (token,) = (await server.post("/tokenize", {"inputs": "x", "add_special_tokens": False})).json()
        array = [0.0] * token["id"] + [100]
        texts = [
            (await generated(server, logit_bias=bias, max_new_tokens=3))["generated_text"]
            for bias in ({str(token["id"]): 100}, array)
        ]
    assert texts == ["xxx", "xxx"]


async def test_a_text_has_at_least_and_at_most_as_many_tokens_as_asked_for() -> None:
    async with served(fake=REPLIES, max_total_tokens=64) as server:
        body: dict[str, Any] = {"inputs": INPUTS, "parameters": {"details": True, "min_new_tokens": 30}}
        longer = (await server.post("/generate", body)).json()["details"]
        body["parameters"] = {"details": True, "ignore_eos": True, "max_new_tokens": 40}
        longest = (await server.post("/generate", body)).json()["details"]
    assert 30 <= longer["generated_tokens"] < 40
    assert (longest["generated_tokens"], longest["finish_reason"]) == (40, "length")


async def test_a_stop_sequence_does_not_end_a_text_before_its_shortest_length() -> None:
    async with served(fake=REPLIES) as server:
        parameters = {"details": True, "stop": ["sunny."], "min_new_tokens": 7}
        answer = (await server.post("/generate", {"inputs": INPUTS, "parameters": parameters})).json()
    assert answer["details"]["generated_tokens"] >= 7


async def test_min_p_turns_sampling_on() -> None:
    async with served() as server:
        assert (await generated(server, min_p=0.0))["details"]["seed"] is None
        assert (await generated(server, min_p=0.1))["details"]["seed"] is not None


async def test_the_watermark_is_as_the_settings_say() -> None:
    async def tokens(**settings: Any) -> list[Any]:
        async with served(**settings) as server:
            answer = await generated(server, watermark=True, max_new_tokens=8, min_new_tokens=8)
            drawn: list[Any] = answer["details"]["tokens"]
            return drawn

    async with served() as server:
        plain = (await generated(server, max_new_tokens=8, min_new_tokens=8))["details"]["tokens"]
    usual, again = await tokens(), await tokens(watermark_gamma=0.5, watermark_delta=2.0)
    fewer, stronger = await tokens(watermark_gamma=0.25), await tokens(watermark_delta=4.0)
    assert usual == again
    assert len({str(each) for each in (plain, usual, fewer, stronger)}) == 4
