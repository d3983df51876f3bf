"""Which splitter tells thoughts of a format from an answer."""

from __future__ import annotations

from inference.thoughts.channels import ChannelSplitter
from inference.thoughts.formats import ChannelFormat, ThoughtFormat
from inference.thoughts.tags import TagSplitter
from inference.thoughts.types import Place, Splitter
from inference.tools.formats import ToolFormat
from inference.tools.types import ToolUse


def splitter_of(
    fmt: ThoughtFormat, place: Place, calls: ToolFormat | None = None, use: ToolUse | None = None
) -> Splitter:
    """Return what tells the thoughts of an answer from the rest, which may be `calls` of this format."""
    if isinstance(fmt, ChannelFormat):
        known = () if use is None or calls is None or calls.channels is None else use.tools
        return ChannelSplitter(fmt, place, frozenset(tool.name for tool in known))
    signs = () if calls is None else calls.opening[:1]
    return TagSplitter(fmt, place, frozenset(sign.id for sign in signs if sign.id is not None))
