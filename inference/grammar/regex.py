"""Regular expressions as grammars, with the meaning that all readers of them agree on."""

from __future__ import annotations

import re
from functools import partial

from inference.grammar.fault import GrammarFault
from inference.grammar.patterns import literal, pieces
from inference.grammar_limits import GrammarLimits

# What \d, \w and \s stand for: ASCII, where Python and Rust mean all of Unicode and JavaScript does not
CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\x20\t\n\r\f\v"}
# What \D, \W, \S and [^\d] leave out: what any of the three means. What is written matches for all,
# so that [^\D] is CLASSES again
OUTSIDE = {"d": r"\d", "w": r"\w\p{N}", "s": r"\s\x1c-\x1f\x{feff}"}

ANY = "(?s:.*)"
ESCAPED = re.compile(r"\\.", re.DOTALL)
ANCHOR = re.compile(r"\\[AzZG]")
ONE = re.compile(r"\\.|/|\n", re.DOTALL)  # what may have to be written in another way


def regex_grammar(pattern: str, limits: GrammarLimits) -> str:
    """Return the Lark grammar of the texts that match a regular expression from end to end.

    Raises GrammarFault. `^` at the beginning and `$` at the end are possible, and change nothing.
    """
    if len(pattern) > limits.regex_chars:
        raise GrammarFault(
            f"a regular expression must have <= {limits.regex_chars} characters. "
            f"Given: {len(pattern)}. Shorten it"
        )
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise GrammarFault("it holds half a surrogate pair. Send UTF-8 text") from None
    body = _unanchored(pattern)
    if not body:
        raise GrammarFault("it allows nothing but the empty text. Say what is to be generated")
    return f"start: /{_translated(body)}/"


def searched(pattern: str) -> str | None:
    """Return the expression, as Lark has it, of texts in which one is found; raise GrammarFault.

    None where an anchor stands elsewhere than at an end, or is that of one alternative.
    """
    body = _unanchored(pattern)
    begins = pattern.startswith("^")
    ends = len(pattern) - begins > len(body)
    outside = "".join(piece for piece in pieces(body, "") if isinstance(piece, str))
    plain = ESCAPED.sub("", outside)
    if ANCHOR.search(outside) or "^" in plain or "$" in plain or ((begins or ends) and _has_branches(plain)):
        return None
    return f"{'' if begins else ANY}(?:{_translated(body)}){'' if ends else ANY}"


def _has_branches(plain: str) -> bool:
    """Return whether an expression, without classes and escapes, consists of alternatives."""
    depth = 0
    for char in plain:
        depth += (char == "(") - (char == ")")
        if char == "|" and not depth:
            return True
    return False


def _unanchored(pattern: str) -> str:
    pattern = pattern.removeprefix("^")
    body = pattern.removesuffix("$")
    escaped = (len(body) - len(body.rstrip("\\"))) % 2
    return pattern if escaped else body


def _translated(pattern: str) -> str:
    """Return the expression as it stands between the slashes of Lark."""
    return "".join(
        ONE.sub(_outside, piece)
        if isinstance(piece, str)
        else piece.written(partial(_inside, negated=piece.negated))
        for piece in pieces(pattern, "")
    )


def _outside(found: re.Match[str]) -> str:
    """Return what stands for an escape, a slash or a line's end that is in no class."""
    piece = found.group()
    letter = piece[1:]
    if letter in CLASSES:
        return f"[{CLASSES[letter]}]"
    return f"[^{OUTSIDE[letter.lower()]}]" if letter.lower() in OUTSIDE else _plain(piece)


def _inside(member: str, negated: bool) -> str:
    """Return what stands for a member of a class; for one that is left out, what any reader means by it."""
    letter = member[1:]
    if letter in CLASSES:
        return OUTSIDE[letter] if negated else CLASSES[letter]
    if letter.lower() in OUTSIDE:
        return f"[^{(CLASSES if negated else OUTSIDE)[letter.lower()]}]"
    return _plain(literal(member))


def _plain(piece: str) -> str:
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(piece, piece)
