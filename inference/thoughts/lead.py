"""The grammar of what comes before an answer that has to follow one, in llguidance's dialect of Lark.

A model that thinks does so before it writes what it has to: without room for it, the answer would be written
in the thought's place. What follows is the rule `answer`.
"""

from __future__ import annotations

from dataclasses import replace

from inference.thoughts.formats import ChannelFormat, TagFormat, ThoughtFormat
from inference.thoughts.types import Place
from inference.tools.lark import ANY, in_regex, literal, token
from inference.types import Grammar

BLANKS = r"[ \t\n\r]{0,8}"


def led(grammar: Grammar, fmt: ThoughtFormat, place: Place, *, in_channels: bool = False) -> Grammar:
    """Return a grammar with room for a thought before it, in an answer that begins at this place.

    `in_channels`: the grammar is one of messages, which name their channels themselves.
    """
    if place is Place.WORDS:
        return grammar
    if isinstance(fmt, ChannelFormat):
        rules = _of_channels(fmt, place, in_channels=in_channels)
    else:
        rules = _of_tags(fmt, place)
    return replace(grammar, lead="\n".join(rules) + "\n")


def _of_tags(fmt: TagFormat, place: Place) -> list[str]:
    opening, closing = fmt.opening, fmt.closing
    if closing.id is not None:
        thought = f"WITHIN {token(closing)} BLANKS?"
        if place is Place.START:
            thought = f"(BLANKS? {token(opening)} {thought})?"
        return [f"start: {thought} answer", f"WITHIN: /{ANY}/", r"BLANKS: /[ \t\n\r]{1,8}/"]
    begun, end = in_regex(opening.text), in_regex(closing.text)
    before = f"/{BLANKS}{begun}/ " if place is Place.START else ""
    return [
        f"start: THOUGHT{'?' if before else ''} answer",
        f"WITHIN: /{ANY}/ & ~/{ANY}{end}{ANY}/",
        f"THOUGHT: {before}WITHIN /{end}{BLANKS}/",
    ]


def _of_channels(fmt: ChannelFormat, place: Place, *, in_channels: bool) -> list[str]:
    start, channel, message, end = map(token, (fmt.start, fmt.channel, fmt.message, fmt.end))
    again = f"{end} {start} {literal(fmt.author)}"
    first = f"WITHIN {again} " if place is Place.THOUGHT else ""
    head = "" if in_channels else f"{channel} {literal(fmt.words)} {message} "
    return [
        f"start: {first}thought* {head}answer",
        f"thought: {channel} {literal(fmt.thoughts)} {message} WITHIN {again}",
        f"WITHIN: /{ANY}/",
    ]
