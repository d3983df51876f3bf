"""Conversations about tools: calling the right one, answering from its result, and leaving it alone when it does not fit."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from codegen.embedded.toolbox import FAMILIES, SLOTS, Family, invented_family
from codegen.embedded.turns import is_held_out, pick
from codegen.embedded.words import COLOURS, NOUNS, city, name

KIND = "tools"
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as one conversation offers it: its family, its name there, and what its slots are called there."""

    family: Family
    name: str
    names: dict[str, str]  # slot: parameter name
    schema: dict[str, Any]


def offer(rng: random.Random, held_out: bool) -> list[Tool]:
    """Draw one to three different tools; only the first may be new, since it is the one that the question is about."""
    tools = [_tool(rng, held_out)]
    for _ in range(pick(rng, (0, 0, 1, 1, 2))):
        other = _tool(rng, False)
        if all(other.name != tool.name and other.family.topic != tool.family.topic for tool in tools):
            tools.append(other)
    return tools


def call(rng: random.Random, tool: Tool) -> tuple[str, dict[str, Any]]:
    """Ask something that needs the tool: the question, and the call that answers it."""
    pattern = pick(rng, tool.family.questions)
    values = {slot: SLOTS[slot.rstrip("2")].value(rng) for slot in tool.family.slots}
    arguments = {tool.names[slot]: values[slot] for slot in tool.family.slots if "{" + slot + "}" in pattern}
    return pad_question(rng, pattern.format(**values)), {"name": tool.name, "arguments": arguments}


def pad_question(rng: random.Random, question: str) -> str:
    """Drop the closing mark or add politeness, leaving the case alone since arguments are copied from it."""
    roll = rng.random()
    if roll < 0.12:
        return question.rstrip(".?")
    return (
        "Please " + question[0].lower() + question[1:] if roll < 0.2 and question.endswith(".") else question
    )


def outcome(rng: random.Random) -> tuple[str, str]:
    """Draw what a tool may return, and the sentence that reports it."""
    roll = rng.random()
    if roll < 0.25:
        value = pick(
            rng,
            (
                str(rng.randint(0, 999)),
                city(rng),
                name(rng),
                pick(rng, NOUNS),
                pick(rng, COLOURS),
                f"{rng.randint(1, 40)} degrees",
            ),
        )
        return value, f"The result is {value}."
    keys = rng.sample(_RESULT_KEYS, pick(rng, (1, 1, 2, 2, 3)))
    found: dict[str, Any] = {key: _result_value(rng, key) for key in keys}
    parts = [f"the {key} is {value}" for key, value in found.items()]
    report = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return json.dumps(found, ensure_ascii=False), report[0].upper() + report[1:] + "."


def called(call_: dict[str, Any]) -> Message:
    """Write a call as the assistant message that holds it."""
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call_}]}


def written(call_: dict[str, Any]) -> str:
    """Write a call as the text that the model generates."""
    return f"<tool_call>\n{json.dumps(call_, ensure_ascii=False)}\n</tool_call>"


_RESULT_KEYS = """temperature weather price status time title city name count distance colour total answer result size level
message date humidity wind score owner room sky speed""".split()
_STATES = (
    "ok done sent sunny cloudy rainy open closed ready full empty warm cold booked started stopped".split()
)


def _result_value(rng: random.Random, key: str) -> str | int:
    if key in ("city",):
        return city(rng)
    if key in ("name", "owner"):
        return name(rng)
    if key == "colour":
        return pick(rng, COLOURS)
    if key in ("status", "weather", "message", "sky", "title", "room") or rng.random() < 0.1:
        return pick(rng, _STATES if rng.random() < 0.6 else NOUNS)
    return rng.randint(0, 999) if rng.random() < 0.5 else rng.randint(0, 40)


def _tool(rng: random.Random, held_out: bool) -> Tool:
    while True:
        family = pick(rng, FAMILIES) if rng.random() < 0.5 else invented_family(rng)
        tool_name = _styled(rng, pick(rng, family.names))
        if is_held_out(tool_name) == held_out:
            return _named(rng, family, tool_name)


def _styled(rng: random.Random, tool_name: str) -> str:
    """Write a snake-case name the way another author would."""
    parts = tool_name.split("_")
    roll = rng.random()
    if roll < 0.15:
        return parts[0] + "".join(part.capitalize() for part in parts[1:])
    if roll < 0.22:
        return "-".join(parts)
    if roll < 0.27:
        return "_".join((*parts, pick(rng, ("tool", "api", "now", "v2", "service"))))
    return "_".join((*parts[1:], parts[0])) if roll < 0.31 else tool_name


def _named(rng: random.Random, family: Family, tool_name: str) -> Tool:
    names: dict[str, str] = {}
    for slot in family.slots:
        options = [
            option
            for option in family.parameters.get(slot, SLOTS[slot.rstrip("2")].names)
            if option not in names.values()
        ]
        names[slot] = pick(rng, options)
    described = rng.random() < 0.6
    properties = {names[slot]: _property(rng, slot, names[slot], described) for slot in family.slots}
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    required = [
        names[slot]
        for slot in family.slots
        if all("{" + slot + "}" in question for question in family.questions)
    ]
    if rng.random() < 0.85:
        parameters["required"] = required
    function: dict[str, Any] = {"name": tool_name}
    if rng.random() < 0.92:
        function["description"] = pick(rng, family.descriptions)
    function["parameters"] = parameters
    return Tool(family, tool_name, names, {"type": "function", "function": function})


def _property(rng: random.Random, slot: str, parameter: str, described: bool) -> dict[str, Any]:
    kind = SLOTS[slot.rstrip("2")]
    written_as: dict[str, Any] = {"type": kind.type}
    if kind.enum and rng.random() < 0.6:
        written_as["enum"] = list(kind.enum)
    if described:
        written_as["description"] = pick(
            rng,
            (
                f"The {parameter}",
                f"The {parameter}.",
                f"The {slot.rstrip('2')}",
                kind.description,
                kind.description,
            ),
        )
    return written_as
