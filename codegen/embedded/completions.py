"""Plain text without a conversation: what a prompt that no template has touched looks like."""

from __future__ import annotations

import random
from itertools import accumulate, repeat

from codegen.embedded.arithmetic import problem
from codegen.embedded.chat import Segment
from codegen.embedded.facts import RELATIONS, fill
from codegen.embedded.knowledge import DAYS, MONTHS
from codegen.embedded.stories import hero, story
from codegen.embedded.transforms import exercise
from codegen.embedded.turns import is_held_out, pick
from codegen.embedded.words import city, name, word

KIND = "completion"


def passage(rng: random.Random) -> list[Segment]:
    """Draw a passage of any sort."""
    roll = rng.random()
    # Echoes, sums and changes of text are exercises: the densest way to learn what the chats then ask for.
    if roll < 0.1:
        return _echo(rng)
    if roll < 0.28:
        return _sums(rng)
    if roll < 0.7:
        return exercise(rng)
    return [(pick(rng, (_statements, _statements, _count, _count, _names, _tale, _person))(rng), True)]


def statement(rng: random.Random) -> tuple[str, str]:
    """Draw a statement of fact that ends in the fact: `The capital of France is`, ` Paris.`"""
    while True:
        relation = pick(rng, RELATIONS[:8])
        pair = pick(rng, relation.pairs)
        text = fill(relation.statement, pair)
        if text.endswith(f" {pair[1]}."):
            return text[: -len(pair[1]) - 2], f" {pair[1]}."


def series(rng: random.Random) -> list[str]:
    """Draw a run of numbers or letters in order."""
    roll = rng.random()
    if roll < 0.15:
        start = rng.randrange(20)
        return list("abcdefghijklmnopqrstuvwxyz"[start : start + rng.randint(4, 10)])
    step = pick(rng, (1, 1, 1, 1, 2, 5, 10, -1))
    start = rng.randint(1, 60) if rng.random() < 0.4 else abs(step)
    count = rng.randint(5, 12)
    if step < 0:
        start = rng.randint(count, 60)
    return [str(number) for number in accumulate(repeat(step, count - 1), initial=start)]


def cycle(rng: random.Random) -> list[str]:
    """Draw a run of days or months."""
    names = pick(rng, (DAYS, MONTHS))
    start = rng.randrange(len(names))
    return [names[(start + offset) % len(names)] for offset in range(rng.randint(3, 9))]


def _statements(rng: random.Random) -> str:
    count = pick(rng, (1, 1, 1, 2, 4))
    return pick(rng, (" ", "\n")).join("".join(statement(rng)) for _ in range(count))


def _count(rng: random.Random) -> str:
    return pick(rng, (", ", ", ", " ", "\n", "-")).join(series(rng))


def _names(rng: random.Random) -> str:
    return pick(rng, (", ", ", ", " ", "\n")).join(cycle(rng))


def _sums(rng: random.Random) -> list[Segment]:
    """Sums one per line, of which only the results are to be written: the densest way to learn them."""
    asked, gap = pick(rng, (("{a}{s}{b}=", ""), ("{a} {s} {b} =", " "), ("{a} {s} {b} =", " ")))
    segments: list[Segment] = []
    while len(segments) < 32:
        a, sign, b, result = problem(rng)
        question = asked.format(a=a, s=sign, b=b)
        if not is_held_out(question):
            separator = "\n" if segments else ""
            segments += [(separator + question, False), (f"{gap}{result}", True)]
    return segments[: pick(rng, (2, 16, 32, 32))]


def _tale(rng: random.Random) -> str:
    return story(rng, *hero(rng))


def _person(rng: random.Random) -> str:
    who = name(rng)
    opening = pick(
        rng,
        (
            f"My name is {who} and I",
            f"Hello, my name is {who} and I",
            f"My name is {who}. I",
            f"{who} said: I",
            "Hello, I",
        ),
    )
    doing = pick(
        rng,
        (
            "live in {c}.",
            "am {n} years old.",
            "live in {c} and I am {n} years old.",
            "like music.",
            "work as a teacher.",
            "have a dog.",
        ),
    )
    return f"{opening} {doing.format(c=city(rng), n=rng.randint(5, 80))}"


def _echo(rng: random.Random) -> list[Segment]:
    """Words that come twice: the second time they can be known."""
    words = [word(rng) for _ in range(rng.randint(3, 16))]
    gap = pick(rng, (" ", " ", ", ", "\n"))
    text = gap.join(words)
    return [(text, False), (gap + text, True)]
