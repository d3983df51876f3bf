"""How tools are shown to a model: as its chat template wants them, or by TGI's prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inference.tools.formats import THOUGHT, ToolFormat
from inference.tools.habits import Habits
from inference.tools.history import is_result, written
from inference.tools.types import Tool, ToolUse

Message = dict[str, Any]

PLAIN = Habits()  # of a template that needs nothing but what there is
RULE = "\n---\n"  # stands before what is added to a message
# TGI's default, to the letter: prompts of its users are made on top of it
INSTRUCTION = (
    "Given the functions available, please respond with a JSON for a function call with its proper "
    "arguments that best answers the given prompt. Respond in the format {name: function name, "
    "parameters: dictionary of argument name and its value}.Do not use variables."
)
# Ours: TGI offered a function `no_tool` and asked again; here the first answer may be text
OTHERWISE = "If none of the functions helps, answer in plain text and without JSON."


def template_tools(tools: Sequence[Tool], habits: Habits = PLAIN) -> list[Message]:
    """Return tools as chat templates read them, which is as transformers gives them.

    What a template of these habits fails without is there, and says nothing.
    """
    return [{"type": "function", "function": function_of(tool, habits)} for tool in tools]


def function_of(tool: Tool, habits: Habits) -> Message:
    """Return what templates read of one tool."""
    described = tool.description is not None or habits.needs_description
    description = {"description": tool.description or ""} if described else {}
    return {"name": tool.name, **description, "parameters": parameters_of(tool, habits)}


def parameters_of(tool: Tool, habits: Habits) -> Message:
    """Return the schema of a tool's arguments, a copy."""
    parameters = dict(tool.shown)
    if habits.needs_properties:
        parameters.setdefault("properties", {})
    properties = parameters.get("properties")
    if habits.describes_parameters and isinstance(properties, Mapping):
        parameters["properties"] = {name: with_description(schema) for name, schema in properties.items()}
    return parameters


def with_description(schema: object) -> object:
    """Return the schema of a property with a description, "" if it came without."""
    if not isinstance(schema, Mapping) or schema.get("description") is not None:
        return schema
    return {**schema, "description": ""}


def with_tool_prompt(
    chat: Sequence[Mapping[str, Any]], use: ToolUse, given: str | None, fmt: ToolFormat, *, shown: bool
) -> list[Message]:
    """Return a chat whose user tells, at last, how to call, and what, unless the template does it.

    `given` is the client's prompt for tools: it is added in any case. `shown` says that the
    template lists the tools itself. The message is the last one with content that isn't the
    assistant's, who may have to go on with its own, nor a function's: what stands in a result
    is what the function said, and some templates show it as JSON.
    """
    changed = [dict(message) for message in chat]
    if fmt.native and shown and not given:
        return changed
    prompt = given or (native_instruction(fmt) if fmt.native else instruction(required=use.required))
    listed = "" if shown else json.dumps(template_tools(use.tools), ensure_ascii=False) + "\n"
    addition = RULE + listed + prompt
    for message in reversed(changed):
        is_theirs = message.get("role") == "assistant" or is_result(message)
        if not is_theirs and isinstance(message.get("content"), str):
            message["content"] += addition
            return changed
    return [*changed, {"role": "user", "content": addition}]


def instruction(*, required: bool) -> str:
    """Return the default prompt; where a call is a choice it says so."""
    return f"\n{INSTRUCTION}\n" if required else f"\n{INSTRUCTION} {OTHERWISE}\n"


def native_instruction(fmt: ToolFormat) -> str:
    """Return how to call in a model's own format, for a template that shows calls and no tools."""
    example = {"function": {"name": "function_name", "arguments": {"argument_name": "value"}}}
    return (
        "\nThese functions can be called. To call some of them, write their names and arguments in this "
        f"form, at the end of the answer:\n{written(fmt, [example])}\n"
    )


def leaves_thought_open(prompt: str) -> bool:
    """Return whether an answer to a prompt begins within a thought."""
    return prompt.rstrip().endswith(THOUGHT.text)
