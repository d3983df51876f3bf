"""Values of the honoured members of OpenAI's Responses: see `member_values.py`."""

from __future__ import annotations

from tests.contract.member_bodies import (
    ABSENT,
    ADDITIONAL,
    BLUE,
    EXPRESSION,
    FLAT_CALL,
    FLAT_TOOL,
    OTHER_FLAT_TOOL,
    OTHER_SCHEMA,
    RED,
    RESULT,
    SCHEMA,
)
from tests.contract.pair import Pair

LONGER_SCHEMA = {**OTHER_SCHEMA, "description": "What it takes"}
FORM, OTHER_FORM = {"type": "regex", "value": "a+"}, {"type": "regex", "value": "b+"}
CALLED = {**FLAT_CALL, "call_id": "1", "role": ABSENT, "content": ABSENT}
OF_TOOLS = {  # alone and in groups
    "name": Pair("f", "hh"),
    "description": Pair("It does f.", "It does h, too.", request={"tool_choice": "auto"}),
    "parameters": Pair(SCHEMA, LONGER_SCHEMA),
    "strict": Pair(False, True, {"parameters": {"not": {"required": ["a"]}}}),
    "format": Pair(EXPRESSION, {**EXPRESSION, "definition": "bbb+"}, {"type": "custom"}),
}
PAIRS: dict[str, dict[str, Pair]] = {
    "InputItem": {
        "type": Pair("message", "reasoning"),
        "role": Pair("user", "system"),
        "content": Pair("Hello", "Bye"),
        "call_id": Pair("1", "22", CALLED),
        "namespace": Pair("x", "yy", CALLED),
        "input": Pair("a", "bb", {**CALLED, "type": "custom_tool_call", "arguments": ABSENT}),
        "tools": Pair([FLAT_TOOL], [OTHER_FLAT_TOOL], ADDITIONAL),
        "execution": Pair("client", "server", {**CALLED, "type": "tool_search_call", "name": ABSENT}),
        "name": Pair("g", "hh", CALLED),
        "arguments": Pair('{"a": 1}', '{"a": 22}', CALLED),
        "output": Pair("warm", "freezing", RESULT),
    },
    "InputPart": {
        "type": Pair("input_text", "input_image"),
        "text": Pair("Hello", "Bye"),
        "image_url": Pair(RED, BLUE, {"type": "input_image", "text": ABSENT}),
        "refusal": Pair("I can't.", "I refuse to.", {"type": "refusal", "text": ABSENT}),
        "encrypted_content": Pair("Look.", "Look it up.", {"type": "encrypted_content", "text": ABSENT}),
    },
    "ResponsesText": {"format": Pair(FORM, OTHER_FORM)},
    "ResponsesFormat": {
        "type": Pair("json_schema", "json_object"),
        "schema": Pair(SCHEMA, OTHER_SCHEMA),
        "value": Pair("a+", "b+", {"type": "regex", "schema": ABSENT}),
        "strict": Pair(False, True, {"schema": {**SCHEMA, "not": {"required": ["a"]}}}),
    },
    "ResponsesTool": {
        **OF_TOOLS,
        "type": Pair("function", "web_search"),
        "tools": Pair([FLAT_TOOL], [OTHER_FLAT_TOOL], {"type": "namespace"}),
        "execution": Pair("client", "server", {"type": "tool_search", "name": ABSENT}),
    },
    "GroupedTool": {**OF_TOOLS, "type": Pair("function", "custom")},
    "CustomFormat": {
        "type": Pair("grammar", "text"),
        "syntax": Pair("regex", "lark"),
        "definition": Pair("a+", "bbb+"),
    },
    "ResponsesNamedChoice": {
        "type": Pair("allowed_tools", "file_search"),
        "name": Pair("f", "g", {"type": "function", "mode": ABSENT, "tools": ABSENT}),
        "mode": Pair("auto", "required"),
        "tools": Pair([{"type": "function", "name": "f"}], [{"type": "function", "name": "g"}]),
    },
    "AllowedTool": {"type": Pair("function", "mcp"), "name": Pair("f", "g")},
    "ResponsesReasoning": {"effort": Pair("low", "high")},
}
