"""The grammar of an answer that may call tools, in llguidance's dialect of Lark.

An answer is text, or text and then calls, or calls alone; what the model begins decides, in one
pass. From the first sign of a call on, only calls can be generated, and only with arguments that
the tool's parameters allow. The sign is the format's opening or, where calls are bare, a JSON
object with the name of a tool in its place, with which the answer begins: any other JSON is text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from inference.errors import Member, ToolRefused
from inference.grammar.fault import GrammarFault
from inference.grammar.keywords import has_keywords
from inference.grammar.loosening import loosened
from inference.grammar.meaning import as_meant
from inference.grammar.saying import PROPERTY_WORDS
from inference.grammar.schema import LIMITS, check_given, embedded_json
from inference.grammar_limits import GrammarLimits
from inference.tools.arguments import notation_of
from inference.tools.calls import BLANK, call_rules, head
from inference.tools.channel_rules import channel_rules
from inference.tools.formats import CALLS_LIMIT, THOUGHT, THOUGHT_END, ToolFormat, name_marks, text_of
from inference.tools.heads import json_string
from inference.tools.lark import ANY, id_ranges, in_regex, literal, symbols
from inference.tools.types import Tool, ToolUse, anywhere, shortened
from inference.types import Grammar, GrammarKind

MEMBER = "tools"
BLANKS = f"{BLANK}*"  # in what is text until the name of a tool makes it a call


def call_grammar(
    fmt: ToolFormat, use: ToolUse, limits: GrammarLimits = LIMITS, *, form: Grammar | None = None
) -> Grammar:
    """Return the grammar of an answer; raise ToolRefused or GrammarRefused for tools that can't be called.

    `limits` are of the parameters of each tool. What no grammar can express of them is left out of a tool
    that isn't `strict`, and named in the grammar's `left_out`. With a `form`, of a use that is `formed`, the
    answer is a text that follows it, or calls and nothing before them.
    """
    check_names(fmt, use.tools)
    if fmt.channels is not None:
        rules = [*channel_rules(fmt.channels, use, formed=form is not None)]
    else:
        rules = [*answer_rules(fmt, use, formed=form is not None), *call_rules(fmt, use.tools)]
    left_out: set[str] = set()
    notation, schemas = notation_of(fmt), []
    for tool in use.tools:
        schema, lost = arguments_schema(tool, limits)
        schemas.append(arguments_json(schema, limits, tool.member))
        more = notation.lost(tool, schemas[-1])
        if more and tool.strict:
            raise ToolRefused(
                tool.member,
                f" has `{min(more)}` around its properties, which can't be followed where a model "
                "writes arguments one by one, as this one: leave it out, or don't send `strict`",
            )
        left_out.update(f"{anywhere(tool.member.path)}.{keyword}" for keyword in {*lost, *more})
    rules += notation.rules(use.tools, schemas)
    members = [tool.member for tool in use.tools]
    if form is not None:
        text = form_json(form, limits)
        rules += [] if use.required else [f"// {len(members)}", f"form: %json {text}"]
        members.append(Member(form.member))
        left_out.update(
            (form.member,) if use.required else form.left_out
        )  # none of its text, or of its words
    source, named = "\n".join(rules) + "\n", tuple(sorted(left_out))
    return Grammar(kind=GrammarKind.LARK, source=source, member=MEMBER, parts=tuple(members), left_out=named)


# --- what is refused ------------------------------------------------------------------------


def check_strict(use: ToolUse, limits: GrammarLimits = LIMITS) -> None:
    """Raise ToolRefused or GrammarRefused for a tool that is `strict` and can't be called so."""
    for tool in use.tools:
        if tool.strict:
            arguments_json(arguments_schema(tool, limits)[0], limits, tool.member)


def check_names(fmt: ToolFormat, tools: Sequence[Tool]) -> None:
    """Raise ToolRefused for names that don't tell tools apart, or that no text can hold."""
    if not tools:
        raise ToolRefused(Member("tools"), " is empty: add the tool that is to be called")
    names = set()
    for tool in tools:
        where = f"{tool.at}.name"
        if not tool.name:
            raise ToolRefused(Member(where, "a function in `tools` has an empty `name`"), ": give it one")
        if any("\ud800" <= char <= "\udfff" for char in tool.name):
            member = Member(where, f"the function name {tool.name!r}")
            raise ToolRefused(member, " holds half a surrogate pair: send UTF-8 text")
        if tool.name in names:
            member = Member(where, f"`tools` has two functions named {shortened(tool.name)}")
            raise ToolRefused(member, ": rename one of them")
        if marker := marker_in(fmt, tool.name):
            raise ToolRefused(
                Member(where, f"the function name {shortened(tool.name)}"),
                f" contains {marker!r}, by which this model ends names: leave it out",
            )
        names.add(tool.name)


