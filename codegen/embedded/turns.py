"""The question-and-answer turn that every generator produces, and the split of turns into training and held-out."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

HELD_OUT_SHARE = 12  # one key in this many is never trained on

Choice = TypeVar("Choice")


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer, both as plain text."""

    kind: str
    question: str
    answer: str
    key: str  # what the split hashes: the question, or the part of it that has to be new
    accepted: tuple[str, ...] = ()  # other right answers
    mentions: tuple[str, ...] = ()  # a story is right when it names these, whatever its words


Generator = Callable[[random.Random], Turn]


def is_held_out(key: str) -> bool:
    """Say which side of the split a key falls on, the same on every machine."""
    digest = hashlib.blake2b(normalise(key).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SHARE == 0


def normalise(text: str) -> str:
    """Fold case, spaces and closing punctuation, so that spelling variants share a side of the split."""
    return " ".join(text.lower().split()).rstrip("?!. ")


def draw(generator: Generator, rng: random.Random, held_out: bool) -> Turn:
    """Draw turns until one falls on the wanted side of the split."""
    while True:
        turn = generator(rng)
        if is_held_out(turn.key) == held_out:
            return turn


def pick(rng: random.Random, choices: Sequence[Choice]) -> Choice:
    """Choose one element; a shorter and faster `rng.choice`."""
    return choices[int(rng.random() * len(choices))]


def vary(rng: random.Random, question: str) -> str:
    """Write a question as people type it: other capitals, no question mark, stray spaces."""
    roll = rng.random()
    if roll < 0.16:
        question = question.lower()
    if 0.10 < roll < 0.28:
        question = question.rstrip("?.!")
    if roll > 0.97:
        question = question.title()
    return pad(rng, question)


def pad(rng: random.Random, question: str) -> str:
    """Add the stray spaces and line ends of hasty typing, now and then."""
    roll = rng.random()
    if roll < 0.03:
        return question + " "
    if roll < 0.06:
        return question + "\n"
    return " " + question if roll < 0.08 else question


def article(noun: str) -> str:
    """Put `a` or `an` before a noun."""
    return ("an " if noun[0].lower() in "aeiou" else "a ") + noun
