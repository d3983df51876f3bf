"""The rules of values: texts that stand there as they are, up to what ends them, and JSON."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from inference.errors import Member, ToolRefused
from inference.grammar.schema import LIMITS
from inference.tools.formats import Marker, text_of
from inference.tools.lark import ANY, in_regex, literal, symbols
from inference.tools.texts import Text


class ValueRules:
    """Writes the rules of values in one grammar; equal ones once."""

    def __init__(self, slips: Sequence[str] = ()) -> None:
        """`slips`: what no text holds."""
        self._slips = slips
        self._size = 0  # of all that was written
        self._known: dict[str, str] = {}  # names of rules by what they are
        # The same names by texts and their ends: to write one may be much work
        self._texts: dict[tuple[Text, tuple[Marker, ...]], str] = {}

    def spend(self, size: int) -> None:
        """Count what is written; raise ToolRefused before it is more than a grammar may be.

        Much can come of little: a name is written again in every way to give arguments.
        """
        self._size += size
        if self._size > LIMITS.lark_bytes:
            raise ToolRefused(
                Member("tools", "the `parameters` of the functions in `tools`"),
                " are too large together: shorten them, or offer fewer functions at a time",
            )

    def json(self, document: str, label: str) -> Generator[str, None, str]:
        """Yield the rule of a value in JSON if it is new; return its name."""
        if document not in self._known:
            self._known[document] = f"json_{len(self._known)}"
            yield f"// {label}"
            yield f"{self._known[document]}: %json {document}"
        return self._known[document]

    def text(self, text: Text, after: tuple[Marker, ...], label: str) -> Generator[str, None, str]:
        """Yield the rules of a text if they are new; return the symbols of it and what ends it, `after`.

        It goes up to where its end is first found: as a suffix, for llguidance, where that has no token.
        What stands before a token is part of the text's rule, as it may also be found within the text.
        """
        at = next((at for at, marker in enumerate(after) if marker.id is not None), None)
        is_token, end = at is not None, text_of(after)
        rest = f" {symbols(after[at:])}" if is_token else ""
        lead = in_regex(text_of(after[:at])) if is_token else ""
        key = (text, after[: at + 1] if at is not None else after)
        if key in self._texts:
            return f"{self._texts[key]}{rest}"
        every = [
            f"/({expression}){lead}/" if lead else f"/{expression}/"
            for expression in text.expressions or (ANY,)
        ]
        if text.may_hold_end and not is_token:
            every += [f"~/{ended}/" for ended in early_ends(end)]
        if not text.listed and self._slips:
            every.append(f"~/{ANY}({'|'.join(map(in_regex, self._slips))}){ANY}/")
        null = f" | /null{lead}/" if text.or_null and text.expressions else ""
        rule = f"({' & '.join(every)}){null}"
        suffix = "" if is_token else f"[suffix={literal(end)}]"
        if suffix + rule not in self._known:
            name = f"text_{len(self._known)}"
            self._known[suffix + rule] = name
            yield f"{name}{suffix}: {name.upper()}"
            yield f"// {label}"
            yield f"{name.upper()}: {rule}"
        self._texts[key] = self._known[suffix + rule]
        return f"{self._texts[key]}{rest}"


def early_ends(end: str) -> Iterator[str]:
    """Yield expressions of the texts that would end earlier, with their end behind them."""
    yield f"{ANY}{in_regex(end)}{ANY}"
    for size in range(1, len(end)):
        if end.endswith(end[:size]):
            yield f"{ANY}{in_regex(end[:-size])}"
