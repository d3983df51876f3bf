"""Answers as models of 2025 and 2026 write them, by hand: an oracle for what the table of formats says."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

Made = tuple[str, str]  # a function's name, and its arguments as JSON


def objects(calls: Sequence[Made]) -> list[str]:
    return [
        f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {text}}}' for name, text in calls
    ]


def granite(calls: Sequence[Made]) -> str:
    return f"<|tool_call|>[{', '.join(objects(calls))}]"


def phi(calls: Sequence[Made]) -> str:
    return "".join(f"<|tool_call|>{made}<|/tool_call|>" for made in objects(calls))


def nemotron(calls: Sequence[Made]) -> str:
    return f"<TOOLCALL>[{', '.join(objects(calls))}]</TOOLCALL>"


def jamba(calls: Sequence[Made]) -> str:
    listed = ",\n    ".join(objects(calls))
    return f"<tool_calls>[\n    {listed}\n]</tool_calls>"


def minimax_m1(calls: Sequence[Made]) -> str:
    listed = "\n".join(objects(calls))
    return f"<tool_calls>\n{listed}\n</tool_calls>"


def functionary(calls: Sequence[Made]) -> str:
    return "".join(f"<function={name}>{text}</function>" for name, text in calls)


def command(calls: Sequence[Made]) -> str:
    listed = ",\n    ".join(
        f'{{"tool_call_id": "{at}", "tool_name": {json.dumps(name, ensure_ascii=False)}, '
        f'"parameters": {text}}}'
        for at, (name, text) in enumerate(calls)
    )
    return f"<|START_ACTION|>[\n    {listed}\n]<|END_ACTION|>"


def deepseek(calls: Sequence[Made]) -> str:
    listed = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{text}\n```<｜tool▁call▁end｜>"
        for name, text in calls
    )
    return f"<｜tool▁calls▁begin｜>{listed}<｜tool▁calls▁end｜>"


def deepseek_v31(calls: Sequence[Made]) -> str:
    listed = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{text}<｜tool▁call▁end｜>" for name, text in calls
    )
    return f"<｜tool▁calls▁begin｜>{listed}<｜tool▁calls▁end｜>"


def kimi(calls: Sequence[Made]) -> str:
    listed = "".join(
        f"<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{text}<|tool_call_end|>"
        for at, (name, text) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{listed}<|tool_calls_section_end|>"


def apertus(calls: Sequence[Made]) -> str:
    listed = ", ".join(f'{{"{name}": {text}}}' for name, text in calls)
    return f"<|tools_prefix|>[{listed}]<|tools_suffix|>"


def gigachat(calls: Sequence[Made]) -> str:
    return "".join(f"<|function_call|>{made}" for made in objects(calls))


JSON_FORMATS = {
    fmt.__name__: fmt
    for fmt in (
        *(granite, phi, nemotron, jamba, minimax_m1, functionary),
        *(command, deepseek, deepseek_v31, kimi, apertus, gigachat),
    )
}

TAGGED = {  # of each: one call by its name and arguments, one argument, and what joins and frames calls
    "qwen": (
        "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
        "<parameter={key}>\n{value}\n</parameter>\n",
        "\n",
        "{calls}",
    ),
    "seed": (
        "<seed:tool_call>\n<function={name}>\n{arguments}</function>\n</seed:tool_call>",
        "<parameter={key}>{value}</parameter>\n",
        "\n",
        "{calls}",
    ),
    "glm": (
        "<tool_call>{name}\n{arguments}</tool_call>",
        "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
        "\n",
        "{calls}",
    ),
    "glm_tight": (
        "<tool_call>{name}{arguments}</tool_call>",
        "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>",
        "",
        "{calls}",
    ),
    "hy3": (
        "<tool_call:opensource>{name}<tool_sep:opensource>\n{arguments}</tool_call:opensource>\n",
        "<arg_key:opensource>{key}</arg_key:opensource>\n"
        "<arg_value:opensource>{value}</arg_value:opensource>\n",
        "",
        "<tool_calls:opensource>\n{calls}</tool_calls:opensource>",
    ),
    "minimax": (
        '<invoke name="{name}">\n{arguments}</invoke>\n',
        '<parameter name="{key}">{value}</parameter>\n',
        "",
        "<minimax:tool_call>\n{calls}</minimax:tool_call>",
    ),
    "minicpm": (
        '<function name="{name}">{arguments}</function>',
        '<param name="{key}">{value}</param>',
        "\n",
        "{calls}",
    ),
    "minimax_m3": (
        ']<]minimax[>[<invoke name="{name}">{arguments}]<]minimax[>[</invoke>\n',
        "]<]minimax[>[<{key}>{value}]<]minimax[>[</{key}>",
        "",
        "]<]minimax[>[<tool_call>\n{calls}]<]minimax[>[</tool_call>",
    ),
    **{
        name: (
            '<｜DSML｜invoke name="{name}">\n{arguments}</｜DSML｜invoke>\n',
            '<｜DSML｜parameter name="{key}" string="{kind}">{value}</｜DSML｜parameter>\n',
            "",
            f"<｜DSML｜{frame}>\n{{calls}}</｜DSML｜{frame}>",
        )
        for name, frame in (("deepseek_v32", "function_calls"), ("deepseek_v4", "tool_calls"))
    },
}
WRAPPED = {"minicpm": re.compile(r"(?s:.*[<&\n].*)")}  # which texts stand in a CDATA section
TOLD = ("deepseek_v32", "deepseek_v4")  # of these, each value is told to be a text, or to be JSON


def tagged(
    name: str, calls: Sequence[tuple[str, Mapping[str, Any]]], texts: Container[str | tuple[str, str]] = ()
) -> str:
    """Return calls in tags; arguments of the names in `texts` are texts, which stand there as they are.

    A pair among them is the name of one function and of its argument.
    """
    call, argument, between, frame = TAGGED[name]

    def written(function: str, key: str, given: Any) -> str:
        is_text = given is not None and (key in texts or (function, key) in texts)
        value = given if is_text else json.dumps(given, ensure_ascii=False)
        if is_text and name in WRAPPED and WRAPPED[name].fullmatch(value):
            value = f"<![CDATA[{value}]]>"
        return argument.format(key=key, kind="true" if is_text else "false", value=value)

    made = (
        call.format(
            name=function,
            arguments="".join(written(function, key, each) for key, each in given.items()),
        )
        for function, given in calls
    )
    return frame.format(calls=between.join(made))


def end_of_text(form: str) -> str:
    """Return what ends a text in tags, and can't stand within it."""
    return ("]]>" if form in WRAPPED else "") + TAGGED[form][1].partition("{value}")[2]


