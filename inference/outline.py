"""What can be told of an exception without its words, which may quote what a client sent."""

from __future__ import annotations

import traceback

CAUSE = "The above exception was the direct cause of the following exception:"
CONTEXT = "During handling of the above exception, another exception occurred:"
MOST = 64  # exceptions of one outline


def outline(error: BaseException) -> str:
    """Return an exception's type and stack, and those of all that led to it: no message, note or source.

    An error that brings an `outline` of its own, as one from another process does, is told by that.
    """
    return "\n".join(_lines(error, set()))


def _lines(error: BaseException, seen: set[int]) -> list[str]:
    parts: list[list[str]] = []  # the newest first
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < MOST:
        seen.add(id(link))
        parts.append(_one(link, seen))
        if link.__cause__ is not None:
            link, joint = link.__cause__, CAUSE
        else:
            link, joint = None if link.__suppress_context__ else link.__context__, CONTEXT
        if link is not None:
            parts.append(["", joint, ""])
    if not parts:
        return ["..."]
    if len(parts) % 2 == 0:  # what the last joint announces is told already, or too much
        parts.pop()
    return [line for part in reversed(parts) for line in part]


def _one(error: BaseException, seen: set[int]) -> list[str]:
    brought = getattr(error, "outline", None)
    if isinstance(brought, str):
        return brought.splitlines()
    # an empty source line is one that isn't looked up
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name, "")
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    stack = "".join(traceback.StackSummary.from_list(frames).format()).splitlines()
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    lines = ["Traceback (most recent call last):", *stack, name] if stack else [name]
    if isinstance(error, BaseExceptionGroup):
        for number, member in enumerate(error.exceptions, 1):
            if len(seen) >= MOST:
                return [*lines, "  ..."]
            lines += [f"  of which {number}:", *(f"    {line}" for line in _lines(member, seen))]
    return lines
