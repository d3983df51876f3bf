"""Questions about facts and about the calendar."""

from __future__ import annotations

import random
from itertools import pairwise

from codegen.embedded.facts import RELATIONS, fill
from codegen.embedded.turns import Turn, pick, vary

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
SEASONS = (
    "winter",
    "winter",
    "spring",
    "spring",
    "spring",
    "summer",
    "summer",
    "summer",
    "autumn",
    "autumn",
    "autumn",
    "winter",
)
NUMBERS = "zero one two three four five six seven".split()

# Relations weigh by the root of their size, so that a short table is not drowned by the capitals.
_WEIGHTS = [len(relation.pairs) ** 0.75 for relation in RELATIONS]


def fact(rng: random.Random) -> Turn:
    """Ask for one fact in one of its phrasings."""
    relation = rng.choices(RELATIONS, _WEIGHTS)[0]
    pair = pick(rng, relation.pairs)
    question = fill(pick(rng, relation.questions), pair)
    return Turn("facts", vary(rng, question), fill(relation.statement, pair), question)


def calendar(rng: random.Random) -> Turn:
    """Ask about days and months."""
    question, answer = pick(
        rng, (_neighbour, _neighbour, _shifted, _shifted, _length, _ordinal, _number, _count)
    )(rng)
    return Turn("calendar", vary(rng, question), answer, question)


def _neighbour(rng: random.Random) -> tuple[str, str]:
    unit, names = pick(rng, (("day", DAYS), ("month", MONTHS)))
    left, right = pick(rng, tuple(pairwise((*names, names[0]))))
    forms: tuple[str, ...]
    if rng.random() < 0.6:
        forms = (
            "What comes after {x}?",
            "Which {u} comes after {x}?",
            "What {u} is after {x}?",
            "What is the {u} after {x}?",
            "Which {u} follows {x}?",
            "Name the {u} after {x}.",
            "What is the next {u} after {x}?",
            "If this {u} is {x}, what is the next {u}?",
        )
        return pick(rng, forms).format(u=unit, x=left), f"{right} comes after {left}."
    forms = (
        "What comes before {x}?",
        "Which {u} comes before {x}?",
        "What {u} is before {x}?",
        "What is the {u} before {x}?",
        "Name the {u} before {x}.",
        "Which {u} is right before {x}?",
    )
    return pick(rng, forms).format(u=unit, x=right), f"{left} comes before {right}."


def _shifted(rng: random.Random) -> tuple[str, str]:
    start, count = rng.randrange(7), rng.randint(1, 7)
    later = rng.random() < 0.7
    amount = f"{count if rng.random() < 0.6 else NUMBERS[count]} day{'s' if count > 1 else ''}"
    word = "after" if later else "before"
    forms = (
        "What day is {n} {w} {x}?",
        "Which day is {n} {w} {x}?",
        "What weekday is {n} {w} {x}?",
        "What day comes {n} {w} {x}?",
        "Tell me the day {n} {w} {x}.",
        "What is the day {n} {w} {x}?",
    )
    target = DAYS[(start + (count if later else -count)) % 7]
    return pick(rng, forms).format(
        n=amount, w=word, x=DAYS[start]
    ), f"{amount[0].upper()}{amount[1:]} {word} {DAYS[start]} is {target}."


def _length(rng: random.Random) -> tuple[str, str]:
    month = rng.randrange(12)
    forms = (
        "How many days are in {x}?",
        "How many days does {x} have?",
        "How many days are there in {x}?",
        "How long is {x}?",
        "What is the number of days in {x}?",
        "Number of days in {x}?",
        "{x} has how many days?",
        "Tell me the number of days in {x}.",
    )
    return pick(rng, forms).format(x=MONTHS[month]), f"{MONTHS[month]} has {LENGTHS[month]} days."


def _ordinal(rng: random.Random) -> tuple[str, str]:
    unit, names, of = pick(rng, (("month", MONTHS, "year"), ("month", MONTHS, "year"), ("day", DAYS, "week")))
    index = rng.randrange(len(names))
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(index + 1, "th")
    place = ORDINALS[index] if rng.random() < 0.6 else f"{index + 1}{suffix}"
    forms = (
        "Which {u} is the {p}?",
        "What is the {p} {u} of the {o}?",
        "Which {u} is the {p} {u}?",
        "Name the {p} {u}.",
        "What is the {p} {u}?",
        "Which {u} is the {p} of the {o}?",
        "Tell me the {p} {u} of the {o}.",
    )
    return pick(rng, forms).format(
        u=unit, p=place, o=of
    ), f"{names[index]} is the {ORDINALS[index]} {unit} of the {of}."


def _number(rng: random.Random) -> tuple[str, str]:
    index = rng.randrange(12)
    if rng.random() < 0.4:
        forms = (
            "Which season is {x} in?",
            "What season is {x} in?",
            "{x} is in which season?",
            "In which season is {x}?",
        )
        return pick(rng, forms).format(x=MONTHS[index]), f"{MONTHS[index]} is in {SEASONS[index]}."
    forms = (
        "What number is the month {x}?",
        "Which month number is {x}?",
        "What is the number of the month {x}?",
        "{x} is month number what?",
    )
    return pick(rng, forms).format(x=MONTHS[index]), f"{MONTHS[index]} is month number {index + 1}."


def _count(rng: random.Random) -> tuple[str, str]:
    asked = pick(
        rng,
        (
            "List the days of the week.",
            "Name the days of the week.",
            "What are the days of the week?",
            "Which days does a week have?",
            "Tell me all days of the week.",
            "What are the seven days of the week?",
        ),
    )
    if rng.random() < 0.5:
        return asked, f"The days of the week are {', '.join(DAYS[:-1])} and {DAYS[-1]}."
    asked = asked.replace("days", "months").replace("week", "year").replace("seven", "twelve")
    return asked, f"The months of the year are {', '.join(MONTHS[:-1])} and {MONTHS[-1]}."
