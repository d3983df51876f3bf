"""What a model thinks before it answers: told apart from the answer, left in it, or left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.serving import events_of, served
from tests.contract.thinking import PATH, answers, chat, thinking_engine

pytestmark = pytest.mark.anyio

THOUGHT, WORDS = "Is it?\n\nIt is.", "Yes. It is."
TAGGED = f"<think>\n{THOUGHT}\n</think>\n\n{WORDS}"
SAYS = {
    "think": TAGGED,
    "mistral": f"[THINK]{THOUGHT}[/THINK]{WORDS}",
    "harmony": f"<|channel|>analysis<|message|>{THOUGHT}<|end|>"
    f"<|start|>assistant<|channel|>final<|message|>{WORDS}",
}
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
BARE_CALL = '{"name": "now", "parameters": {}}'
NOW = {"type": "function", "function": {"name": "now"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("kind", SAYS)
async def test_a_thought_is_told_apart(kind: str) -> None:
    async with served(engine=thinking_engine(kind, SAYS[kind])) as server:
        (answer,) = await answers(server, chat(reasoning_format="parsed"))
    usage = answer.pop("usage")
    assert answer == {"content": WORDS, "reasoning_content": THOUGHT, "calls": [], "reason": "stop"}
    thought = usage["completion_tokens_details"]["reasoning_tokens"]
    assert len(THOUGHT) <= thought <= usage["completion_tokens"] - len(WORDS)


@pytest.mark.parametrize(("kind", "apart"), [("think", False), ("mistral", True), ("harmony", True)])
async def test_by_default_it_is_where_no_text_shows_its_end(kind: str, apart: bool) -> None:
    async with served(engine=thinking_engine(kind, SAYS[kind])) as server:
        (answer,) = await answers(server, chat())
    assert answer["content"] == (WORDS if apart else TAGGED)
    assert answer.get("reasoning_content") == (THOUGHT if apart else None)
    assert ("completion_tokens_details" in answer["usage"]) is apart


@pytest.mark.parametrize(
    ("setting", "asked", "content", "thought"),
    [
        ("parsed", None, WORDS, THOUGHT),
        ("parsed", "raw", TAGGED, None),
        ("parsed", "auto", TAGGED, None),
        ("hidden", None, WORDS, None),
        ("raw", "hidden", WORDS, None),
        ("hidden", "parsed", WORDS, THOUGHT),
    ],
)
async def test_the_servers_choice_is_the_default(
    setting: str, asked: str | None, content: str, thought: str | None
) -> None:
    async with served(engine=thinking_engine("think", TAGGED), reasoning_format=setting) as server:
        (answer,) = await answers(server, chat(reasoning_format=asked))
    assert (answer["content"], answer.get("reasoning_content")) == (content, thought)


async def test_the_member_may_have_its_other_name() -> None:
    other: dict[str, Any] = {"reasoning_format": "parsed", "reasoning_field": "reasoning"}
    async with served(engine=thinking_engine("think", TAGGED), **other) as server:
        told = await answers(server, chat(n=2))
    assert [(each["reasoning"], "reasoning_content" in each) for each in told] == [(THOUGHT, False)] * 2
    assert told[0]["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 2 * len(THOUGHT)


@pytest.mark.parametrize(("asked", "ignored"), [("parsed", True), ("hidden", True), ("raw", False)])
async def test_a_model_that_is_not_known_to_think_has_the_member_named(asked: str, ignored: bool) -> None:
    async with served(engine=thinking_engine(None, TAGGED)) as server:
        response = await server.post(PATH, chat(reasoning_format=asked))
        predictions = await server.post("/vertex", {"instances": [chat(reasoning_format=asked)]})
    assert response.json()["choices"][0]["message"]["content"] == TAGGED
    assert response.headers.get("x-ignored-parameters") == ("reasoning_format" if ignored else None)
    name = "instances[].reasoning_format" if ignored else None
    assert predictions.headers.get("x-ignored-parameters") == name


async def test_a_thought_that_the_prompt_opens_is_one() -> None:
    opened = chat(reasoning_format="parsed", chat_template_kwargs={"open_thought": True})
    async with served(engine=thinking_engine("think", f"{THOUGHT}</think>{WORDS}")) as server:
        (answer,) = await answers(server, opened)
        (cut,) = await answers(server, {**opened, "max_tokens": len(THOUGHT)})
    assert (answer["content"], answer["reasoning_content"]) == (WORDS, THOUGHT)
    assert (cut["content"], cut["reasoning_content"], cut["reason"]) == ("", THOUGHT, "length")


async def test_a_message_that_ends_as_the_mark_does_is_no_end_of_the_prompt() -> None:
    body = chat(reasoning_format="parsed")
    body["messages"][-1]["content"] = ">"
    async with served(engine=thinking_engine("hermes", f"{THOUGHT}</think>{WORDS}")) as server:
        (answer,) = await answers(server, body)
    assert (answer["content"], answer["reasoning_content"]) == (WORDS, THOUGHT)


async def test_a_mark_that_the_user_writes_opens_no_thought() -> None:
    body = chat(reasoning_format="parsed")
    body["messages"][-1]["content"] = "What is <think>"
    async with served(engine=thinking_engine("think", WORDS)) as server:
        (answer,) = await answers(server, body)
    assert (answer["content"], "reasoning_content" in answer) == (WORDS, False)


async def test_an_answer_may_be_begun_within_its_thought() -> None:
    begun = chat(reasoning_format="parsed")
    begun["messages"].append({"role": "assistant", "content": "<think>I"})
    async with served(engine=thinking_engine("think", "s it?</think>Yes")) as server:
        (within,) = await answers(server, begun)
        begun["messages"][-1] = {"role": "assistant", "content": "I say"}
        (behind,) = await answers(server, begun)
    assert (within["content"], within["reasoning_content"]) == ("Yes", "s it?")
    assert behind["content"] == "s it?</think>Yes"


async def test_stop_sequences_end_no_thought() -> None:
    body = chat(reasoning_format="parsed", stop=["is", "\n"])
    async with served(engine=thinking_engine("think", TAGGED)) as server:
        (answer,) = await answers(server, body)
        (raw,) = await answers(server, {**body, "reasoning_format": "raw"})
    assert (answer["content"], answer["reasoning_content"]) == ("Yes. It ", THOUGHT)
    assert raw["content"] == "<think>"


async def test_log_probabilities_are_those_of_the_words() -> None:
    body = chat(reasoning_format="parsed", logprobs=True)
    async with served(engine=thinking_engine("think", TAGGED)) as server:
        whole = (await server.post(PATH, body)).json()["choices"][0]
        *chunks, _ = events_of(await server.post(PATH, {**body, "stream": True}))
    told = [entry["token"] for entry in whole["logprobs"]["content"]]
    assert "".join(told).removesuffix("<|im_end|>") == WORDS
    parts = [part for chunk in chunks for part in chunk["choices"]]
    assert [entry["token"] for part in parts for entry in part["logprobs"]["content"]] == told


@pytest.mark.parametrize("opened", [False, True])
async def test_an_answer_that_has_a_form_is_thought_about_before(opened: bool) -> None:
    body = chat(
        reasoning_format="parsed", chat_template_kwargs={"open_thought": opened}, response_format=SCHEMA
    )
    says = f'{"" if opened else "<think>"}{THOUGHT}</think>"yes"'
    async with served(engine=thinking_engine("think", says)) as server:
        (answer,) = await answers(server, body)
    assert (answer["content"], answer["reasoning_content"]) == ('"yes"', THOUGHT)


@pytest.mark.parametrize("kind", SAYS)
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_thought_the_answer_has_its_form(kind: str, seed: int) -> None:
    body = chat(reasoning_format="parsed", response_format=SCHEMA, temperature=1, seed=seed, max_tokens=3000)
    async with served(engine=thinking_engine(kind, None)) as server:
        (answer,) = await answers(server, body)
    assert answer["reason"] == "length" or json.loads(answer["content"]) in ("yes", "no")


async def test_a_prediction_has_no_thoughts() -> None:
    instance = chat(reasoning_format="parsed")
    async with served(engine=thinking_engine("think", TAGGED)) as server:
        response = await server.post(
            "/vertex", {"instances": [instance, {**instance, "reasoning_format": "raw"}]}
        )
    assert response.json()["predictions"] == [WORDS, TAGGED]


async def test_a_response_has_an_item_for_what_was_thought() -> None:
    body = {"input": "Is it?", "temperature": 0}
    async with served(engine=thinking_engine("think", TAGGED), reasoning_format="parsed") as server:
        whole = (await server.post("/v1/responses", body)).json()
        events = events_of(await server.post("/v1/responses", {**body, "stream": True}))
    thought, message = whole["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    assert message["content"][0]["text"] == WORDS
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] >= len(THOUGHT)
    deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == THOUGHT
    kinds = [event["type"] for event in events if not event["type"].endswith(".delta")]
    assert kinds[2:6] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.done",
        "response.content_part.done",
    ]
    last = events[-1]["response"]["output"]
    assert [{**item, "id": ""} for item in last] == [{**item, "id": ""} for item in whole["output"]]


@pytest.mark.parametrize(
    ("setting", "words", "thought"),
    [("auto", WORDS, THOUGHT), ("hidden", WORDS, None), ("raw", TAGGED, None)],
)
async def test_responses_and_messages_have_a_place_for_thoughts_unless_told_otherwise(
    setting: str, words: str, thought: str | None
) -> None:
    asked = {"max_tokens": 400, "messages": [{"role": "user", "content": "Is it?"}], "temperature": 0}
    async with served(engine=thinking_engine("think", TAGGED), reasoning_format=setting) as server:
        response = (await server.post("/v1/responses", {"input": "Is it?", "temperature": 0})).json()
        message = (await server.post("/v1/messages", asked)).json()
    *before, last = response["output"]
    assert last["content"][0]["text"] == words
    assert [item["content"][0]["text"] for item in before] == ([thought] if thought else [])
    *earlier, text = message["content"]
    assert text == {"type": "text", "text": words}
    expected = [{"type": "thinking", "thinking": thought, "signature": ""}]
    assert earlier == (expected if thought else [])


async def test_a_message_streams_what_is_thought_before_what_is_said() -> None:
    asked = {"max_tokens": 400, "messages": [{"role": "user", "content": "Is it?"}], "temperature": 0}
    async with served(engine=thinking_engine("think", TAGGED)) as server:
        events = events_of(await server.post("/v1/messages", {**asked, "stream": True}))
        told = {"role": "assistant", "content": (await server.post("/v1/messages", asked)).json()["content"]}
        again = [*asked["messages"], told, {"role": "user", "content": "Sure?"}]  # type: ignore[misc]
        counted = [
            (await server.post("/v1/messages/count_tokens", {"messages": messages})).json()["input_tokens"]
            for messages in (again, [again[0], {**told, "content": told["content"][1:]}, again[2]])
        ]
    pieces = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(piece.get("thinking", "") for piece in pieces) == THOUGHT
    assert "".join(piece.get("text", "") for piece in pieces) == WORDS
    kinds = list(dict.fromkeys(piece["type"] for piece in pieces))
    assert kinds == ["thinking_delta", "signature_delta", "text_delta"]
    assert counted[0] - counted[1] == len(f"<think>{THOUGHT}</think>")


async def test_thoughts_that_come_back_are_shown_to_the_model() -> None:
    async with served(engine=thinking_engine("think", TAGGED), reasoning_format="parsed") as server:
        first = (await server.post("/v1/responses", {"input": "Is it?", "temperature": 0})).json()
        again = [
            {"role": "user", "content": "Is it?"},
            *first["output"],
            {"role": "user", "content": "Sure?"},
        ]
        counts = [
            (await server.post("/v1/responses/input_tokens", {"input": items})).json()["input_tokens"]
            for items in (again, [item for item in again if item.get("type") != "reasoning"])
        ]
        alone = await server.post("/v1/responses", {"input": [*again, first["output"][0]], "temperature": 0})
    assert counts[0] - counts[1] == len(f"<think>{THOUGHT}</think>")
    assert alone.headers["x-ignored-parameters"] == "input[].reasoning"
