"""Repeating, changing and measuring text that the question brings along."""

from __future__ import annotations

import random
from collections.abc import Callable

from codegen.embedded.chat import Segment
from codegen.embedded.turns import Turn, is_held_out, pad, pick
from codegen.embedded.words import NAMES, WORDS, city, name, word

KIND = "transforms"
Task = tuple[tuple[str, ...], Callable[[str], str]]

_REVERSED = (
    "Reverse the order of the words",
    "Reverse the words",
    "Reverse the word order",
    "Write the words in reverse order",
    "Put the words in reverse order",
    "Words backwards",
    "Turn the word order around",
)
# Instructions that take a text of several words.
TEXT_TASKS: tuple[tuple[float, tuple[str, ...], Callable[[str], str]], ...] = (
    (
        4.0,
        (
            "Repeat this",
            "Repeat",
            "Repeat after me",
            "Say this",
            "Say",
            "Echo this",
            "Echo",
            "Copy this",
            "Please repeat this",
            "Repeat the following text",
            "Write this again",
            "Copy the text",
            "Repeat exactly",
            "Please say",
        ),
        lambda text: text,
    ),
    (
        2.0,
        (
            "Write in upper case",
            "Upper case",
            "Make this upper case",
            "Convert to upper case",
            "In capital letters",
            "Uppercase this",
            "Change to uppercase",
            "Write in capital letters",
            "Put in upper case",
            "To uppercase",
        ),
        str.upper,
    ),
    (
        2.0,
        (
            "Write in lower case",
            "Lower case",
            "Make this lower case",
            "Convert to lower case",
            "In small letters",
            "Lowercase this",
            "Change to lowercase",
            "Write in small letters",
            "Put in lower case",
            "To lowercase",
        ),
        str.lower,
    ),
    (2.0, _REVERSED, lambda text: " ".join(reversed(text.split()))),
    (
        1.0,
        (
            "What is the first word of",
            "First word of",
            "Give me the first word of",
            "Name the first word of",
            "Which word comes first in",
        ),
        lambda text: text.split()[0],
    ),
    (
        1.0,
        (
            "What is the last word of",
            "Last word of",
            "Give me the last word of",
            "Name the last word of",
            "Which word comes last in",
        ),
        lambda text: text.split()[-1],
    ),
    (
        2.0,
        (
            "How many words are in",
            "Count the words in",
            "Count the words",
            "Number of words in",
            "How many words are there in",
        ),
        lambda text: str(len(text.split())),
    ),
    (
        0.6,
        (
            "Write these words as a list with commas",
            "Put commas between the words",
            "Join the words with commas",
            "Comma list of",
        ),
        lambda text: ", ".join(text.split()),
    ),
)
# Instructions that take one word.
WORD_TASKS: tuple[tuple[float, tuple[str, ...], Callable[[str], str]], ...] = (
    (
        2.0,
        (
            "Spell {x} with dashes.",
            "Spell the word {x} with dashes.",
            "Spell: {x}",
            "Spell {x}.",
            "How do you spell {x}?",
            "Please spell {x}.",
            "Can you spell {x}?",
            "Spell the word {x}.",
        ),
        "-".join,
    ),
    (
        0.7,
        (
            "What is the first letter of {x}?",
            "First letter of {x}?",
            "Which letter does {x} start with?",
            "What letter does {x} begin with?",
            "Give me the first letter of {x}.",
        ),
        lambda text: text[0],
    ),
    (
        1.2,
        (
            "What is the last letter of {x}?",
            "Last letter of {x}?",
            "Which letter does {x} end with?",
            "What letter does {x} end in?",
            "Give me the last letter of {x}.",
        ),
        lambda text: text[-1],
    ),
)
_TEXT_WEIGHTS = tuple(task[0] for task in TEXT_TASKS)
_WORD_WEIGHTS = tuple(task[0] for task in WORD_TASKS)
ORNAMENTS = ("é", "ü", "ñ", "😊", "👋", "🎉", "日本", "你好", "ß", "ø", "→", "€")


