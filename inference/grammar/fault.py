"""What is wrong with a grammar, and where."""

from __future__ import annotations

from inference.errors import GrammarRefused, Member
from inference.grammar_limits import GrammarLimits

EXCERPT = 200  # characters of a client's text or a library's message that are repeated


class GrammarFault(Exception):
    """A grammar can't be used; `pointer` is the JSON pointer of the place, "" for the whole."""

    def __init__(self, reason: str, pointer: str = "", label: str = "") -> None:
        super().__init__(reason, pointer)
        self.reason = reason  # what is wrong, and what to do
        self.pointer = pointer
        self.label = label  # of the schema, where a grammar has several; see `Grammar.parts`

    def refusal(self, member: Member) -> GrammarRefused:
        """Return the error for the client whose request has the grammar in `member`."""
        place = f" at {excerpt(self.pointer)}" if self.pointer else ""
        return GrammarRefused("grammar is not valid: ", member, f"{place}: {self.reason}")


def excerpt(text: str) -> str:
    """Return a text's beginning."""
    return text if len(text) <= EXCERPT else text[:EXCERPT] + "..."


def join(pointer: str, *keys: str | int) -> str:
    """Return the JSON pointer of a place below another (RFC 6901)."""
    parts = (str(key).replace("~", "~0").replace("/", "~1") for key in keys)
    return "/".join((pointer, *parts))


def check_source(source: str, most: int) -> None:
    """Raise GrammarFault for a schema or a regular expression of more than `most` bytes."""
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > most:
        raise GrammarFault(f"it must have <= {most} bytes (`max_grammar_size`). Given: {size}. Shorten it")


def too_slow(limits: GrammarLimits) -> GrammarFault:
    """Return the error for a grammar on which a process or thread has worked for too long."""
    return GrammarFault(f"compiling it takes more than {limits.seconds:g} seconds. Shorten it")
