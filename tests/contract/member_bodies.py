"""The bodies that values of members are put into: every object is there that a member can be in."""

from __future__ import annotations

from typing import Any

ADAPTERS = ("first", "second")  # that the engine has

ABSENT = object()  # in place of a value: take the member away
SPEAKING = "What is the weather?"  # a prompt that is answered with REPLY
REPLY = "It is sunny. Bye"
RED, BLUE = (
    "data:image/png;base64,iVBORw0KGgoAcmVk",
    "data:image/png;base64,iVBORw0KGgoAYmx1ZQ==",
)  # as it seems

CALL = {"id": "0", "type": "function", "function": {"name": "f"}}
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "Hello"}], "tool_calls": [CALL]}
BEGUN = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
PARAMETERS = {"max_new_tokens": 8, "do_sample": False}
GENERATE = {"inputs": "Hello", "parameters": PARAMETERS}
OPENAI = {"temperature": 0, "max_tokens": 8}
CHAT = {"messages": [MESSAGE], "temperature": 0, "max_tokens": 80}  # enough for a call
ITEM = {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
FLAT_CALL = {"type": "function_call", "call_id": "0", "name": "f", "arguments": "{}"}
RESPONSES = {"input": [ITEM, FLAT_CALL], "temperature": 0, "max_output_tokens": 80}
SAID = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
USES: list[dict[str, Any]] = [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in ("0", "11")]
SPOKEN = [SAID, {"role": "assistant", "content": USES}]
BASES: dict[str, dict[str, Any]] = {  # by the body's schema
    "GenerateRequest": GENERATE,
    "CompatGenerateRequest": GENERATE,
    "TokenizeRequest": {"inputs": "Hello"},
    "ChatTokenizeRequest": {"messages": [MESSAGE]},
    "ChatRequest": {**CHAT, "stream_options": {}},
    "CompletionRequest": {"prompt": "Hello", **OPENAI, "stream_options": {}},
    "ResponsesRequest": RESPONSES,
    "InputTokensRequest": {"input": [ITEM, FLAT_CALL]},
    "MessagesRequest": {"messages": SPOKEN, "temperature": 0, "max_tokens": 80},
    "MessageTokensRequest": {"messages": SPOKEN},
    "VertexRequest": {"instances": [GENERATE, CHAT]},
    "KserveInferRequest": {
        "inputs": [{"name": "in", "shape": [1], "data": ["Hello"]}],
        "outputs": [{"name": "out"}],
        "parameters": PARAMETERS,
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
OTHER_SCHEMA = {"type": "object", "properties": {"b": {"enum": [1, 2]}}, "required": ["b"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "It does f."}}
OTHER_TOOL = {"type": "function", "function": {"name": "g", "description": "It does g."}}
TOOLS = {"tools": [TOOL], "tool_choice": "required"}
NAMED = {"type": "function", "function": {"name": "f"}}
AMONG = {"mode": "required", "tools": [NAMED]}
FORMAT = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
AS, BS = ({"syntax": "regex", "definition": f"{letter}+"} for letter in "ab")
CUSTOM = {"type": "custom", "function": ABSENT}
CUSTOM_TOOLS = {"tools": [{"type": "custom", "custom": {"name": name}} for name in "fg"]}
CALLED = {"name": "f", "input": "a"}
HOLDERS: dict[str, dict[str, Any]] = {  # by a step on the way: what stands there for the members in it
    "image_url": {"type": "image_url", "image_url": {"url": RED}, "text": ABSENT},
    "grammar": {"grammar": {"type": "json", "value": SCHEMA}},
    "response_format": {"response_format": FORMAT},
    "tools": TOOLS,
    "tool_choice": {"tools": [TOOL, OTHER_TOOL], "tool_choice": NAMED},
    "allowed_tools": {"type": "allowed_tools", "function": ABSENT, "allowed_tools": AMONG},
    "structured_outputs": {"structured_outputs": {}},
    "custom": {**CUSTOM, "custom": {"name": "f"}},
    **{f"{way}messages.tool_calls.custom": {**CUSTOM, "custom": CALLED} for way in ("", "instances.")},
    "format": {"format": {"type": "grammar", "grammar": AS}},
}
FLAT_TOOL = {"type": "function", "name": "f", "description": "It does f."}
OTHER_FLAT_TOOL = {"type": "function", "name": "g", "description": "It does g, too."}
FLAT_TOOLS = {"tools": [FLAT_TOOL], "tool_choice": "required"}
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
RESULT = {"type": "function_call_output", "call_id": "0", "role": ABSENT, "content": ABSENT}
EXPRESSION = {"type": "grammar", "syntax": "regex", "definition": "a+"}
FORMED = {"type": "custom", "format": EXPRESSION}
GROUP = {"type": "namespace", "name": "n", "tools": [FLAT_TOOL]}
ADDITIONAL = {"type": "additional_tools", "role": ABSENT, "content": ABSENT}
OF_INPUT: dict[str, dict[str, Any]] = {
    "tools": FLAT_TOOLS,
    "tools.tools": GROUP,
    "input.tools": {**ADDITIONAL, "tools": [FLAT_TOOL]},
    "input.tools.tools": GROUP,
    **{f"{way}.format": FORMED for way in ("tools", "tools.tools", "input.tools", "input.tools.tools")},
    "tool_choice": {"tools": [FLAT_TOOL, OTHER_FLAT_TOOL], "tool_choice": ALLOWED},
    "reasoning": {"reasoning": {}},
    "output": {**RESULT, "output": ITEM["content"]},
}
CLIENT_TOOL = {"name": "f", "description": "It does f."}
OTHER_CLIENT_TOOL = {"name": "g", "description": "It does g, too."}
RED_SOURCE = {"type": "base64", "media_type": "image/png", "data": RED.partition(",")[2]}
BLUE_SOURCE = {**RED_SOURCE, "data": BLUE.partition(",")[2]}
PICTURE = {"type": "image", "text": ABSENT}
ANSWERED = {"type": "tool_result", "tool_use_id": "0", "text": ABSENT}
OF_MESSAGES: dict[str, dict[str, Any]] = {
    "system": {"system": [{"type": "text", "text": "Be short."}]},
    "content": {**ANSWERED, "content": SAID["content"]},
    "source": {**PICTURE, "source": RED_SOURCE},
    "tools": {"tools": [CLIENT_TOOL], "tool_choice": {"type": "any"}},
    "tool_choice": {
        "tools": [CLIENT_TOOL, OTHER_CLIENT_TOOL],
        "tool_choice": {"type": "tool", "name": "f"},
    },
    "thinking": {"thinking": {"type": "enabled"}},
    "output_config": {"output_config": {}},
    "format": {"format": {"type": "json_schema", "schema": SCHEMA}},
}
HOLDERS_OF: dict[str, dict[str, dict[str, Any]]] = {  # of one body's schema, where it is another
    "ResponsesRequest": {
        **OF_INPUT,
        "text": {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    },
    "InputTokensRequest": OF_INPUT,
    "MessagesRequest": OF_MESSAGES,
    "MessageTokensRequest": OF_MESSAGES,
}
