"""Templates whose calls are literals: found by what they show, and what they show is read and allowed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.text.chat_template import ChatTemplate
from inference.tools.formats import with_tokens
from inference.tools.grammar import call_grammar
from inference.tools.history import fit
from inference.tools.known_formats import detect
from inference.tools.prompt import template_tools, with_tool_prompt
from inference.tools.types import Tool
from tests.unit.inference_tools.answers import calls_of, events, pieces_of, plain, whole
from tests.unit.inference_tools.grammars import accepts, compiled, use
from tests.unit.inference_tools.native_literals import LITERAL_FORMATS
from tests.unit.inference_tools.templates import needs_corpus, template

CHAT = """
{%- for tool in tools %}<tool>{{ tool.function | tojson }}</tool>{% endfor %}
{%- for message in messages %}
{{- '<' + message.role + '>' }}
{{- message.content or '' }}
{%- if message.tool_calls %}CALLS{% endif %}
{%- endfor %}"""
PYTHON = """
{%- for call in message.tool_calls %}
{{- call.function.name + '(' }}
{%- for name, value in call.function.arguments.items() %}
{{- name + '=' + value | VALUE }}{{ ', ' if not loop.last }}
{%- endfor %}){{ 'BETWEEN' if not loop.last }}
{%- endfor %}"""
GEMMA = """
{%- for call in message.tool_calls %}{{ 'BEFORE' + 'call:' + call.function.name }}{
{%- for name, value in call.function.arguments.items() %}
{{- name + ':' }}{{ 'QUOTE' + value + 'QUOTE' if value is string else value | tojson }}
{{- ',' if not loop.last }}
{%- endfor %}{{ '}BEHIND' }}
{%- endfor %}"""


def python_template(frame: tuple[str, str], between: str) -> str:
    calls = PYTHON.replace("VALUE", "tojson").replace("BETWEEN", between)
    return CHAT.replace("CALLS", f"{{{{ '{frame[0]}' }}}}{calls}{{{{ '{frame[1]}' }}}}")


def gemma_template(before: str, quote: str, behind: str) -> str:
    return CHAT.replace(
        "CALLS", GEMMA.replace("BEFORE", before).replace("QUOTE", quote).replace("BEHIND", behind)
    )


OWN = {
    "pythonic": python_template(("[", "]"), ", "),
    "lfm2": python_template(("<|tool_call_start|>[", "]<|tool_call_end|>"), ", "),
    "olmo": python_template(("<function_calls>", "</function_calls>"), "\\n"),
    "gemma": gemma_template("<|tool_call>", '<|"|>', "<tool_call|>"),
    "gemma_escape": gemma_template("<start_function_call>", "<escape>", "<end_function_call>"),
}
PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path"],
}
WRITE, STAT = (Tool(name=name, description="Do", parameters=PARAMETERS) for name in ("write_file", "stat"))
ASKED = {"role": "user", "content": "Write it."}
MADE = [("write_file", {"path": "a b", "lines": 2}), ("stat", {"path": "."})]
SPECIAL = {"<|tool_call_start|>": 1, "<|tool_call_end|>": 2, "<|tool_call>": 3, "<tool_call|>": 4}


def turn(made: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    calls = [
        {"id": f"call-{at}", "type": "function", "function": {"name": name, "arguments": given}}
        for at, (name, given) in enumerate(made)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "Done."} for call in calls]
    return [ASKED, {"role": "assistant", "content": None, "tool_calls": calls}, *results]


@pytest.mark.parametrize("name", LITERAL_FORMATS)
def test_a_template_reveals_its_format_and_what_it_writes_is_read_and_allowed(name: str) -> None:
    chat = ChatTemplate({"default": OWN[name]}, {})
    habits = chat.habits(has_tools=True)
    fmt = detect(habits.sample)
    assert fmt.name == name
    assert habits.shows_calls
    shown = chat.render(fit(turn(MADE), habits, fmt), tools=template_tools([WRITE, STAT], habits))
    calls = shown.partition("<assistant>")[2].partition("<tool>")[0]
    assert accepts(compiled(call_grammar(plain(name), use(WRITE, STAT))), [calls])
    for size in range(1, 12):
        parts = whole(plain(name), use(WRITE, STAT), events(pieces_of([calls], [size])))
        assert [(call.name, json.loads(call.arguments)) for call in calls_of(parts)] == MADE


@pytest.mark.parametrize("name", LITERAL_FORMATS)
def test_a_template_that_shows_tools_needs_no_prompt_of_ours(name: str) -> None:
    chat = ChatTemplate({"default": OWN[name]}, {})
    fmt = with_tokens(detect(chat.habits(has_tools=True).sample), SPECIAL)
    assert with_tool_prompt([ASKED], use(WRITE), None, fmt, shown=True) == [ASKED]
    told = with_tool_prompt([ASKED], use(WRITE), None, fmt, shown=False)
    assert "function_name" in told[-1]["content"]
    assert fmt.closing[0].text in told[-1]["content"]


@needs_corpus
@pytest.mark.parametrize(
    ("part", "call"),
    [
        (
            "LFM2.5-8B",
            "<|tool_call_start|>[write_file(path='a b', lines=2), stat(path='.')]<|tool_call_end|>",
        ),
        (
            "gemma-4-31B-it-interleaved",
            '<|tool_call>call:write_file{lines:2,path:<|"|>a b<|"|>}<tool_call|>'
            '<|tool_call>call:stat{path:<|"|>.<|"|>}<tool_call|>',
        ),
    ],
)
def test_real_templates_show_calls_as_they_are_read(part: str, call: str) -> None:
    chat = template(part)
    habits = chat.habits(has_tools=True)
    fmt = detect(habits.sample)
    shown = chat.render(fit(turn(MADE), habits, fmt), tools=template_tools([WRITE, STAT], habits))
    assert call in shown
    assert shown.count("Done.") == 2
    parts = whole(plain(fmt.name), use(WRITE, STAT), events(pieces_of([call], [3])))
    assert [(each.name, json.loads(each.arguments)) for each in calls_of(parts)] == [*MADE]


@needs_corpus
@pytest.mark.parametrize("part", ["LFM2-8B-A1B", "LFM2.5-Instruct"])
def test_a_template_that_shows_no_calls_has_them_in_the_models_words(part: str) -> None:
    chat = template(part)
    habits = chat.habits(has_tools=True)
    shown = chat.render(fit(turn(MADE), habits, plain("lfm2")), tools=template_tools([WRITE, STAT], habits))
    assert '<|tool_call_start|>[write_file(path="a b", lines=2), stat(path=".")]<|tool_call_end|>' in shown


def test_a_call_of_an_earlier_turn_whose_arguments_are_no_object_is_told_in_words() -> None:
    chat = ChatTemplate({"default": OWN["lfm2"]}, {})
    habits = chat.habits(has_tools=True)
    messages = fit(turn([("stat", '{"path": "a')]), habits, detect(habits.sample))
    shown = chat.render(messages, tools=template_tools([STAT], habits))
    assert '<|tool_call_start|>[stat({"path": "a)]<|tool_call_end|>' in shown
    assert "The function stat returned:\nDone." in shown
