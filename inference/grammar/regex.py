"""Regular expressions as grammars, with the meaning that all readers of them agree on."""

from __future__ import annotations

from inference.grammar.fault import GrammarFault
from inference.grammar.limits import GrammarLimits

# What \d, \w and \s stand for: ASCII, where Python and Rust mean all of Unicode and JavaScript does not
CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\x20\t\n\r\f\v"}
# What \D, \W, \S and [^\d] leave out: what any of the three means. What is written matches for all
OUTSIDE = {"d": r"\d", "w": r"\w\p{N}", "s": r"\s\x1c-\x1f\x{feff}"}


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


def _unanchored(pattern: str) -> str:
    pattern = pattern.removeprefix("^")
    body = pattern.removesuffix("$")
    escaped = (len(body) - len(body.rstrip("\\"))) % 2
    return pattern if escaped else body


def _translated(pattern: str) -> str:
    """Return the expression as it stands between the slashes of Lark."""
    parts: list[str] = []
    in_class = negated = False
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            parts.append(_escape(pattern[at + 1], in_class, negated))
            at += 2
            continue
        if char == "[" and not in_class:
            in_class, negated = True, pattern.startswith("^", at + 1)
        elif char == "]":
            in_class = negated = False
        parts.append({"/": r"\/", "\n": r"\n"}.get(char, char))
        at += 1
    return "".join(parts)


def _escape(letter: str, in_class: bool, negated: bool) -> str:
    """Return what stands for a backslash and a letter."""
    if letter == "\n":
        return r"\n"
    if letter in CLASSES:
        inner = OUTSIDE[letter] if negated else CLASSES[letter]
        return inner if in_class else f"[{inner}]"
    if letter.lower() in OUTSIDE and not negated:
        return f"[^{OUTSIDE[letter.lower()]}]"
    return "\\" + letter
