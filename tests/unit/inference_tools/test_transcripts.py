"""Models of 2025 and 2026 by their real templates: calls as these write them, read and allowed again."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from inference.text.chat_template import ChatTemplate
from inference.tools.formats import ToolFormat, with_tokens
from inference.tools.formats import text_of as text_of_marks
from inference.tools.grammar import call_grammar
from inference.tools.history import fit
from inference.tools.known_formats import GENERIC, detect
from inference.tools.prompt import template_tools
from inference.tools.types import Tool, ToolUse
from tests.unit.inference_tools.answers import (
    FRAMES,
    TAGS,
    calls_of,
    events,
    pieces_of,
    split,
    text_of,
    whole,
)
from tests.unit.inference_tools.grammars import accepts, compiled
from tests.unit.inference_tools.native import JSON_FORMATS, TAGGED
from tests.unit.inference_tools.templates import needs_corpus, prompt, template, templates

PARAMETERS = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Where"},
        "text": {"type": "string", "description": "What"},
        "lines": {"type": "integer", "description": "How many"},
        "options": {
            "type": "object",
            "description": "How",
            "properties": {"tags": {"type": "array", "items": {"type": "string"}}},
        },
    },
    "required": ["path"],
}
WRITE = Tool(name="write_file", description="Write a file", parameters=PARAMETERS)
STAT = Tool(name="stat", description="Look", parameters=PARAMETERS)
USE = ToolUse(tools=(WRITE, STAT), required=False, parallel=True)
FULL = {
    "path": "/tmp/a b",
    "text": 'if x < 3:\n    print("</parameter>", \'{"a": 1}\')\n',
    "lines": 2,
    "options": {"tags": ["</arg_value>", "\n"]},
}
# Seed's and MiniCPM5's templates write an object as Python does, and MiniMax M3's in tags within tags
FLAT = ("seed", "minicpm", "minimax_m3")
PLAIN = {name: value for name, value in FULL.items() if name != "options"}
ASKED = {"role": "user", "content": "Write it."}


@cache
def native() -> dict[str, tuple[ChatTemplate, ToolFormat]]:
    """Return the templates that show calls in a format of their model's, with marks as the text they are."""
    found = {}
    for name, chat in templates().items():
        habits = chat.habits(has_tools=True)
        fmt = detect(habits.sample)
        if habits.shows_calls and fmt.name in (*JSON_FORMATS, *TAGGED):
            found[name] = (chat, fmt)
    return found


def called(*arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a message that calls, each time the other function."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call-{at}",
                "type": "function",
                "function": {"name": ("write_file", "stat")[at % 2], "arguments": each},
            }
            for at, each in enumerate(arguments)
        ],
    }


def shown_calls(chat: ChatTemplate, fmt: ToolFormat, *arguments: dict[str, Any]) -> str:
    """Return a template's text from the first call on."""
    habits = chat.habits(has_tools=True)
    results = [
        {"role": "tool", "tool_call_id": f"call-{at}", "content": "Done."} for at in range(len(arguments))
    ]
    messages = fit([ASKED, called(*arguments), *results], habits, fmt)
    tools = template_tools(USE.tools, habits)
    told = chat.render([ASKED], tools=tools)
    text = chat.render(messages, tools=tools)
    at = next(at for at in range(len(told)) if not text.startswith(told[: at + 1]) or at + 1 == len(told))
    return text[text.index(fmt.opening[0].text, at - len(fmt.opening[0].text)) :]


@needs_corpus
def test_what_a_template_writes_as_a_call_is_read_as_that_call_in_any_pieces() -> None:
    assert {fmt.name for _, fmt in native().values()} == {*JSON_FORMATS, *TAGGED} - {
        "granite",
        "phi",
        "apriel",
    }
    for name, (chat, plain) in native().items():
        single = chat.habits(has_tools=True).single_calls
        full = PLAIN if plain.name in FLAT else FULL
        arguments = [full] if single else [full, {"path": "."}]
        text = shown_calls(chat, plain, *arguments)
        expected = [("write_file", full), ("stat", {"path": "."})][: len(arguments)]
        for special in ({}, FRAMES | TAGS):
            fmt = with_tokens(plain, special)
            for size in (1, 7, len(text)):
                parts = whole(fmt, USE, events(pieces_of(split(fmt, text), [size])))
                found = [(call.name, json.loads(call.arguments)) for call in calls_of(parts)]
                assert found == expected, (name, size, text[:600])
                assert text_of(parts) == "", name


@needs_corpus
def test_the_grammar_allows_what_a_template_writes_as_a_call() -> None:
    for name, (chat, fmt) in native().items():
        text = shown_calls(chat, fmt, PLAIN if fmt.name in FLAT else FULL)
        end = text_of_marks(fmt.closing + fmt.ending)
        if end not in text:
            assert "R1-Distill-Llama" in name  # whose template forgets the frame's end
            continue
        at = text.index(end or "<|message_sep|>", text.rindex("lines")) + len(end)
        grammar = compiled(call_grammar(fmt, USE))
        assert accepts(grammar, [text[:at]]), (name, text[:at])
        assert accepts(grammar, ["I write it.\n", text[:at]]), name


