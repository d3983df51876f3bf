"""The formats whose arguments are literals: lists of calls of Python's, and Gemma's own."""

from __future__ import annotations

from inference.tools.formats import Literals, Marker, ToolFormat

LINE, NO_LINE = Marker("\n"), Marker("\n", optional=True, unwritten=True)
CALL_NAME, LIST, LIST_END = (Marker("("),), Marker("["), Marker("]")
PYTHONIC = ToolFormat(
    name="pythonic",
    opening=(Marker("<|python_start|>"), LIST),
    bare_opening=(LIST,),
    closing=(Marker(")"),),
    between=(Marker(", "),),
    ending=(LIST_END,),
    name_end=CALL_NAME,
    literals=Literals(),
    bare=True,
)
LFM2 = ToolFormat(
    name="lfm2",
    opening=(Marker("<|tool_call_start|>"), LIST),
    closing=(Marker(")"),),
    between=(Marker(", "),),
    ending=(LIST_END, Marker("<|tool_call_end|>")),
    name_end=CALL_NAME,
    literals=Literals(),
)
OLMO = ToolFormat(
    name="olmo",
    opening=(Marker("<function_calls>"), NO_LINE),
    closing=(Marker(")"),),
    between=(LINE,),
    ending=(NO_LINE, Marker("</function_calls>")),
    name_end=CALL_NAME,
    literals=Literals(words=("true", "false", "null")),
)
GEMMA_WORDS = ("true", "false", "null")
GEMMA_CALL, GEMMA_ESCAPE_CALL = Marker("<|tool_call>"), Marker("<start_function_call>")
GEMMA = ToolFormat(
    name="gemma",
    opening=(GEMMA_CALL, Marker("call:")),
    closing=(Marker("}"), Marker("<tool_call|>")),
    between=(GEMMA_CALL, Marker("call:")),
    name_end=(Marker("{"),),
    literals=Literals(between=",", setter=":", words=GEMMA_WORDS, quote=Marker('<|"|>')),
)
GEMMA_ESCAPE = ToolFormat(
    name="gemma_escape",
    opening=(GEMMA_ESCAPE_CALL, Marker("call:")),
    closing=(Marker("}"), Marker("<end_function_call>")),
    between=(GEMMA_ESCAPE_CALL, Marker("call:")),
    name_end=(Marker("{"),),
    literals=Literals(between=",", setter=":", words=GEMMA_WORDS, quote=Marker("<escape>")),
)
