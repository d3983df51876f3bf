"""For each honoured member two values that differ in effect, and the bodies that they are put into."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tests.contract.member_bodies import (
    ABSENT,
    ADAPTERS,
    AS,
    BASES,
    BEGUN,
    BLUE,
    BS,
    CALL,
    CUSTOM,
    CUSTOM_TOOLS,
    FLAT_TOOL,
    FLAT_TOOLS,
    GENERATE,
    HOLDERS,
    HOLDERS_OF,
    MESSAGE,
    OTHER_FLAT_TOOL,
    OTHER_SCHEMA,
    OTHER_TOOL,
    PARAMETERS,
    RED,
    SCHEMA,
    SPEAKING,
    TOOL,
    TOOLS,
)
from tests.contract.member_values_of_forms import CHOSEN, GUIDED
from tests.contract.member_values_of_forms import PAIRS as PAIRS_OF_FORMS
from tests.contract.member_values_of_messages import PAIRS as PAIRS_OF_MESSAGES
from tests.contract.member_values_of_messages import PAIRS_OF as PAIRS_OF_COUNTS
from tests.contract.member_values_of_responses import PAIRS as PAIRS_OF_RESPONSES
from tests.contract.members import Place
from tests.contract.pair import Pair

# --- the values -------------------------------------------------------------------------------

SAMPLED = {"do_sample": True, "seed": 1}
DRAWN = {"temperature": 1, "seed": 1}
STREAMED = {"stream": True}
ROOM = {"max_tokens": 100}
SAMPLING = {
    "repetition_penalty": (1.1, 1.2),
    "frequency_penalty": (0.5, 1.0),
    "presence_penalty": (0.5, 1.0),
    "top_k": (5, 6),
    "top_p": (0.5, 0.6),
    "typical_p": (0.5, 0.6),
    "min_p": (0.1, 0.9),
}
BIAS = ({"72": 100}, {"73": 100})  # "H" and "I", as the tokens of bytes are numbered here
BOTH_OF_OPENAI = {
    "max_tokens": Pair(1, 2),
    "temperature": Pair(0.5, 0.9, {"seed": 1}),
    "seed": Pair(1, 2, {"temperature": 1}),
    "stop": Pair(None, "sunny", ROOM, prompt=SPEAKING),
    "min_tokens": Pair(0, 8, {**ROOM, "stop": "It"}, prompt=SPEAKING),
    "ignore_eos": Pair(False, True, ROOM, prompt=SPEAKING),
    "n": Pair(1, 2),
    "logit_bias": Pair(*BIAS),
    "cache_salt": Pair("a", "b"),
    "stream": Pair(False, True),
    "stream_options": Pair({}, {"include_usage": True}, STREAMED),
    **{name: Pair(*values, DRAWN) for name, values in SAMPLING.items()},
}
INPUTS_AND_PARAMETERS = {
    "inputs": Pair("Hello", "Bye"),
    "parameters": Pair({**PARAMETERS, "max_new_tokens": 1}, {**PARAMETERS, "max_new_tokens": 2}),
}
LOGPROBS = "message.output_text.logprobs"
SHOWN = {  # what a prompt is made of
    "messages": Pair([MESSAGE], [MESSAGE, MESSAGE]),
    "tools": Pair([TOOL], [OTHER_TOOL], {"tool_choice": "auto"}),
    "tool_choice": Pair("none", "required", {"tools": [TOOL]}),
    "tool_prompt": Pair("Call it.", "Use it.", {"tools": [TOOL]}),
    "chat_template_kwargs": Pair({"enable_thinking": True}, {"enable_thinking": False}),
    "continue_final_message": Pair(True, False, {"messages": BEGUN}),
    "reasoning_effort": Pair("low", "high"),
}
ASKED = {  # what a prompt of Responses is made of
    "input": Pair("Hello", "Bye"),
    "instructions": Pair("Be short.", "Be brief, please."),
    "tools": Pair([FLAT_TOOL], [OTHER_FLAT_TOOL, FLAT_TOOL], {"tool_choice": "auto"}),
    "tool_choice": Pair("none", "required", {"tools": [FLAT_TOOL]}),
    "tool_prompt": Pair("Call it.", "Use it.", {"tools": [FLAT_TOOL]}),
    "chat_template_kwargs": SHOWN["chat_template_kwargs"],
    "continue_final_message": Pair(
        True,
        False,
        {"input": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]},
    ),
    "reasoning": Pair({"effort": "low"}, {"effort": "high"}),
}
THOUGHT = {"chat_template_kwargs": {"open_thought": True}}
PAIRS: dict[str, dict[str, Pair]] = {  # by the schema of the object that has the member
    **PAIRS_OF_MESSAGES,
    **PAIRS_OF_FORMS,
    **PAIRS_OF_RESPONSES,
    "GenerateRequest": INPUTS_AND_PARAMETERS,
    "CompatGenerateRequest": {**INPUTS_AND_PARAMETERS, "stream": Pair(False, True)},
    "GenerateInstance": INPUTS_AND_PARAMETERS,
    "GenerateParameters": {
        "best_of": Pair(1, 2, {"temperature": 1.0, "details": True}),  # greedy, and yet allowed, as in TGI
        "temperature": Pair(0.5, 0.9, SAMPLED),
        **{name: Pair(*values, SAMPLED) for name, values in SAMPLING.items()},
        "do_sample": Pair(False, True, {"seed": 1}),
        "max_new_tokens": Pair(1, 2),
        "min_new_tokens": Pair(0, 8, {"max_new_tokens": 100, "stop": "It"}, prompt=SPEAKING),
        "ignore_eos": Pair(False, True, {"max_new_tokens": 100}, prompt=SPEAKING),
        "return_full_text": Pair(False, True),
        "stop": Pair([], ["sunny"], {"max_new_tokens": 100}, prompt=SPEAKING),
        "truncate": Pair(1, 3),
        "watermark": Pair(False, True),
        "details": Pair(False, True),
        "decoder_input_details": Pair(False, True),
        "seed": Pair(1, 2, {"do_sample": True}),
        "top_n_tokens": Pair(1, 2, {"details": True}),
        "grammar": Pair({"type": "regex", "value": "a+"}, {"type": "regex", "value": "b+"}),
        "logit_bias": Pair(*BIAS),
        "cache_salt": Pair("a", "b"),
        "adapter_id": Pair(*ADAPTERS),
    },
    "GrammarType": {
        "type": Pair("json", "json_schema", {"value": {**SCHEMA, "schema": OTHER_SCHEMA}}),
        "value": Pair(SCHEMA, OTHER_SCHEMA),
    },
    "TokenizeRequest": {"inputs": Pair("Hello", "Bye"), "add_special_tokens": Pair(True, False)},
    "ChatTokenizeRequest": SHOWN,
    "ChatRequest": {
        **BOTH_OF_OPENAI,
        **SHOWN,
        "model": Pair(*ADAPTERS),
        "max_completion_tokens": Pair(1, 2, {"max_tokens": ABSENT}),
        "logprobs": Pair(False, True),
        "top_logprobs": Pair(1, 2, {"logprobs": True}),
        "response_format": Pair({"type": "regex", "value": "a+"}, {"type": "regex", "value": "b+"}),
        **GUIDED,
        "parallel_tool_calls": Pair(True, False, {**TOOLS, "min_tokens": 50}),
        "reasoning_format": Pair("raw", "hidden", THOUGHT),
    },
    "Message": {
        "role": Pair("user", "system"),
        "content": Pair("Hello", "Bye"),
        "name": Pair("Ann", "Bob"),
        "tool_calls": Pair([CALL], [CALL, CALL]),
        "tool_call_id": Pair("0", "1"),
        "reasoning_content": Pair("So.", "Well."),
        "reasoning": Pair("So.", "Well."),
        "refusal": Pair("I can't.", "I won't."),
    },
    "MessageChunk": {
        "type": Pair("text", "image_url"),
        "text": Pair("Hello", "Bye"),
        "image_url": Pair({"url": RED}, {"url": BLUE}, {"type": "image_url", "text": ABSENT}),
        "refusal": Pair("I can't.", "I refuse to.", {"type": "refusal", "text": ABSENT}),
    },
    "Url": {"url": Pair(RED, BLUE)},
    "MessageToolCall": {
        "id": Pair("0", "1"),
        "type": Pair("function", "custom"),
        "function": Pair({"name": "f"}, {"name": "g"}),
        "custom": Pair({"name": "f", "input": "a"}, {"name": "g", "input": "b"}, CUSTOM),
    },
    "CalledCustomTool": {"name": Pair("f", "g"), "input": Pair("a", "bb")},
    "CalledFunction": {
        "name": Pair("f", "g"),
        "arguments": Pair({"a": 1}, {"a": 2}),
        "parameters": Pair({"a": 1}, {"a": 2}),
        "description": Pair("It does f.", "It does g."),
    },
    "StreamOptions": {
        "include_usage": Pair(False, True, request=STREAMED),
        "continuous_usage_stats": Pair(False, True, request=STREAMED),
    },
    "ResponseFormat": {
        "type": Pair("json_schema", "regex"),
        "value": Pair("a+", "b+", {"type": "regex", "json_schema": ABSENT}),
        "schema": Pair(SCHEMA, OTHER_SCHEMA, {"type": "json_object", "json_schema": ABSENT}),
        "json_schema": Pair({"schema": SCHEMA}, {"schema": OTHER_SCHEMA}),
    },
    "JsonSchemaConfig": {
        "schema": Pair(SCHEMA, OTHER_SCHEMA),
        "strict": Pair(False, True, {"schema": {**SCHEMA, "not": {"required": ["a"]}}}),
    },
    "Tool": {
        "type": Pair("function", "custom"),
        "function": Pair({"name": "f"}, {"name": "h"}),
        "custom": Pair({"name": "f"}, {"name": "h"}, CUSTOM),
    },
    "CustomToolDefinition": {
        "name": Pair("f", "hh"),
        "description": Pair("It does f.", "It does h, too.", request={"tool_choice": "auto"}),
        "format": Pair({"type": "grammar", "grammar": AS}, {"type": "grammar", "grammar": BS}),
    },
    "CustomToolFormat": {
        "type": Pair("grammar", "text"),
        "grammar": Pair(AS, BS),
    },
    "CustomToolGrammar": {
        "syntax": Pair("regex", "lark"),
        "definition": Pair("a+", "bbb+"),
    },
    "FunctionDefinition": {
        "name": Pair("f", "hh"),
        "description": Pair("It does f.", "It does h, too.", request={"tool_choice": "auto"}),
        "parameters": Pair(SCHEMA, OTHER_SCHEMA),
        "arguments": Pair(SCHEMA, OTHER_SCHEMA),
        "strict": Pair(False, True, {"parameters": {"not": {"required": ["a"]}}}),
    },
    "NamedToolChoice": {
        "type": Pair("function", "custom"),
        "function": Pair({"name": "f"}, {"name": "g"}),
        "custom": Pair({"name": "f"}, {"name": "g"}, CUSTOM, CUSTOM_TOOLS),
        **CHOSEN,
    },
    "CustomToolName": {"name": Pair("f", "g", request=CUSTOM_TOOLS)},
    "FunctionName": {"name": Pair("f", "g")},
    "CompletionRequest": {
        **BOTH_OF_OPENAI,
        **GUIDED,
        "prompt": Pair("Hello", ["Hello", "Bye"]),
        "best_of": Pair(1, 2, DRAWN),
        "echo": Pair(False, True),
        "logprobs": Pair(0, 1),
    },
    "ResponsesRequest": {
        **{
            name: BOTH_OF_OPENAI[name]
            for name in ("temperature", "seed", "logit_bias", "cache_salt", "stream")
        },
        **{name: Pair(*values, DRAWN) for name, values in SAMPLING.items()},
        **ASKED,
        "model": Pair(*ADAPTERS),
        "max_output_tokens": Pair(1, 2),
        "min_tokens": Pair(0, 8, {"stop": "It"}, prompt=SPEAKING),
        "stop": Pair(None, "sunny", prompt=SPEAKING),
        "ignore_eos": Pair(False, True, prompt=SPEAKING),
        "parallel_tool_calls": Pair(True, False, {**FLAT_TOOLS, "min_tokens": 50}),
        "text": Pair(
            {"format": {"type": "regex", "value": "a+"}}, {"format": {"type": "regex", "value": "b+"}}
        ),
        "include": Pair([], [LOGPROBS]),
        "top_logprobs": Pair(1, 2, {"include": [LOGPROBS]}),
        "metadata": Pair({"a": "b"}, {"a": "c"}),
    },
    "InputTokensRequest": ASKED,
    "VertexRequest": {"instances": Pair([GENERATE], [GENERATE, GENERATE])},
    "KserveInferRequest": {
        "id": Pair("a", "b"),
        "parameters": INPUTS_AND_PARAMETERS["parameters"],
        "inputs": Pair([{"data": ["Hello"]}], [{"data": ["Bye"]}]),
        "outputs": Pair([{"name": "a"}], [{"name": "b"}]),
    },
    "KserveInput": {
        "name": Pair("a", "b", request={"outputs": ABSENT}),
        "shape": Pair([1], [2]),
        "data": Pair(["Hello"], ["Bye"]),
    },
    "KserveOutput": {"name": Pair("a", "b")},
}
REFUSED_BEST_OF = Pair(1, 3, {"temperature": 1.0})  # more than the server allows
PAIRS_OF: dict[tuple[str, str], Pair] = {  # where the answer shows less: by the body's schema and the member
    **PAIRS_OF_COUNTS,
    ("VertexRequest", "best_of"): REFUSED_BEST_OF,
    ("KserveInferRequest", "best_of"): REFUSED_BEST_OF,
    # What an image shows isn't looked at there
    ("ChatTokenizeRequest", "image_url"): Pair(RED, "red.png", {"type": "image_url", "text": ABSENT}),
    ("ChatTokenizeRequest", "url"): Pair(RED, "red.png"),
    # And how many tokens it is doesn't show what it shows
    ("InputTokensRequest", "image_url"): Pair(RED, "red.png", {"type": "input_image", "text": ABSENT}),
}


def pair_of(place: Place) -> Pair:
    """Return the two values of an honoured member."""
    return PAIRS_OF.get((place.root, place.member)) or PAIRS[place.schema][place.member]


def body_of(place: Place, value: Any, pair: Pair | None = None) -> dict[str, Any]:
    """Return the body that has `value` at the place."""
    body: dict[str, Any] = copy.deepcopy(BASES[place.root])
    request: Any = body["instances"][place.steps[1]] if place.steps[:1] == ("instances",) else body
    holder: Any = body
    above: list[Any] = []  # what has it, from the body on
    holders, way = {**HOLDERS, **HOLDERS_OF.get(place.root, {})}, ""
    for step in place.steps:
        above.append(holder)
        if isinstance(step, str):
            way = f"{way}.{step}".removeprefix(".")
            if step not in holder:
                set_all(holder, holders.get(way) or holders[step])
        holder = holder[step]
    if pair is not None:
        set_all(request, pair.request)
        set_all(holder, pair.beside)
        if pair.around:
            set_all(above[-2], pair.around)
        if pair.prompt is not None:
            set_prompt(request, pair.prompt)
    set_all(holder, {place.member: value})
    return body


def set_all(holder: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set members, and take away those that are to be absent."""
    holder.update(copy.deepcopy({name: value for name, value in values.items() if value is not ABSENT}))
    for name in [name for name, value in values.items() if value is ABSENT]:
        holder.pop(name, None)


def set_prompt(request: dict[str, Any], prompt: str) -> None:
    """Ask something else, in whatever form it is asked."""
    if isinstance(request.get("input"), list):
        request["input"] = prompt
    elif "messages" in request:
        request["messages"] = [{"role": "user", "content": prompt}]
    elif "prompt" in request:
        request["prompt"] = prompt
    elif isinstance(request["inputs"], list):
        request["inputs"][0]["data"] = [prompt]
    else:
        request["inputs"] = prompt
