"""What llguidance complains of, as the client is told it: which keyword, where, and what to do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from inference.grammar.fault import GrammarFault, excerpt, join
from inference.grammar.keywords import BOUNDS
from inference.grammar.tree import Place, SchemaTree

SEARCH_SECONDS = 0.25  # for the place of what is wrong; the keyword's first place must do then
SEARCH_PLACES = 64

WORK = "it takes more work than a grammar may. Shorten it, or leave out alternatives, repetitions or patterns"
PATTERN = (
    "the regular expression is not supported: {}. Write it without look-around, back-references and word "
    r"boundaries (`\b`, `\B`), and with `^` and `$` at its ends alone"
)
MALFORMED = "the regular expression is not valid: {}"
REGEXES = ("pattern", "patternProperties")


@dataclass(frozen=True, slots=True)
class Complaint:
    """A kind of complaint."""

    sign: str  # regular expression, found in the message
    reason: str  # with {} for the message itself
    keywords: tuple[str, ...] = ()  # of which one is meant; without, the whole schema


COMPLAINTS = (
    Complaint(
        r"^oneOf constraints",
        "the alternatives of `oneOf` are not told apart by their types, or by a required property with a "
        "different `const` in each. Use `anyOf`, or add such a property",
        ("oneOf",),
    ),
    Complaint(
        r"^patternProperty regexes .* not disjoint",
        "a name can match several of the `patternProperties`. Let each name match one at most",
        ("patternProperties",),
    ),
    Complaint(
        r"^min/maxProperties only",
        "`minProperties` and `maxProperties` are supported only where each of the `properties` is required",
        ("minProperties", "maxProperties"),
    ),
    Complaint(
        r"circular references with sibling keys",
        "a reference to a schema that contains it must stand alone. "
        "Move what is beside `$ref` into that schema",
        ("$ref",),
    ),
    Complaint(r"(?i)unable to determine if regex|can't determine if patternProp", WORK, REGEXES),
    Complaint(r"^Value for 'multipleOf'|multipleOf", "this number is not supported: {}", ("multipleOf",)),
    Complaint(
        r"Failed to generate regex for", "this range is not supported. Narrow it", tuple(sorted(BOUNDS))
    ),
    Complaint(r"^regex parse error, (?:look-around|backref)|^it has an? (?:word|anchor)", PATTERN, REGEXES),
    Complaint(r"(?i)regex parse error|invalid regex|regex.*(?:error|not supported)", MALFORMED, REGEXES),
    Complaint(
        r"NoExtension",
        "no text fits it. Allow something, or leave out what contradicts it",
    ),
    Complaint(
        r"^Unsatisfiable schema|^Regex is empty",
        "nothing is valid here: {}. Allow something, or leave out what contradicts it",
    ),
    Complaint(
        r"(?i)too (?:big|large|many|complex)|TooComplex|fuel|precomputation|row has|level exceeded|limit",
        WORK,
    ),
)
OTHER = Complaint("", "it can't be compiled: {}")


def kind_of(message: str) -> tuple[Complaint, str]:
    """Return which complaint a message of llguidance is, and its gist."""
    gist = plain(message)
    return next((known for known in COMPLAINTS if re.search(known.sign, gist)), OTHER), gist


def plain(message: str) -> str:
    """Return a message without the place in a grammar that the client never saw, and without traces."""
    if message.startswith("panic"):
        return "an internal error"
    text = re.sub(r"^at \d+\(\d+\): ", "", message)
    text = re.sub(r"^(?:failed to compile JSON schema|lexer error|Parser Error): ", "", text)
    text = re.sub(r'^invalid regex "(?:[^"\\]|\\.)*"(?: \([^)]*\))?: ', "", text)
    if re.match(r"(?i)regex parse error|invalid regex", text):  # says it in its last line
        found = re.search(r"^error: (.*)$", text, re.MULTILINE)
        return f"regex parse error, {found[1]}" if found else "regex parse error"
    look = re.match(r"lookarounds not supported yet; (Word)?", text)
    if look:  # what stands behind has the whole expression
        return "it has a word boundary" if look[1] else "it has an anchor inside"
    return excerpt(text.split("\n")[0].removesuffix("<non-verbose/>").strip())


def fault_of(message: str) -> GrammarFault:
    """Return the fault of a grammar in which there are no places to show."""
    complaint, gist = kind_of(message)
    return GrammarFault(complaint.reason.format(gist))


def located(message: str, tree: SchemaTree, attempt: Callable[[Place], str]) -> GrammarFault:
    """Return the fault of a schema, with the place of the keyword.

    `attempt` compiles one of the schemas alone, and returns the complaint or "".
    """
    complaint, gist = kind_of(message)
    places = [*_candidates(complaint, tree)]
    place = places[0] if len(places) == 1 else _culprit(complaint, places, attempt)
    if place is None:
        return GrammarFault(complaint.reason.format(gist))
    assert isinstance(place.schema, dict)
    keyword = next(key for key in place.schema if key in complaint.keywords)
    return GrammarFault(complaint.reason.format(gist), join(place.pointer, keyword))


def _candidates(complaint: Complaint, tree: SchemaTree) -> Iterator[Place]:
    for place in tree.places:
        if isinstance(place.schema, dict) and not place.schema.keys().isdisjoint(complaint.keywords):
            yield place


def _culprit(complaint: Complaint, places: list[Place], attempt: Callable[[Place], str]) -> Place | None:
    """Return the innermost schema that is complained of by itself, or else the first."""
    deadline = time.monotonic() + SEARCH_SECONDS
    for place in sorted(places[:SEARCH_PLACES], key=lambda place: -place.depth):
        if time.monotonic() > deadline:
            break
        if kind_of(attempt(place))[0] is complaint:
            return place
    return places[0] if places else None
