"""The embedded model decides by itself whether to call, and what it calls always fits the tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from inference.config import EngineConfig, ModelConfig
from inference.engine.engine import TorchCore
from inference.frontend.client import EngineClient
from inference.text.pipeline import load_text
from inference.tools.grammar import call_grammar
from inference.tools.parser import CallParser, joined
from inference.tools.types import Part, Tool, ToolUse
from inference.types import FinishReason, Request, Sampling
from tests.unit.inference_tools.answers import calls_of, text_of

WEATHER = Tool(
    name="get_weather",
    description="Get the weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
SHORT = {"type": "string", "maxLength": 8}
PLAN = Tool(
    name="plan trip",
    parameters={
        "type": "object",
        "properties": {
            "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}, "minItems": 1, "maxItems": 2},
            "by": {"enum": ["train", "bus"]},
        },
        "required": ["stops"],
        "$defs": {"stop": {"type": "object", "properties": {"city": SHORT, "days": {"type": "integer"}}}},
    },
)


class Chats:
    """The embedded model behind its client, on an event loop of its own."""

    def __init__(self) -> None:
        config = EngineConfig(model=ModelConfig(), threads=1)
        self.loop = asyncio.new_event_loop()
        self.client = EngineClient(TorchCore(config), config, lambda: load_text(ModelConfig()))
        self.loop.run_until_complete(self.client.start(lambda _: None))

    def close(self) -> None:
        self.loop.run_until_complete(self.client.close())
        self.loop.close()

    def ask(
        self, content: str, use: ToolUse, *samplings: Sampling
    ) -> list[tuple[tuple[Part, ...], FinishReason]]:
        """Return parts and end of an answer for each way of sampling, all generated side by side."""
        messages = [{"role": "user", "content": content}]

        async def side_by_side() -> list[tuple[tuple[Part, ...], FinishReason]]:
            return await asyncio.gather(*(self._ask(messages, use, sampling) for sampling in samplings))

        return self.loop.run_until_complete(side_by_side())

    async def _ask(
        self, messages: list[dict[str, Any]], use: ToolUse, sampling: Sampling
    ) -> tuple[tuple[Part, ...], FinishReason]:
        prompt = await self.client.render_chat(messages, tools=use)
        fmt = self.client.tool_format
        request = Request(
            id=f"{messages[-1]['content']} {sampling.seed}",
            prompt=prompt,
            add_special_tokens=False,
            max_new_tokens=160,
            grammar=call_grammar(fmt, use),
            sampling=sampling,
        )
        events = await (await self.client.submit(request)).collect()
        parser = CallParser(fmt, use)
        parts = [part for event in events for part in parser.push(event)]
        finish = events[-1].finish
        assert finish is not None
        return joined([*parts, *parser.finish()]), finish.reason


@pytest.fixture(scope="module")
def chats() -> Iterator[Chats]:
    chats = Chats()
    yield chats
    chats.close()


def use(*tools: Tool, required: bool = False) -> ToolUse:
    return ToolUse(tools=tools, required=required, parallel=True)


@pytest.mark.parametrize("city", ["Oslo", "Paris", "Rome"])
def test_a_question_for_the_tool_is_a_call(chats: Chats, city: str) -> None:
    [(parts, reason)] = chats.ask(f"What is the weather in {city}?", use(WEATHER), Sampling())
    (call,) = calls_of(parts)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": city})
    assert (text_of(parts), reason) == ("", FinishReason.EOS)


@pytest.mark.parametrize("content", ["Hello!", "What is the capital of France?"])
def test_any_other_question_is_answered_in_words(chats: Chats, content: str) -> None:
    [(parts, reason)] = chats.ask(content, use(WEATHER), Sampling())
    assert calls_of(parts) == []
    assert (bool(text_of(parts)), reason) == (True, FinishReason.EOS)


def test_random_calls_fit_their_tools(chats: Chats) -> None:
    schemas = {tool.name: tool.parameters for tool in (WEATHER, PLAN)}
    wild = [Sampling(sample=True, temperature=2.0, seed=seed) for seed in range(12)]
    answers = chats.ask("Plan something.", use(WEATHER, PLAN, required=True), *wild)
    for parts, reason in answers:
        calls = calls_of(parts)
        assert calls or reason is FinishReason.LENGTH
        assert text_of(parts) == ""
        for call in calls:
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    assert sum(reason is FinishReason.EOS for _, reason in answers) >= 3