def marker_in(fmt: ToolFormat, name: str) -> str | None:
    """Return a text of the format that a name contains, and can't."""
    return next((text for text in name_marks(fmt) if text in name), None)


def arguments_json(schema: Mapping[str, object], limits: GrammarLimits, member: Member) -> str:
    """Return the grammar of a tool's arguments, whose schema `member` has; raise GrammarRefused."""
    try:
        return embedded_json(schema, limits)
    except GrammarFault as fault:
        raise fault.refusal(member) from None


def form_json(form: Grammar, limits: GrammarLimits) -> str:
    """Return the grammar of the text beside calls; raise GrammarRefused, or ToolRefused for no schema."""
    if form.kind is not GrammarKind.JSON_SCHEMA:
        raise ToolRefused(
            Member(form.member), f" and `{MEMBER}` are mutually exclusive: beside tools, give a JSON Schema"
        )
    try:
        return embedded_json(json.loads(form.source), limits)
    except GrammarFault as fault:
        raise fault.refusal(Member(form.member)) from None


def arguments_schema(tool: Tool, limits: GrammarLimits) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the schema of a tool's arguments, always of an object, and the keywords left out of it.

    Raises ToolRefused if it is none, and GrammarRefused if it is too large.

    It is taken as `inference/grammar/meaning.py` says, and one that says nothing of arguments as one without
    any, so that a model doesn't make up arguments.
    """
    schema = dict(tool.parameters)
    member = Member(tool.member.path, f"the `parameters` of the function {shortened(tool.name)}")
    if not has_keywords(schema):
        raise ToolRefused(
            member,
            " have no keyword of JSON Schema: give the schema of an object, with the arguments in "
            "`properties`",
        )
    kind = schema.setdefault("type", "object")
    if kind != "object" and not (isinstance(kind, (list, tuple)) and "object" in kind):
        raise ToolRefused(
            member,
            f" must be the JSON Schema of an object. Its `type` is {shortened(kind)}: set it to 'object'",
        )
    schema["type"] = "object"
    try:
        check_given(schema, limits)
    except GrammarFault as fault:
        raise fault.refusal(tool.member) from None
    schema = schema if PROPERTY_WORDS & schema.keys() else {**schema, "properties": {}}
    # Before it is read as it is meant: beside a word that is left out nothing would be narrowed
    schema, lost = (schema, ()) if tool.strict else loosened(schema, limits)
    return as_meant(schema), lost


# --- the answer -----------------------------------------------------------------------------


def answer_rules(fmt: ToolFormat, use: ToolUse, *, formed: bool) -> Iterator[str]:
    """Yield the rules of the whole answer, without those of single calls; `formed`: its text has a form."""
    more = f"({symbols(fmt.between)} call {symbols(fmt.closing)}){{0,{CALLS_LIMIT - 1}}}"
    end = symbols(fmt.ending)
    if use.parallel and not fmt.single:
        # A line break at the very end, so that it doesn't have to lead to a further call
        end = f"{more} {end} LINE?"
        yield r"LINE: /\n/"
    yield f"calls: call {symbols(fmt.closing)} {end}"
    if use.required:
        bare = symbols(fmt.bare_opening) or '""'
        openings = [symbols(fmt.led_opening)] if fmt.opening else []
        yield f"start: ({' | '.join(openings + [bare] * fmt.bare)}) calls"
    elif formed:
        yield from formed_rules(fmt, use.tools, end)
    elif fmt.bare:
        yield from bare_rules(fmt, use.tools, end)
    else:
        yield from opened_rules(fmt, use)


def formed_rules(fmt: ToolFormat, tools: Sequence[Tool], end: str) -> Iterator[str]:
    """Yield the rules of an answer that is a text of a form, or calls."""
    opened = f" | {symbols(fmt.led_opening)} calls" if fmt.opening else ""
    if not fmt.bare:
        yield f"start: form{opened}"
        return
    if fmt.bare_opening:
        yield f"start: form | {symbols(fmt.bare_opening)} calls{opened}"
        return
    yield f"start: form | first {symbols(fmt.closing)} {end}{opened}"
    yield "first: " + " | ".join(f"first_{at}" for at in range(len(tools)))
    yield "W: / /"
    for at, tool in enumerate(tools):
        yield f"first_{at}: {' W? '.join(json_pieces(fmt, tool, at))}"


def json_pieces(fmt: ToolFormat, tool: Tool, at: int) -> Iterator[str]:
    """Yield the symbols of a call, cut as those of JSON are: one that is longer would win over these."""
    yield literal("{")
    yield f"({' W? '.join(map(literal, (json_string('type'), ':', json_string('function'), ',')))} W?)?"
    for text in ("name", ":", tool.name, ",", fmt.arguments_key, ":"):
        yield literal(text if text in (":", ",") else json_string(text))
    yield f"args_{at}"
    yield literal("}")


def opened_rules(fmt: ToolFormat, use: ToolUse) -> Iterator[str]:
    """Yield the rules of an answer whose calls follow an opening."""
    sign, calls = fmt.opening[0], f"{symbols(fmt.opening[1:])} calls"
    if sign.id is not None:
        before = f"{lead(fmt)} LEAD" if fmt.lead else "text"
        yield f"start: text | {before} <[{sign.id}]> {calls}"
        if fmt.lead:
            yield f"LEAD: /{ANY}{in_regex(fmt.lead)}/"
        yield f"FREE: /{ANY}/"
        yield f"text: FREE {after_silence(fmt, 'FREE')}"
        return
    # Within a thought the sign is a word like any other
    found, thought, end = map(in_regex, (sign.text, THOUGHT.text, THOUGHT_END.text))
    yield f"INSIDE: /{ANY}/ & ~/{ANY}{end}{ANY}/"
    yield f"BESIDE: /{ANY}/ & ~/{ANY}({thought}|{found}){ANY}/"
    yield f"CLOSED: (BESIDE /{thought}/ INSIDE /{end}/)* BESIDE"
    yield f"FREE: CLOSED (/{thought}/ INSIDE)?"
    yield f"LEAD: CLOSED /{found}/"
    if not use.thinking:
        yield f"start: text | {lead(fmt)} LEAD {calls}"
        yield f"text: FREE {after_silence(fmt, 'FREE')}"
        return
    later = f" | THINKING <[{id_ranges(fmt.silent_ids)}]> {lead(fmt)} LEAD {calls}" if fmt.silent_ids else ""
    yield f"start: text | LED {calls}{later}"
    yield f"THINKING: INSIDE (/{end}/ FREE)?"
    yield f"LED: INSIDE /{end}/ LEAD"
    yield f"text: THINKING {after_silence(fmt, 'FREE')}"


def bare_rules(fmt: ToolFormat, tools: Sequence[Tool], end: str) -> Iterator[str]:
    """Yield the rules of an answer whose calls are all of it, or all behind a thought, and need no opening.

    What may begin a call is read up to its name, alike for all tools: to look for each of 128 by itself in
    thoughts was more work than a grammar may be. Behind it is a known name, or text.
    """
    thought, silent = fmt.thought_end, [id for id in fmt.silent_ids if id != fmt.thought_end.id]
    if fmt.bare_opening:
        name_end, around = text_of(fmt.name_end or ()), ("", "")
        written = [in_regex(tool.name + name_end) for tool in tools]
        begun = BLANKS + in_regex(text_of(fmt.bare_opening))
    else:
        written, around = [in_regex(json_string(tool.name)[1:]) for tool in tools], ("KEY ", " END")
        begun = BLANKS + head('"', BLANKS)
    before, behind = around
    again = f"{ANY}{in_regex(thought.text)}{begun}"
    first = f"({ANY}{in_regex(thought.text)})?{begun}" if thought.id is None else begun
    calls = f"begun name {symbols(fmt.closing)} {end}"
    opened = f" | text {symbols(fmt.opening)} calls" if fmt.opening else ""
    thought_of = f" | text <[{thought.id}]> {calls}" if thought.id is not None else ""
    yield f"start: text | {calls}{thought_of}{opened}"
    yield "name: " + " | ".join(f"NAME_{at} {before}args_{at}{behind}" for at in range(len(tools)))
    yield from (f"NAME_{at}: /{name}/" for at, name in enumerate(written))
    yield f"KNOWN: /({'|'.join(written)}){ANY}/"
    yield f"LEAD: /{first}/ & ~/{first}(?s:.+)/"
    yield f"FREE: /{ANY}/ & ~/{first}{ANY}/"
    if thought.id is None:
        yield "begun: LEAD AGAIN*"
        yield f"AGAIN: /{again}/ & ~/{again}(?s:.+)/ & ~KNOWN"
        yield f"REST: /{ANY}/ & ~/{again}{ANY}/ & ~KNOWN"
    else:
        yield "begun: LEAD"
        yield f"REST: /{ANY}/ & ~KNOWN"
    yield f"OTHER: /{ANY}/"
    yield "words: FREE | begun REST"
    later = [f"<[{thought.id}]> words"] if thought.id is not None else []
    later += [f"<[{id_ranges(silent)}]> OTHER"] if silent else []
    yield f"text: words ({' | '.join(later)})*" if later else "text: words"


def after_silence(fmt: ToolFormat, text: str) -> str:
    """Return what may follow text: special tokens without meaning here, with text after each."""
    return f"(<[{id_ranges(fmt.silent_ids)}]> {text})*" if fmt.silent_ids else ""


def lead(fmt: ToolFormat) -> str:
    """Return what may come before the piece of text that ends with a sign."""
    return f"(FREE <[{id_ranges(fmt.silent_ids)}]>)*" if fmt.silent_ids else ""