# How such models answer, by hand: part of the template's name, the answer, its text and its calls
ANSWERS = [
    (
        "Qwen3-Coder",
        "I'll write it.\n\n<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n</parameter>\n"
        "<parameter=text>\nprint(1)\n\n</parameter>\n<parameter=lines>\n1\n</parameter>\n"
        "</function>\n</tool_call>",
        "I'll write it.",
        [("write_file", {"path": "a.py", "text": "print(1)\n", "lines": 1})],
    ),
    (
        "Qwen3.5-4B",
        "Two files, so <tool_call> twice.\n</think>\n\n<tool_call>\n<function=stat>\n<parameter=path>\na\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=stat>\n<parameter=path>\nb\n"
        "</parameter>\n"
        "</function>\n</tool_call>",
        "Two files, so <tool_call> twice.\n</think>",
        [("stat", {"path": "a"}), ("stat", {"path": "b"})],
    ),
    (
        "ByteDance-Seed-OSS",
        "<seed:tool_call>\n<function=stat>\n<parameter=path>a</parameter>\n</function>\n</seed:tool_call>",
        "",
        [("stat", {"path": "a"})],
    ),
    (
        "GLM-4.6",
        "\n<think></think>\nSure.\n<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>\n"
        '<arg_key>options</arg_key>\n<arg_value>{"tags": ["x"]}</arg_value>\n</tool_call>',
        "\n<think></think>\nSure.",
        [("write_file", {"path": "a", "options": {"tags": ["x"]}})],
    ),
    (
        "GLM-4.7",
        "Hm.</think><tool_call>stat<arg_key>path</arg_key><arg_value>null</arg_value></tool_call>",
        "Hm.</think>",
        [("stat", {"path": "null"})],
    ),
    (
        "MiniMax-M2",
        'Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name="stat">\n'
        '<parameter name="path">a</parameter>\n</invoke>\n'
        '<invoke name="stat">\n<parameter name="path">b</parameter>\n</invoke>\n</minimax:tool_call>',
        "Hm.\n</think>",
        [("stat", {"path": "a"}), ("stat", {"path": "b"})],
    ),
    (
        "deepseek-ai/DeepSeek-R1",
        "Hm.\n</think>\n\nI look.<｜tool▁calls▁begin｜>"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>stat\n```json\n"
        '{"path": "a"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>stat\n```json\n'
        '{"path": "b"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "Hm.\n</think>\n\nI look.",
        [("stat", {"path": "a"}), ("stat", {"path": "b"})],
    ),
    (
        "DeepSeek-V3.1",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>stat<｜tool▁sep｜>{"path": "a"}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [("stat", {"path": "a"})],
    ),
    (
        "moonshotai-Kimi-K2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.stat:0<|tool_call_argument_begin|>"
        '{"path": "a"}<|tool_call_end|><|tool_call_begin|>functions.stat:1<|tool_call_argument_begin|>'
        '{"path": "b"}<|tool_call_end|><|tool_calls_section_end|>',
        "",
        [("stat", {"path": "a"}), ("stat", {"path": "b"})],
    ),
    (
        "granite-3.3",
        '<|tool_call|>[{"name": "stat", "arguments": {"path": "a"}}, '
        '{"name": "stat", "arguments": {"path": "b"}}]',
        "",
        [("stat", {"path": "a"}), ("stat", {"path": "b"})],
    ),
    (
        "command-r7b",
        'I look.<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "stat", "parameters": '
        '{"path": "a"}},\n'
        '    {"tool_call_id": "1", "tool_name": "stat", "parameters": {"path": "b"}}\n]<|END_ACTION|>',
        "I look.",
        [("stat", {"path": "a"}), ("stat", {"path": "b"})],
    ),
]


@needs_corpus
@pytest.mark.parametrize(("part", "answer", "text", "calls"), ANSWERS, ids=[part for part, *_ in ANSWERS])
def test_answers_of_models_that_were_trained_for_their_templates(
    part: str, answer: str, text: str, calls: list[tuple[str, Any]]
) -> None:
    plain = detect(template(part).habits(has_tools=True).sample)
    thinking = "</think>" in answer and "<think>" not in answer
    tool_use = ToolUse(tools=USE.tools, required=False, parallel=True, thinking=thinking)
    for special in ({}, FRAMES):
        fmt = with_tokens(plain, special)
        for size in range(1, 12):
            parts = whole(fmt, tool_use, events(pieces_of(split(fmt, answer), [size])))
            assert [(call.name, json.loads(call.arguments)) for call in calls_of(parts)] == calls
            assert text_of(parts) == text
    assert accepts(compiled(call_grammar(plain, tool_use)), [answer])


@needs_corpus
def test_earlier_calls_and_results_are_shown_as_the_model_knows_them() -> None:
    result = {"role": "tool", "tool_call_id": "call-0", "content": "4 bytes"}
    for part, answer, _, _ in ANSWERS:
        chat = template(part)
        assert detect(chat.habits(has_tools=True).sample) != GENERIC
        shown = prompt(chat, [ASKED, called({"path": "a"}), result], WRITE)
        assert shown is not None
        assert "4 bytes" in shown
        assert "write_file" in shown.partition("Write it.")[2], part
        sign = answer[answer.index("<", answer.find("</think>") + 1) :].split(">")[0].rpartition("<")[2]
        assert sign in shown.partition("Write it.")[2], part


@needs_corpus
@pytest.mark.parametrize(
    "part", ["moonshotai-Kimi-K2.jinja", "moonshotai/Kimi-K2-Thinking", "Kimi-K2-Instruct"]
)
def test_calls_of_kimi_have_its_ids_and_so_have_their_results(part: str) -> None:
    result = {"role": "tool", "tool_call_id": "call-0", "content": "4 bytes"}
    turn = [ASKED, called({"path": "a"}), result]
    shown = prompt(template(part), [*turn, {"role": "assistant", "content": "Done."}, *turn], WRITE)
    assert shown is not None
    last = shown.rpartition("Write it.")[2]
    assert "functions.write_file:" in last
    if "Instruct" not in part:  # whose own counter transformers' sandbox refuses
        assert "## Return of functions.write_file:1" in last
