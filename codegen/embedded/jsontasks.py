"""Questions to be answered as JSON: objects drawn from a sentence, arrays drawn from a list."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from codegen.embedded.turns import Turn, pick
from codegen.embedded.words import ADJECTIVES, COLOURS, NOUNS, city, invented, name

KIND = "json"
Json = str | int | float | bool | list[str] | list[int] | None
# A field: its possible keys, how to draw a value, and how a sentence about {s} states it.
Field = tuple[tuple[str, ...], Callable[[random.Random], Json], tuple[str, ...]]


def thing(rng: random.Random) -> str:
    """Draw a noun, known or invented."""
    return invented(rng) if rng.random() < 0.2 else pick(rng, NOUNS)


def _number(low: int, high: int) -> Callable[[random.Random], Json]:
    return lambda rng: rng.randint(low, high)


PERSON: tuple[Field, ...] = (
    (
        ("age", "years"),
        _number(2, 99),
        ("is {v} years old", "is {v}", "is aged {v}", "has lived for {v} years"),
    ),
    (
        ("city", "home", "place", "town"),
        city,
        ("lives in {v}", "comes from {v}", "is from {v}", "works in {v}"),
    ),
    (
        ("job", "work", "profession"),
        lambda rng: pick(
            rng, "doctor teacher cook baker farmer pilot painter writer nurse lawyer singer".split()
        ),
        ("works as a {v}", "is a {v}", "has a job as a {v}"),
    ),
    (
        ("pet", "animal"),
        lambda rng: pick(rng, "cat dog horse rabbit mouse duck snake fish goat parrot".split()),
        ("has a {v}", "owns a {v}"),
    ),
    (
        ("colour", "color", "favourite_colour"),
        lambda rng: pick(rng, COLOURS),
        ("likes the colour {v}", "loves {v} most", "wears {v}"),
    ),
    (
        ("hobby", "sport"),
        lambda rng: pick(
            rng, "football chess tennis reading swimming music dancing cooking hockey golf".split()
        ),
        ("likes {v}", "enjoys {v}", "plays {v}"),
    ),
    (("children", "kids"), _number(2, 9), ("has {v} children", "has {v} kids")),
)
ITEM: tuple[Field, ...] = (
    (
        ("price", "cost", "euros"),
        _number(1, 999),
        ("costs {v} euros", "is sold for {v} euros", "has a price of {v}"),
    ),
    (("colour", "color"), lambda rng: pick(rng, COLOURS), ("is {v}", "comes in {v}", "has the colour {v}")),
    (("weight", "kilograms"), _number(1, 99), ("weighs {v} kilograms", "has a weight of {v}")),
    (("count", "quantity", "stock"), _number(1, 60), ("is in stock {v} times", "is available {v} times")),
    (
        ("size",),
        lambda rng: pick(rng, "small medium large huge tiny".split()),
        ("has the size {v}", "comes in size {v}"),
    ),
    (("shop", "city"), city, ("is sold in {v}", "was made in {v}")),
)
ORDERS = (
    "Answer as JSON with keys {k}: {s}",
    "Answer as JSON with the keys {k}: {s}",
    "Write as JSON with keys {k}: {s}",
    "JSON with keys {k}: {s}",
    "Give me JSON with keys {k}: {s}",
    "Extract {k} as JSON: {s}",
    "Extract {k} as JSON from this text: {s}",
    "Return JSON with {k}. {s}",
    "{s} Answer as JSON with keys {k}.",
    "{s} Extract {k} as JSON.",
    "{s} Return a JSON object with keys {k}.",
    "Turn this into JSON ({k}): {s}",
    "{s}\nJSON with keys {k}:",
    "Make a JSON object with {k} from: {s}",
    "Fill {k} in JSON: {s}",
)
LISTS = (
    "Answer as a JSON array: {l}",
    "Write as a JSON array: {l}",
    "Make a JSON list of {l}.",
    "Turn this list into a JSON array: {l}",
    "JSON array of {l}",
    "Convert to a JSON array: {l}",
    "Put these in a JSON array: {l}",
    "{l}: as JSON array",
    "List as JSON: {l}",
    "Return a JSON array with {l}.",
)


def ask(rng: random.Random) -> Turn:
    """Ask for an object or an array; what is held out is the whole question."""
    question, value = pick(rng, (_object, _object, _object, _pairs, _array, _nested))(rng)
    answer = json.dumps(value, ensure_ascii=False)
    return Turn(KIND, question, answer, answer)


def _object(rng: random.Random) -> tuple[str, dict[str, Json]]:
    person = rng.random() < 0.65
    subject = name(rng) if person else thing(rng)
    fields = rng.sample(PERSON if person else ITEM, pick(rng, (1, 1, 1, 2, 2, 3)))
    key = pick(
        rng, ("name", "name", "person", "first_name") if person else ("item", "product", "thing", "name")
    )
    found: dict[str, Json] = {key: subject}
    clauses = []
    for keys, value, forms in fields:
        drawn = value(rng)
        found[pick(rng, keys)] = drawn
        clauses.append(pick(rng, forms).format(v=drawn))
    opening = subject if person else f"The {subject}"
    sentence = f"{opening} {_joined(rng, clauses)}."
    if rng.random() < 0.3:
        order = list(found)
        rng.shuffle(order)
        found = {key: found[key] for key in order}
    if len(found) > 2 and rng.random() < 0.25:  # the question may want less than the sentence says
        found.pop(pick(rng, tuple(found)))
    return pick(rng, ORDERS).format(k=_joined(rng, list(found)), s=sentence), found


def _pairs(rng: random.Random) -> tuple[str, dict[str, Json]]:
    """Key and value as given, of any meaning: this is what teaches copying into JSON."""
    found: dict[str, Json] = {}
    for _ in range(pick(rng, (1, 2, 2, 3))):
        key = thing(rng) if rng.random() < 0.7 else pick(rng, ADJECTIVES)
        found[key] = _value(rng)
    given = pick(rng, (", ", "; ", " and ")).join(
        f"{key}{pick(rng, (' is ', '=', ': '))}{_plain(value)}" for key, value in found.items()
    )
    forms = (
        "As JSON: {x}",
        "Write as JSON: {x}",
        "Answer as JSON: {x}",
        "JSON object: {x}",
        "Make JSON: {x}",
        "Convert to JSON: {x}",
        "{x} as JSON",
        "Give me this as JSON: {x}",
    )
    return pick(rng, forms).format(x=given), found


def _array(rng: random.Random) -> tuple[str, list[str] | list[int]]:
    count = pick(rng, (2, 3, 3, 4, 5))
    if rng.random() < 0.3:
        numbers = [rng.randint(0, 99) for _ in range(count)]
        return pick(rng, LISTS).format(l=_joined(rng, [str(number) for number in numbers])), numbers
    draw = pick(rng, (thing, thing, name, city))
    values = [draw(rng) for _ in range(count)]
    return pick(rng, LISTS).format(l=_joined(rng, values)), values


def _nested(rng: random.Random) -> tuple[str, dict[str, Json]]:
    """A subject with a list, as in `Tom likes apples and pears`."""
    subject, likes = name(rng), [thing(rng) for _ in range(pick(rng, (2, 2, 3)))]
    verb, keys = pick(
        rng,
        (
            ("likes", ("likes", "things")),
            ("has", ("has", "items", "things")),
            ("buys", ("buys", "items", "cart")),
            ("sees", ("sees", "things")),
        ),
    )
    key = pick(rng, keys)
    who = pick(rng, ("name", "person", "name"))
    return pick(rng, ORDERS).format(k=f"{who} and {key}", s=f"{subject} {verb} {_joined(rng, likes)}."), {
        who: subject,
        key: likes,
    }


def _value(rng: random.Random) -> Json:
    roll = rng.random()
    if roll < 0.3:
        return rng.randint(0, 999)
    if roll < 0.4:
        return rng.random() < 0.5
    return pick(rng, (thing, name, city))(rng)


def _plain(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _joined(rng: random.Random, parts: list[str]) -> str:
    """Join as in a sentence: commas, and `and` before the last, sometimes commas only."""
    if len(parts) == 1 or rng.random() < 0.3:
        return ", ".join(parts)
    return ", ".join(parts[:-1]) + " and " + parts[-1]
