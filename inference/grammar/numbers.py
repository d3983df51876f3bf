"""Numbers in schemas: which of them llguidance, whose numbers are 64-bit floats, takes for what they are."""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from fractions import Fraction

from inference.grammar.fault import GrammarFault, excerpt, join
from inference.grammar.keywords import BOUNDS, COUNTS, LITERALS, Node, scalars
from inference.grammar.tree import SchemaTree
from inference.grammar_limits import GrammarLimits

MAX_FLOAT = int(sys.float_info.max)
# llguidance clamps the bounds of integers to 64 bits: a lower one beyond lets smaller numbers pass, and where
# an upper one becomes the least number it recurses until the process ends; a float's width is left beside
CLAMPED = 2**63 - 2**11
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def check_numbers(at: str, node: Node, limits: GrammarLimits) -> None:
    """Raise GrammarFault for numbers in whose place llguidance would take others."""
    for key in node.keys() & BOUNDS:
        if is_clamped(key, node[key]):
            raise _clamped(key, node[key], join(at, key))
        if is_other_number(key, node[key]):
            raise _inexact(node[key], join(at, key))
    for key in LITERALS:
        if key in node:
            for pointer, value in scalars(node[key], join(at, key)):
                if isinstance(value, (int, float)) and not is_literal(value):
                    raise _inexact(value, pointer)
    for key in node.keys() & COUNTS:
        if key.startswith("min") and node[key] > limits.count:
            raise GrammarFault(f"`{key}` must be <= {limits.count}. Given: {node[key]}", join(at, key))


def check_multiples(tree: SchemaTree, limits: GrammarLimits) -> None:
    """Raise GrammarFault if remainders take too many states: one for each unit of each `multipleOf`.

    Where schemas are joined their least common multiple counts, and no fuel of llguidance's is spent
    on them: `multipleOf` 999983 and 999985 in one object take half a minute.
    """
    total, common = 0, Fraction(1)
    for place in tree.places:
        if not isinstance(place.schema, dict) or "multipleOf" not in place.schema:
            continue
        value = place.schema["multipleOf"]
        step = Fraction(Decimal(str(value)))
        common = Fraction(
            math.lcm(common.numerator, step.numerator), math.gcd(common.denominator, step.denominator)
        )
        total += states(step)
        if max(total, states(common)) > limits.remainders:
            raise GrammarFault(
                f"{excerpt(str(value))} makes too many remainders to keep apart: all `multipleOf` together, "
                f"and their least common multiple, must make <= {limits.remainders}. "
                "Leave it out, or use rounder numbers",
                join(place.pointer, "multipleOf"),
            )


def states(step: Fraction) -> int:
    """Return how many remainders a lexer tells apart: the number without its decimal point."""
    scaled, limit = abs(step), 400  # more decimals than a float has
    while scaled.denominator != 1 and limit:
        scaled, limit = scaled * 10, limit - 1
    return scaled.numerator


def is_other_number(key: str, value: int | float) -> bool:
    """Return whether llguidance would take another bound in the place of this one."""
    return is_clamped(key, value) or not (is_exact(value) or is_tightened(key, value))


def is_exact(value: int | float) -> bool:
    """Return whether a 64-bit float holds a number, and is written as that number again.

    2**63 is held, and written with as few digits as tell floats apart: 9223372036854776000.
    """
    if isinstance(value, float):
        return math.isfinite(value)
    return abs(value) <= MAX_FLOAT and Decimal(repr(float(value))) == value


def is_literal(value: int | float) -> bool:
    """Return whether a number can be meant as it is: a larger float was an integer before it was parsed."""
    return is_exact(value) and (isinstance(value, int) or abs(value) < 2**64)


def is_clamped(key: str, value: int | float) -> bool:
    """Return whether a bound leaves no number of 64 bits, and is made one that does."""
    if key in UPPER:
        return value <= -CLAMPED
    return key in LOWER and value >= CLAMPED


def is_tightened(key: str, value: int | float) -> bool:
    """Return whether the float nearest to a bound lets nothing pass that the bound doesn't."""
    if abs(value) > MAX_FLOAT or key == "multipleOf":
        return False
    nearest = (float(value), Decimal(repr(float(value))))  # as it is compared, and as it is written
    if key in UPPER:
        return all(each <= value for each in nearest)
    return all(each >= value for each in nearest)


def _inexact(value: int | float, at: str) -> GrammarFault:
    return GrammarFault(
        f"{excerpt(str(value))} is no number that 64-bit floats hold exactly. Give such numbers as strings",
        at,
    )


def _clamped(key: str, value: int | float, at: str) -> GrammarFault:
    allowed = f"> -{CLAMPED}" if key in UPPER else f"< {CLAMPED}"
    return GrammarFault(
        f"`{key}` must be {allowed}, as integers have 64 bits. Given: {excerpt(str(value))}. "
        "Give such numbers as strings",
        at,
    )
