"""Small sums: addition and subtraction of numbers up to twenty, and the multiplication table."""

from __future__ import annotations

import random

from codegen.embedded.turns import Turn, pick, vary

KIND = "arithmetic"
SIGNS = {"+": ("plus", "added to"), "-": ("minus",), "*": ("times", "multiplied by")}
BARE = (
    "{a}{s}{b}=",
    "{a} {s} {b} =",
    "{a}{s}{b}",
    "{a} {s} {b}",
    "{a}{s}{b}=?",
    "{a} {s} {b} = ?",
    "{a}{s}{b} = ",
)
WORDED = (
    "What is {a} {s} {b}?",
    "What's {a} {w} {b}?",
    "What is {a} {w} {b}?",
    "How much is {a} {s} {b}?",
    "How much is {a} {w} {b}?",
    "Calculate {a} {s} {b}.",
    "Compute {a} {s} {b}.",
    "Please calculate {a} {w} {b}.",
    "{a} {w} {b}?",
    "Solve {a}{s}{b}.",
    "Can you tell me what {a} {w} {b} is?",
    "What does {a} {w} {b} equal?",
    "What do you get for {a}{s}{b}?",
    "What is {a}{s}{b}?",
    "Tell me the result of {a} {s} {b}.",
    "What is the answer to {a} {s} {b}?",
    "Please work out {a} {s} {b}.",
)
BY_NAME = {
    "+": ("What is the sum of {a} and {b}?", "Add {a} and {b}.", "Add {b} to {a}."),
    "-": ("Subtract {b} from {a}.", "What is the difference between {a} and {b}?", "Take {b} away from {a}."),
    "*": ("What is the product of {a} and {b}?", "Multiply {a} by {b}."),
}
ONLY = (" Answer with the number only.", " Just the number.", " Only give the number.")


def problem(rng: random.Random) -> tuple[int, str, int, int]:
    """Draw two operands and a sign, and work out the result."""
    roll = rng.random()
    if roll < 0.2:
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        return a, "*", b, a * b
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    if rng.random() < 0.5:
        return a, "+", b, a + b
    return max(a, b), "-", min(a, b), abs(a - b)


def ask(rng: random.Random) -> Turn:
    """Ask for a sum, bare or in words; the worded answer restates the sum before solving it."""
    a, sign, b, result = problem(rng)
    shown = "x" if sign == "*" and rng.random() < 0.4 else sign
    values = {"a": a, "b": b, "s": shown, "w": pick(rng, SIGNS[sign])}
    if rng.random() < 0.3:
        question, answer = pick(rng, BARE).format(**values), str(result)
    else:
        pattern = pick(rng, WORDED if rng.random() < 0.75 else BY_NAME[sign])
        question, answer = vary(rng, pattern.format(**values)), f"{a} {sign} {b} = {result}"
        if rng.random() < 0.12:
            question, answer = question + pick(rng, ONLY), str(result)
    return Turn(KIND, question, answer, question)
