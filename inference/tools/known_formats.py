"""The formats that models were trained for, a table, and which of them a model's chat template shows.

hermes        <tool_call>\\n{"name": "f", "arguments": {}}\\n</tool_call>, one below the other
qwen          <tool_call>\\n<function=f>\\n<parameter=a>\\n1\\n</parameter>\\n</function>\\n</tool_call>
seed          <seed:tool_call>\\n<function=f>\\n<parameter=a>1</parameter>\\n</function>\\n</seed:tool_call>
glm           <tool_call>f\\n<arg_key>a</arg_key>\\n<arg_value>1</arg_value>\\n</tool_call>
glm_tight     <tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>, one after the other
hy3           <tool_call:opensource>f<tool_sep:opensource>\\n..., arguments as of glm, all in a frame
minimax       <invoke name="f">\\n<parameter name="a">1</parameter>\\n</invoke>\\n, all in <minimax:tool_call>
minimax_m3    <invoke name="f"><a>1</a></invoke>\\n, with a token before each tag, all in <tool_call>
minicpm       <function name="f"><param name="a">1</param></function>, texts with tags in a CDATA section
llama3        {"name": "f", "parameters": {}}; {...}, after the token <|python_tag|> or without it
llama4        the same, after the token <|python_start|> or without it
mistral       [TOOL_CALLS][{"name": "f", "arguments": {}}, {...}]
mistral_args  [TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}
granite       <|tool_call|>[{"name": "f", "arguments": {}}, {...}]
phi           <|tool_call|>{"name": "f", "arguments": {}}<|/tool_call|>, one after the other
nemotron      <TOOLCALL>[{"name": "f", "arguments": {}}, {...}]</TOOLCALL>
apriel        <tool_calls>[{"name": "f", "arguments": {}}, {...}]</tool_calls>
jamba         <tool_calls>[\\n    {"name": "f", "arguments": {}},\\n    {...}\\n]</tool_calls>
pythonic      [f(a="x", b=1), g()], all of an answer
lfm2          [f(a="x", b=1), g()], between <|tool_call_start|> and <|tool_call_end|>
olmo          f(a="x", b=1)\\n..., one below the other in <function_calls>
gemma         <|tool_call>call:f{a:<|"|>x<|"|>,b:1}<tool_call|>, one after the other
gemma_escape  <start_function_call>call:f{a:<escape>x<escape>}<end_function_call>, one after the other
minimax_m1    <tool_calls>\\n{"name": "f", "arguments": {}}\\n{...}\\n</tool_calls>
functionary   <function=f>{}</function><function=g>{}</function>
apertus       <|tools_prefix|>[{"f": {}}, {"g": {}}]<|tools_suffix|>
gigachat      <|function_call|>{"name": "f", "arguments": {}}, one in an answer
command       [\\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {}}\\n], in <|START_ACTION|>
deepseek      <｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n```json\\n{}\\n```<｜tool▁call▁end｜>, in a frame
deepseek_v32  <｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>, in an invoke, in a frame
deepseek_v4   the same, in another frame
deepseek_v31  <｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>, in the same frame
kimi          <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>, in a frame
harmony       <|channel|>commentary to=functions.f <|constrain|>json<|message|>{}, one in an answer
generic       {"name": "f", "parameters": {}}, one below the other: what TGI's prompt asks for
"""

from __future__ import annotations

import re
from dataclasses import replace

from inference.tools.formats import Channels, Marker, ToolFormat
from inference.tools.literal_formats import GEMMA, GEMMA_ESCAPE, LFM2, OLMO, PYTHONIC
from inference.tools.tagged_formats import (
    CLOSE,
    DEEPSEEK_V4,
    DEEPSEEK_V32,
    GLM,
    GLM_TIGHT,
    HY3,
    LINE,
    MAY_LINE,
    MINICPM,
    MINIMAX,
    MINIMAX_M3,
    NO_LINE,
    OPEN,
    QWEN,
    SEED,
)

HERMES = ToolFormat(
    name="hermes", opening=(OPEN, LINE), closing=(LINE, CLOSE), between=(MAY_LINE, OPEN, LINE)
)

