"""The formats whose arguments stand between tags, one by one."""

from __future__ import annotations

from dataclasses import replace

from inference.tools.formats import Marker, Tags, ToolFormat

LINE = Marker("\n")
# Between calls: Step's models and Reka's write other families' notations without it
MAY_LINE = Marker("\n", optional=True)
NO_LINE = Marker("\n", optional=True, unwritten=True)


def tagged(before: str, middle: str, after: str, behind: str) -> Tags:
    """Return tags of texts that are no tokens of their own in any model; `behind`: what ends the arguments.

    An end that lacks a line break is none. A text would go on behind it, to the end of the answer, so it is
    made impossible once the next tag shows that it was meant; before that tag ends, as a model that can't
    write its name may yet write the end.
    """
    meant = [after.strip(), after.lstrip()]
    slips = tuple(end + tag for end in meant for tag in (before, behind) if after not in end)
    return Tags(before=(Marker(before),), middle=(Marker(middle),), after=(Marker(after),), slips=slips)


OPEN, CLOSE = Marker("<tool_call>"), Marker("</tool_call>")

FUNCTION, FUNCTION_END = Marker("\n<function="), Marker("</function>\n")
QWEN = ToolFormat(
    name="qwen",
    opening=(OPEN, FUNCTION),
    closing=(FUNCTION_END, CLOSE),
    between=(MAY_LINE, OPEN, FUNCTION),
    name_end=(Marker(">\n"),),
    tags=tagged("<parameter=", ">\n", "\n</parameter>\n", "</function"),
)
SEED_OPEN, SEED_CLOSE = Marker("<seed:tool_call>"), Marker("</seed:tool_call>")
SEED = ToolFormat(
    name="seed",
    opening=(SEED_OPEN, FUNCTION),
    closing=(FUNCTION_END, SEED_CLOSE),
    between=(MAY_LINE, SEED_OPEN, FUNCTION),
    name_end=(Marker(">\n"),),
    tags=tagged("<parameter=", ">", "</parameter>\n", "</function"),
)

KEY, KEY_END = Marker("<arg_key>"), Marker("</arg_key>")
VALUE, VALUE_END = Marker("<arg_value>"), Marker("</arg_value>")
GLM = ToolFormat(
    name="glm",
    opening=(OPEN,),
    closing=(CLOSE,),
    between=(MAY_LINE, OPEN),
    name_end=(LINE,),
    tags=Tags(before=(KEY,), middle=(KEY_END, LINE, VALUE), after=(VALUE_END,), line=True),
)
GLM_TIGHT = ToolFormat(
    name="glm_tight",
    opening=(OPEN,),
    closing=(CLOSE,),
    between=(NO_LINE, OPEN),
    name_end=(),
    tags=Tags(before=(KEY,), middle=(KEY_END, VALUE), after=(VALUE_END,)),
)


def hy3(tag: str) -> Marker:
    """Return a tag of Tencent's, each a token of its own."""
    return Marker(f"<{tag}:opensource>")


HY3 = ToolFormat(
    name="hy3",
    opening=(hy3("tool_calls"), LINE, hy3("tool_call")),
    closing=(hy3("/tool_call"), LINE),
    between=(hy3("tool_call"),),
    ending=(hy3("/tool_calls"),),
    name_end=(hy3("tool_sep"), LINE),
    tags=Tags(
        before=(hy3("arg_key"),),
        middle=(hy3("/arg_key"), LINE, hy3("arg_value")),
        after=(hy3("/arg_value"), LINE),
    ),
)
INVOKE = Marker('<invoke name="')
MINIMAX = ToolFormat(
    name="minimax",
    opening=(Marker("<minimax:tool_call>"), LINE, INVOKE),
    closing=(Marker("</invoke>\n"),),
    between=(INVOKE,),
    ending=(Marker("</minimax:tool_call>"),),
    name_end=(Marker('">\n'),),
    tags=tagged('<parameter name="', '">', "</parameter>\n", "</invoke"),
)
NAMESPACE = "]<]minimax[>["
MINIMAX_M3 = ToolFormat(
    name="minimax_m3",
    opening=(Marker(f"{NAMESPACE}<tool_call>"), LINE, Marker(f'{NAMESPACE}<invoke name="')),
    closing=(Marker(f"{NAMESPACE}</invoke>\n"),),
    between=(Marker(f'{NAMESPACE}<invoke name="'),),
    ending=(Marker(f"{NAMESPACE}</tool_call>"),),
    name_end=(Marker('">'),),
    tags=Tags(
        before=(Marker(f"{NAMESPACE}<"),),
        middle=(Marker(">"),),
        after=(Marker(f"{NAMESPACE}</"),),
        named=True,
    ),
    inner=(NAMESPACE,),
)
MINICPM = ToolFormat(
    name="minicpm",
    opening=(Marker('<function name="'),),
    closing=(Marker("</function>"),),
    between=(MAY_LINE, Marker('<function name="')),
    name_end=(Marker('">'),),
    tags=Tags(
        before=(Marker('<param name="'),),
        middle=(Marker('">'),),
        after=(Marker("</param>"),),
        wrap=("<![CDATA[", "]]>"),
        bare=r"[^<\x26\n]*",
    ),
    inner=("<function", "<param"),
)


def dsml(name: str, frame: str) -> ToolFormat:
    """Return DeepSeek's markup, all of whose tags have one token in them, by the name of the outermost."""
    tags = tagged('<｜DSML｜parameter name="', '" string="', "</｜DSML｜parameter>\n", "</｜DSML｜invoke")
    return ToolFormat(
        name=name,
        opening=(Marker(f"<｜DSML｜{frame}>"), LINE, Marker('<｜DSML｜invoke name="')),
        closing=(NO_LINE, Marker("</｜DSML｜invoke>\n")),
        between=(Marker('<｜DSML｜invoke name="'),),
        ending=(Marker(f"</｜DSML｜{frame}>"),),
        name_end=(Marker('">\n'),),
        tags=replace(tags, kinds=("true", "false"), kind_end=(Marker('">'),)),
        inner=("｜DSML｜",),
    )


DEEPSEEK_V32, DEEPSEEK_V4 = dsml("deepseek_v32", "function_calls"), dsml("deepseek_v4", "tool_calls")
