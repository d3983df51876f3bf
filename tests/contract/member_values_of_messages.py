"""The two values of each honoured member of Anthropic's Messages."""

from __future__ import annotations

from typing import Any

from tests.contract.member_bodies import (
    ABSENT,
    ADAPTERS,
    ANSWERED,
    BLUE,
    BLUE_SOURCE,
    CLIENT_TOOL,
    OTHER_CLIENT_TOOL,
    OTHER_SCHEMA,
    PICTURE,
    RED,
    RED_SOURCE,
    SCHEMA,
    SPEAKING,
)
from tests.contract.pair import Pair

DRAWN = {"temperature": 1, "seed": 1}
USED = {"type": "tool_use", "text": ABSENT, "id": "2", "name": "f", "input": {}}
BY_ASSISTANT = {"role": "assistant"}
WRITTEN = {
    "type": "document",
    "text": ABSENT,
    "source": {"type": "text", "media_type": "text/plain", "data": "It rains."},
}
ANY_TOOL = {"tools": [CLIENT_TOOL], "tool_choice": {"type": "any"}}
BY_URL = {"type": "url", "media_type": ABSENT, "data": ABSENT}


def formed(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "schema": schema}


SHOWN = {  # what a prompt is made of
    "messages": Pair([{"role": "user", "content": "Hello"}], [{"role": "user", "content": "Bye"}]),
    "system": Pair("Be short.", "Be brief, please."),
    "tools": Pair([CLIENT_TOOL], [OTHER_CLIENT_TOOL, CLIENT_TOOL]),
    "tool_choice": Pair({"type": "none"}, {"type": "any"}, {"tools": [CLIENT_TOOL]}),
    "tool_prompt": Pair("Call it.", "Use it.", {"tools": [CLIENT_TOOL]}),
    "chat_template_kwargs": Pair({"enable_thinking": True}, {"enable_thinking": False}),
    "thinking": Pair({"type": "adaptive"}, {"type": "disabled"}),
    "output_config": Pair({"effort": "low"}, {"effort": "high"}),
}
OF_A_RESULT = {
    "type": Pair("text", "image"),
    "text": Pair("Hello", "Bye"),
    "source": Pair(RED_SOURCE, BLUE_SOURCE, PICTURE),
    "title": Pair("On rain", "On weather", WRITTEN),
    "context": Pair("From 1999", "From a diary", WRITTEN),
}
PAIRS: dict[str, dict[str, Pair]] = {
    "MessagesRequest": {
        **SHOWN,
        "model": Pair(*ADAPTERS),
        "max_tokens": Pair(1, 2),
        "stop_sequences": Pair([], ["sunny"], prompt=SPEAKING),
        "temperature": Pair(0.5, 0.9, {"seed": 1}),
        "top_p": Pair(0.5, 0.6, DRAWN),
        "top_k": Pair(5, 6, DRAWN),
        "typical_p": Pair(0.5, 0.6, DRAWN),
        "min_p": Pair(0.1, 0.9, DRAWN),
        "repetition_penalty": Pair(1.1, 1.2, DRAWN),
        "frequency_penalty": Pair(0.5, 1.0, DRAWN),
        "presence_penalty": Pair(0.5, 1.0, DRAWN),
        "stream": Pair(False, True),
        "seed": Pair(1, 2, {"temperature": 1}),
        "min_tokens": Pair(0, 8, {"stop_sequences": ["It"]}, prompt=SPEAKING),
        "ignore_eos": Pair(False, True, prompt=SPEAKING),
        "logit_bias": Pair({"72": 100}, {"73": 100}),
        "cache_salt": Pair("a", "b"),
    },
    # All models have the same count; such a name is refused
    "MessageTokensRequest": {**SHOWN, "model": Pair("tgi", "m" * 1025)},
    "InputMessage": {"role": Pair("user", "system"), "content": Pair("Hello", "Bye")},
    "InputBlock": {
        **OF_A_RESULT,
        "id": Pair("2", "33", USED, around=BY_ASSISTANT),
        "name": Pair("f", "gg", USED, around=BY_ASSISTANT),
        "input": Pair({"a": 1}, {"a": 22}, USED, around=BY_ASSISTANT),
        "tool_use_id": Pair("0", "11", ANSWERED),
        "content": Pair("warm", "freezing", ANSWERED),
        "thinking": Pair("So.", "Well.", {"type": "thinking", "text": ABSENT}, around=BY_ASSISTANT),
    },
    "ResultBlock": OF_A_RESULT,
    "BlockSource": {
        "type": Pair("base64", "file"),
        "media_type": Pair("image/png", "application/pdf"),
        "data": Pair(RED_SOURCE["data"], BLUE_SOURCE["data"]),
        "url": Pair(RED, BLUE, BY_URL),
    },
    "SystemBlock": {"type": Pair("text", "image"), "text": Pair("Be short.", "Be brief, please.")},
    "ClientTool": {
        "type": Pair("custom", "bash_20250124"),
        "name": Pair("f", "hh"),
        "description": Pair("It does f.", "It does h, too.", request={"tool_choice": {"type": "auto"}}),
        "input_schema": Pair(SCHEMA, {**OTHER_SCHEMA, "description": "What it takes"}),
        "strict": Pair(False, True, {"input_schema": {**SCHEMA, "not": {"required": ["a"]}}}),
    },
    "ToolUseChoice": {
        "type": Pair("tool", "any"),
        "name": Pair("f", "g"),
        "disable_parallel_tool_use": Pair(
            False, True, {"type": "any", "name": ABSENT}, request={"tools": [CLIENT_TOOL], "min_tokens": 50}
        ),
    },
    "ThinkingConfig": {"type": Pair("enabled", "disabled")},
    "OutputConfig": {
        "effort": Pair("low", "high"),
        "format": Pair(formed(SCHEMA), formed(OTHER_SCHEMA)),
    },
    "OutputFormat": {"type": Pair("json_schema", "regex"), "schema": Pair(SCHEMA, OTHER_SCHEMA)},
}
# How many tokens an image is doesn't show what it shows
PAIRS_OF: dict[tuple[str, str], Pair] = {
    ("MessageTokensRequest", "source"): Pair(RED_SOURCE, {**RED_SOURCE, "data": "="}, PICTURE),
    ("MessageTokensRequest", "data"): Pair(RED_SOURCE["data"], "="),
    ("MessageTokensRequest", "url"): Pair(RED, "red.png", BY_URL),
}