LLAMA3 = ToolFormat(
    name="llama3",
    opening=(Marker("<|python_tag|>"),),
    between=(Marker("; "),),
    arguments_key="parameters",
    bare=True,
)
LLAMA4 = replace(LLAMA3, name="llama4", opening=(Marker("<|python_start|>"),))
TOOL_CALLS = Marker("[TOOL_CALLS]")
MISTRAL = ToolFormat(
    name="mistral",
    opening=(TOOL_CALLS, Marker("[", spaced=True)),
    between=(Marker(", "),),
    ending=(Marker("]"),),
    trailing_id=True,
)
MISTRAL_ARGS = ToolFormat(
    name="mistral_args",
    opening=(TOOL_CALLS,),
    between=(TOOL_CALLS,),
    name_end=(Marker("[ARGS]"),),
    call_id=Marker("[CALL_ID]"),
)
TOOL_CALL = Marker("<|tool_call|>")
GRANITE = ToolFormat(
    name="granite",
    opening=(TOOL_CALL, Marker("[", spaced=True)),
    between=(Marker(", "),),
    ending=(Marker("]"),),
)
PHI = ToolFormat(name="phi", opening=(TOOL_CALL,), closing=(Marker("<|/tool_call|>"),), between=(TOOL_CALL,))
NEMOTRON = ToolFormat(
    name="nemotron",
    opening=(Marker("<TOOLCALL>"), Marker("[")),
    between=(Marker(", "),),
    ending=(Marker("]"), Marker("</TOOLCALL>")),
)
CALLS, CALLS_END = Marker("<tool_calls>"), Marker("</tool_calls>")
APRIEL = ToolFormat(
    name="apriel",
    opening=(CALLS, Marker("[")),
    between=(Marker(", "),),
    ending=(Marker("]"), CALLS_END),
)
JAMBA = ToolFormat(
    name="jamba",
    opening=(CALLS, Marker("[\n    ")),
    between=(Marker(",\n    "),),
    ending=(Marker("\n]"), CALLS_END),
)
MINIMAX_M1 = ToolFormat(name="minimax_m1", opening=(CALLS, LINE), between=(LINE,), ending=(LINE, CALLS_END))
FUNCTIONARY = ToolFormat(
    name="functionary",
    opening=(Marker("<function="),),
    closing=(Marker("</function>"),),
    between=(NO_LINE, Marker("<function=")),
    name_end=(Marker(">"),),
)
APERTUS = ToolFormat(
    name="apertus",
    opening=(Marker("<|tools_prefix|>"), Marker('[{"')),
    closing=(Marker("}"),),
    between=(Marker(', {"'),),
    ending=(Marker("]"), Marker("<|tools_suffix|>")),
    name_end=(Marker('": '),),
)
FUNCTION_CALL = Marker("<|function_call|>")
GIGACHAT = ToolFormat(name="gigachat", opening=(FUNCTION_CALL,), between=(FUNCTION_CALL,), single=True)
COMMAND = ToolFormat(
    name="command",
    opening=(Marker("<|START_ACTION|>"), Marker("[\n    ")),
    between=(Marker(",\n    "),),
    ending=(Marker("\n]"), Marker("<|END_ACTION|>")),
    name_key="tool_name",
    arguments_key="parameters",
    id_key="tool_call_id",
    id_form="[0-9]{1,2}",
)

FRAME, FRAME_END = Marker("<｜tool▁calls▁begin｜>"), Marker("<｜tool▁calls▁end｜>")
CALL, CALL_END, SEP = Marker("<｜tool▁call▁begin｜>"), Marker("<｜tool▁call▁end｜>"), Marker("<｜tool▁sep｜>")
DEEPSEEK = ToolFormat(
    name="deepseek",
    opening=(FRAME, CALL, Marker("function"), SEP),
    closing=(Marker("\n```"), CALL_END),
    between=(LINE, CALL, Marker("function"), SEP),
    ending=(FRAME_END,),
    name_end=(Marker("\n```json\n"),),
)
DEEPSEEK_V31 = ToolFormat(
    name="deepseek_v31",
    opening=(FRAME, CALL),
    closing=(CALL_END,),
    between=(CALL,),
    ending=(FRAME_END,),
    name_end=(SEP,),
)


KIMI_CALL = Marker("<|tool_call_begin|>")
KIMI = ToolFormat(
    name="kimi",
    opening=(Marker("<|tool_calls_section_begin|>"), KIMI_CALL, Marker("functions.")),
    closing=(Marker("<|tool_call_end|>"),),
    between=(KIMI_CALL, Marker("functions.")),
    ending=(Marker("<|tool_calls_section_end|>"),),
    name_end=(Marker("<|tool_call_argument_begin|>"),),
    call_id=Marker(":"),
    id_form="[0-9]{1,3}",
    needs_id=True,
)

