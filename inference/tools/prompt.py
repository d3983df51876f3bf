"""How tools are shown to a model: as its chat template wants them, or by TGI's prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inference.tools.formats import ToolFormat
from inference.tools.types import Tool, ToolUse

Message = dict[str, Any]

RULE = "\n---\n"  # stands before what is added to a message
# TGI's default, to the letter: prompts of its users are made on top of it
INSTRUCTION = (
    "Given the functions available, please respond with a JSON for a function call with its proper "
    "arguments that best answers the given prompt. Respond in the format {name: function name, "
    "parameters: dictionary of argument name and its value}.Do not use variables."
)
# Ours: TGI offered a function `no_tool` and asked again; here the first answer may be text
OTHERWISE = "If none of the functions helps, answer in plain text and without JSON."


def template_tools(tools: Sequence[Tool], *, describe: bool = False) -> list[Message]:
    """Return tools as chat templates read them, which is as transformers gives them.

    With `describe` each has a description, "" if it came without: some templates fail otherwise.
    """
    return [{"type": "function", "function": function_of(tool, describe)} for tool in tools]


def function_of(tool: Tool, describe: bool) -> Message:
    """Return what templates read of one tool."""
    described = tool.description is not None or describe
    description = {"description": tool.description or ""} if described else {}
    return {"name": tool.name, **description, "parameters": dict(tool.parameters)}


def with_tool_prompt(
    chat: Sequence[Mapping[str, Any]], use: ToolUse, given: str | None, fmt: ToolFormat, *, shown: bool
) -> list[Message]:
    """Return a chat whose last message tells how to call, and what, unless the template does it.

    `given` is the client's prompt for tools: it is added in any case. `shown` says that the
    template lists the tools itself. The message is the last one with content that isn't the
    assistant's, who may have to go on with its own.
    """
    changed = [dict(message) for message in chat]
    if fmt.native and not given:
        return changed
    prompt = given or instruction(required=use.required)
    listed = "" if shown else json.dumps(template_tools(use.tools), ensure_ascii=False) + "\n"
    addition = RULE + listed + prompt
    for message in reversed(changed):
        if message.get("role") != "assistant" and isinstance(message.get("content"), str):
            message["content"] += addition
            return changed
    return [*changed, {"role": "user", "content": addition}]


def instruction(*, required: bool) -> str:
    """Return the default prompt; where a call is a choice it says so."""
    return f"\n{INSTRUCTION}\n" if required else f"\n{INSTRUCTION} {OTHERWISE}\n"
