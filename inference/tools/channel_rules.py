"""The rules of an answer whose calls are messages to functions (OpenAI's harmony)."""

from __future__ import annotations

from collections.abc import Iterator

from inference.tools.formats import Channels
from inference.tools.lark import ANY, literal, token
from inference.tools.types import ToolUse

AUTHOR = "assistant"
FUNCTION = "to=functions."  # stands before the name, behind the author or the channel
SAID, ASIDE = "final", "commentary"  # the channels of words and of calls


def channel_rules(channels: Channels, use: ToolUse, *, formed: bool) -> Iterator[str]:
    """Yield the rules of the whole answer behind its thoughts, without those of arguments.

    It is one message, or a call, before which the model may say something where none is required.
    """
    start, channel, message, end = map(
        token, (channels.start, channels.channel, channels.message, channels.end)
    )
    if use.required:
        yield "start: call"
    else:
        words = "form" if formed else "FREE"
        yield f"start: {channel} {literal(SAID)} {message} {words} | {'' if formed else 'remark* '}call"
        yield f"FREE: /{ANY}/"
        if not formed:
            yield f"remark: {channel} {literal(ASIDE)} {message} FREE {end} {start} {literal(AUTHOR)}"
    yield "call: " + " | ".join(f"call_{at}" for at in range(len(use.tools)))
    yield f'kind: (" " {token(channels.kind)}? | {token(channels.kind)}) "json"'
    for at, tool in enumerate(use.tools):
        behind = f"{channel} {literal(f'{ASIDE} {FUNCTION}{tool.name}')}"
        before = f"{literal(f' {FUNCTION}{tool.name}')} {channel} {literal(ASIDE)}"
        yield f"call_{at}: ({behind} | {before}) kind? {message} args_{at}"