def calls_in_tags(name: str, text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Find calls, with names and values of arguments as they stand there, by the first end of each value."""
    call, argument, _, _ = TAGGED[name]
    head, tail = (re.escape(part) for part in call.split("{arguments}"))
    heads = re.compile(head.replace(re.escape("{name}"), r'([^<>\n"]+)'))
    shape = re.escape(argument).replace(re.escape("{key}"), "(.*?)", 1).replace(re.escape("{value}"), "(.*?)")
    shape = shape.replace(re.escape("{key}"), r"\1")
    shape = shape.replace(re.escape("{kind}"), "(?:true|false)")
    if name in WRAPPED:
        shape = r"(<!\[CDATA\[.*?\]\]>|.*?)".join(shape.rsplit("(.*?)", 1))
    if name == "glm":  # some of these models leave lines out
        shape, tail = shape.removesuffix(r"\n".replace("n", "\n")) + "\n?", "\n?" + tail
    tail = "\n?" + tail if name in TOLD else tail  # as a template writes it behind no arguments
    arguments, tails = re.compile(shape, re.DOTALL), re.compile(tail)
    found, at = [], 0
    while (begun := heads.search(text, at)) is not None:
        at, given = begun.end(), []
        while (one := arguments.match(text, at)) is not None:
            given.append((one[1], one[2].removeprefix("<![CDATA[").removesuffix("]]>")))
            at = one.end()
        ended = tails.match(text, at)
        assert ended is not None, text[at:]
        at = ended.end()
        found.append((begun[1], given))
    return found