GENERIC = ToolFormat(name="generic", between=(LINE,), arguments_key="parameters", bare=True, native=False)

HARMONY = ToolFormat(
    name="harmony",
    between=(),
    channels=Channels(
        start=Marker("<|start|>"),
        channel=Marker("<|channel|>"),
        message=Marker("<|message|>"),
        end=Marker("<|end|>"),
        kind=Marker("<|constrain|>"),
    ),
)
# What reveals each native format: in a call as the template writes it, or in what it tells of calls
SIGNS = {
    HERMES: r'<tool_call>\s*\{\s*"(name|arguments)"\s*:',
    QWEN: r"<tool_call>\n<function=[^<>]+>\n<parameter=[^<>]+>\n",
    SEED: r"<seed:tool_call>\n<function=[^<>]+>\n<parameter=[^<>]+>",
    GLM: r"<tool_call>[^<>\n]+\n<arg_key>[^<>]+</arg_key>\n<arg_value>",
    GLM_TIGHT: r"<tool_call>[^<>\n]+<arg_key>[^<>]+</arg_key><arg_value>",
    HY3: r"<tool_call:opensource>[^<>\n]+<tool_sep:opensource>\n<arg_key:opensource>",
    MINIMAX_M3: r'\]<\]minimax\[>\[<tool_call>\n\]<\]minimax\[>\[<invoke name="\w+">\]<\]minimax\[>\[<\w+>',
    MINIMAX: r'<minimax:tool_call>\n<invoke name="[^"]+">\n<parameter name="[^"]+">',
    MINICPM: r'<function name="[^"]+"><param name="[^"]+">',
    MISTRAL: r'\[TOOL_CALLS\]\s*\[\s*\{\s*"(id|name|arguments)"\s*:',
    MISTRAL_ARGS: r"\[TOOL_CALLS\][^\[\]{}]+(\[CALL_ID\]\w+)?\[ARGS\]\s*\{",
    GRANITE: r'<\|tool_call\|>(\[\s*\{\s*"name"\s*:| followed by a JSON list)',
    PHI: r'<\|tool_call\|>\{\s*"(name|arguments)"\s*:',
    NEMOTRON: r'<TOOLCALL>\[\{+"name"',
    JAMBA: r'<tool_calls>\[\n    \{"name"',
    APRIEL: r'<tool_calls>\[\s*\{"name"',
    MINIMAX_M1: r'<tool_calls>\n\{"name"',
    FUNCTIONARY: r"<function=\w+>\{",
    APERTUS: r'<\|tools_prefix\|>\[\{"\w+": \{',
    GIGACHAT: r'<\|function_call\|>\{"name"',
    COMMAND: r'<\|START_ACTION\|>\[\n    \{"tool_call_id": "\d+", "tool_name": ',
    DEEPSEEK: r"<｜tool▁call▁begin｜>function<｜tool▁sep｜>[^\n]+\n```json\n",
    DEEPSEEK_V31: r"<｜tool▁call▁begin｜>[^<\n]+<｜tool▁sep｜>(\{|tool_call_arguments)",
    DEEPSEEK_V32: r"<｜DSML｜function_calls>\n<｜DSML｜invoke",
    DEEPSEEK_V4: r"<｜DSML｜tool_calls>\n<｜DSML｜invoke",
    KIMI: r"<\|im_system\|>tool_declare<|<\|tool_call_begin\|>.+<\|tool_call_argument_begin\|>",
    HARMONY: r"to=functions\.[^<]+<\|channel\|>commentary",
    LFM2: r"<\|tool_call_start\|>\[\w+\(|List of tools: (<\|tool_list_start\|>)?\[\{",
    OLMO: r"<function_calls>\n?\w+\(",
    GEMMA: r'<\|tool_call>call:\w+\{\w+:<\|"\|>',
    GEMMA_ESCAPE: r"<start_function_call>call:\w+\{\w+:<escape>",
    PYTHONIC: r"""\[\w+\(\w+=("[^"]*"|'[^']*')\)\]""",
    LLAMA4: r'(<\|python_end\|>|<\|header_end\|>\n\n)\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"parameters"\s*:',
    LLAMA3: r'(\n|<\|python_tag\|>)\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"parameters"\s*:',
}
FORMATS = {fmt.name: fmt for fmt in (*SIGNS, GENERIC)}


def detect(sample: str) -> ToolFormat:
    """Return the format in which a template's text has its calls; the generic one if it is none of ours."""
    return next((fmt for fmt, sign in SIGNS.items() if re.search(sign, sample)), GENERIC)