def text(rng: random.Random) -> str:
    """Draw one to five words, at times with capitals, digits, punctuation or letters beyond ASCII."""
    words = [word(rng) for _ in range(pick(rng, (1, 2, 2, 2, 3, 3, 3, 4, 4, 5)))]
    roll = rng.random()
    if roll < 0.08:
        words[-1] = str(rng.randint(0, 999))
    elif roll < 0.14:
        words[0] = name(rng)
    elif roll < 0.18:
        words[-1] = city(rng).split()[-1]
    elif roll < 0.24:
        place = rng.randrange(len(words))
        words[place] = pick(rng, ORNAMENTS) if rng.random() < 0.5 else words[place] + pick(rng, ORNAMENTS)
    elif roll < 0.34:
        words[0] = words[0].capitalize()
        return " ".join(words) + pick(rng, (".", "!", "?", "")) if rng.random() < 0.6 else ", ".join(words)
    elif roll < 0.38:
        words = [entry.capitalize() for entry in words]
    return " ".join(words)


def ask(rng: random.Random) -> Turn:
    """Ask for a text to be repeated or changed; what is held out is the text."""
    if rng.random() < 0.33:
        return _on_word(rng)
    instructions, change = _task(rng)
    body = _body(rng, instructions, change)
    question = _attach(rng, pick(rng, instructions), body)
    return Turn(KIND, question, change(body), body)


def exercise(rng: random.Random) -> list[Segment]:
    """Do one task to many texts, one a line: denser than chats, and only the results are to be written."""
    instructions, change = (
        _task(rng) if rng.random() < 0.55 else rng.choices(WORD_TASKS, _WORD_WEIGHTS)[0][1:]
    )
    on_words = "{x}" in instructions[0]
    segments: list[Segment] = []
    read = pick(rng, instructions).format(x="each word").rstrip(".:?") + ":"
    while len(segments) < 24:
        body = pick(rng, WORDS) if on_words else _body(rng, instructions, change)
        if on_words or not is_held_out(body):
            gap = pick(rng, ("", " "))  # the same word is another token behind a space
            segments += [(f"{read}\n{gap}{body}:", False), (f" {change(body)}", True)]
            read = ""
    return segments[: pick(rng, (8, 16, 24))]


def _task(rng: random.Random) -> Task:
    return rng.choices(TEXT_TASKS, _TEXT_WEIGHTS)[0][1:]


def _body(rng: random.Random, instructions: tuple[str, ...], change: Callable[[str], str]) -> str:
    """Draw a text that suits the task."""
    body = text(rng)
    if change in (str.upper, str.lower):  # the letters of a word have to be known: everyday words only
        body = " ".join(pick(rng, WORDS) for _ in range(pick(rng, (1, 2, 2, 3))))
    if instructions is _REVERSED:
        body = " ".join(pick(rng, WORDS) for _ in range(pick(rng, (2, 2, 3))))
    if change is str.lower:
        body = pick(rng, (body.title(), body.title(), body.title(), body.capitalize(), body.upper()))
    if " of" in instructions[0] or "words" in instructions[0]:
        body = body.replace(",", "").rstrip(".!?")
    return body


def _attach(rng: random.Random, instruction: str, body: str) -> str:
    """Put the text behind the instruction, the ways people do."""
    if rng.random() < 0.12:
        instruction = instruction.lower()
    if instruction.lower().endswith((" of", " in")):
        ask_mark = pick(rng, ("?", "", ""))
        return pick(rng, ('{i} "{x}"{m}', "{i} '{x}'{m}", "{i}: {x}", "{i} {x}", '{i}: "{x}"')).format(
            i=instruction, x=body, m=ask_mark
        )
    form = pick(rng, ("{i}: {x}", "{i}: {x}", "{i}: {x}", '{i}: "{x}"', "{i}: '{x}'", "{i}:\n{x}", "{i} {x}"))
    return pad(rng, form.format(i=instruction, x=body))


def _on_word(rng: random.Random) -> Turn:
    _, instructions, change = rng.choices(WORD_TASKS, _WORD_WEIGHTS)[0]
    body = pick(rng, WORDS) if rng.random() < 0.92 else pick(rng, NAMES)
    shown = pick(rng, ("{x}", "{x}", '"{x}"', "'{x}'")).format(x=body)
    question = pick(rng, instructions).format(x=shown)
    if rng.random() < 0.15:
        question = question.rstrip("?.")
    # An everyday word may be one token, whose letters must be learned: here the wording is held out.
    return Turn(KIND, pad(rng, question), change(body), question)
