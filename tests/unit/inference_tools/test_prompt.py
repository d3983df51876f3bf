from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.tools.habits import Habits
from inference.tools.known_formats import FORMATS, GENERIC
from inference.tools.prompt import (
    INSTRUCTION,
    OTHERWISE,
    leaves_thought_open,
    template_tools,
    with_tool_prompt,
)
from inference.tools.types import Tool, ToolUse

SPECIFICATION = Path(__file__).parents[4] / "shared" / "reference" / "specs" / "tgi-3.3.6.openapi.json"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = Tool(name="get_weather", description="Get the weather", parameters=SCHEMA)
BARE = Tool(name="now")
USER = {"role": "user", "content": "Weather?"}
SHOWN = json.dumps(
    [
        {
            "type": "function",
            "function": {"name": "get_weather", "description": "Get the weather", "parameters": SCHEMA},
        }
    ]
)


def use(*, required: bool = False) -> ToolUse:
    return ToolUse(tools=(WEATHER,), required=required, parallel=True)


def added(chat: list[dict[str, Any]], given: str | None = None, **options: Any) -> list[dict[str, Any]]:
    tool_use = use(required=options.pop("required", True))
    fmt = options.pop("fmt", GENERIC)
    return with_tool_prompt(chat, tool_use, given, fmt, shown=options.pop("shown", False))


def test_tools_are_shown_to_templates_as_transformers_shows_them() -> None:
    (tool,) = template_tools([WEATHER])
    assert tool["function"]["parameters"] == SCHEMA
    assert template_tools([BARE]) == [
        {
            "type": "function",
            "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    assert template_tools([BARE], Habits(needs_description=True))[0]["function"]["description"] == ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "object"}, {"type": "object", "properties": {}}),
        (BARE.parameters, {"type": "object", "properties": {}}),
        (
            {"properties": {"city": {"enum": ["Rome"]}, "day": {"description": "When"}, "any": True}},
            {
                "properties": {
                    "city": {"enum": ["Rome"], "description": ""},
                    "day": {"description": "When"},
                    "any": True,
                }
            },
        ),
    ],
)
def test_a_template_that_fails_without_properties_or_their_descriptions_has_them(
    given: dict[str, object], expected: dict[str, object]
) -> None:
    tool, before = Tool(name="f", parameters=given), json.dumps(given)
    needy = Habits(describes_parameters=True, needs_properties=True)
    assert template_tools([tool], needy)[0]["function"]["parameters"] == expected
    assert json.dumps(tool.parameters) == before, "what the grammar reads stays as it is"
    assert template_tools([tool])[0]["function"]["parameters"] == given


def test_a_template_that_knows_no_tools_gets_tgis_prompt_in_the_last_message() -> None:
    before = {"role": "system", "content": "Be brief."}
    assert added([before, USER]) == [
        before,
        {"role": "user", "content": f"Weather?\n---\n{SHOWN}\n\n{INSTRUCTION}\n"},
    ]


@pytest.mark.skipif(not SPECIFICATION.exists(), reason=f"TGI's document is not at {SPECIFICATION}")
def test_the_instruction_is_tgis_to_the_letter() -> None:
    schemas = json.loads(SPECIFICATION.read_text())["components"]["schemas"]
    assert schemas["ChatRequest"]["properties"]["tool_prompt"]["example"] == INSTRUCTION


def test_where_a_call_is_a_choice_the_prompt_says_so() -> None:
    (message,) = added([USER], required=False)
    assert message["content"].endswith(f"\n{INSTRUCTION} {OTHERWISE}\n")
    assert OTHERWISE not in added([USER], required=True)[0]["content"]


def test_a_template_that_lists_tools_itself_gets_the_prompt_alone() -> None:
    (message,) = added([USER], shown=True)
    assert message["content"] == f"Weather?\n---\n\n{INSTRUCTION}\n"


@pytest.mark.parametrize("shown", [True, False])
def test_the_clients_prompt_takes_the_place_of_the_default(shown: bool) -> None:
    listed = "" if shown else f"{SHOWN}\n"
    assert added([USER], "Use them!", shown=shown)[0]["content"] == f"Weather?\n---\n{listed}Use them!"


def test_a_native_format_needs_no_prompt_but_the_clients() -> None:
    for given in (None, ""):
        assert added([USER], given, fmt=FORMATS["hermes"], shown=True) == [USER]
    (message,) = added([USER], "Use them!", fmt=FORMATS["hermes"], shown=True)
    assert message["content"] == "Weather?\n---\nUse them!"


def test_a_template_that_shows_calls_and_no_tools_gets_both_in_the_form_it_knows() -> None:
    (message,) = added([USER], fmt=FORMATS["deepseek_v31"])
    listed, _, form = message["content"].removeprefix("Weather?\n---\n").partition("\n")
    assert listed == SHOWN
    assert INSTRUCTION not in form
    assert form.rstrip().endswith(
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function_name<｜tool▁sep｜>{"argument_name": "value"}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )
    (tagged,) = added([USER], fmt=FORMATS["qwen"])
    assert "<function=function_name>\n<parameter=argument_name>\nvalue\n</parameter>\n" in tagged["content"]


def test_the_assistants_words_are_left_for_it_to_go_on_with() -> None:
    begun = {"role": "assistant", "content": "Well"}
    first, last = added([USER, begun], "!", shown=True)
    assert (first["content"], last) == ("Weather?\n---\n!", begun)
    assert USER["content"] == "Weather?", "what was given stays as it is"


def test_results_of_functions_stay_what_functions_said() -> None:
    calling: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    result = {"role": "tool", "content": "22", "tool_call_id": "0"}
    first, *rest = added([USER, calling, result], "!", shown=True)
    assert (first["content"], rest) == ("Weather?\n---\n!", [calling, result])


def test_a_chat_without_words_gets_a_message_for_the_prompt() -> None:
    calling: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    assert added([calling], "!", shown=True) == [calling, {"role": "user", "content": "\n---\n!"}]


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<think>", True),
        ("<think>\n\n</think>\n\n", False),
        ("What is <think>?<|im_start|>assistant\n", False),
    ],
)
def test_a_prompt_that_ends_with_the_beginning_of_a_thought_leaves_it_open(
    prompt: str, is_open: bool
) -> None:
    assert leaves_thought_open(prompt) == is_open
