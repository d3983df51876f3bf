"""Grammars of Lark as regular expressions, held against Python's reading of these."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from inference.grammar.regular import COMMON, MOST, expression

RECORDED = Path(__file__).parents[3] / "contract" / "recorded" / "codex.json"
CODE = re.compile(r"\\x\{([0-9a-f]+)\}")


def fits(grammar: str, text: str) -> bool:
    found = expression(grammar)
    assert found is not None, grammar
    python = CODE.sub(lambda code: re.escape(chr(int(code[1], 16))), found)
    return re.fullmatch(python, text) is not None


@pytest.mark.parametrize(
    ("grammar", "texts", "others"),
    [
        ('start: "a" "b"', ["ab"], ["a", "b", "abb"]),
        ('start: "a" | "b" // or\n  | "c"\n', ["a", "b", "c"], ["ab", ""]),
        ('start: one+ [two] three?\none: "1"\ntwo: "2"\n?three.3: "3"', ["1", "113", "123"], ["2", "132"]),
        ('start: ("x" | "y")* "." -> end', [".", "xy."], ["x", "z."]),
        ('start: "a"~2..3 "b"~2', ["aabb", "aaabb"], ["abb", "aab"]),
        ("start: /a.b/s /c/i", ["a\nbC", "a.bc"], ["abc"]),
        ('start: "Ab"i "Ab"', ["aBAb", "AbAb"], ["AbaB"]),
        ('start: "0".."7" "a" .. "c"', ["0a", "7c"], ["8a", "0d"]),
        (r'start: "\"\\\n.*" /\/\//', ['"\\\n.*//'], ["", '"\\\nx//']),
        ("start: (A | )\nA: B\nB: /[a-c]/", ["", "b"], ["d"]),
        (
            "%import common.INT -> N // numbers\n%import common (LF, CNAME)\nstart: N LF CNAME",
            ["12\na_1"],
            ["1a"],
        ),
        ('!start: _a\n_a: "x"', ["x"], ["y"]),
        ('start: "a"\n# a comment with "quotes\n', ["a"], []),
    ],
)
def test_a_grammar_without_loops_is_an_expression(grammar: str, texts: list[str], others: list[str]) -> None:
    assert [text for text in texts if not fits(grammar, text)] == []
    assert [text for text in others if fits(grammar, text)] == []


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "(" start? ")"',
        'start: a\na: b\nb: "x" a?',
        'start: "a"\n%ignore " "',
        'start: pair{"a"}\npair{x}: x x',
        "start: missing",
        'other: "a"',
        'start: "a"\nstart: "b"',
        'start: ("a"',
        'start: "a" )',
        "start: /^a$/",
        r"start: /a\Z/",
        "start: /a/x",
        r"start: /[a-\d]/",
        "start: %json {}",
        'start: "ab".."c"',
        "%import common.MISSING\nstart: MISSING",
        "%import python.NAME\nstart: NAME",
        "%import common.\nstart: INT",
        '"a"',
        "",
        "start: " + "(" * 5000 + '"a"' + ")" * 5000,
        "start: a a\na: b b\nb: c c\nc: /" + "x" * (MOST // 8) + "/",
        'start: "\\ud"',
        "start: a~999999999 " + "a " * 5000 + "\na: /" + "x" * 9000 + "/",
        'start: "' + "x" * MOST + '"',
    ],
)
def test_what_is_no_expression_or_no_short_one_is_none(grammar: str) -> None:
    assert expression(grammar) is None


def test_the_terminals_that_are_imported_are_expressions() -> None:
    for name, written in COMMON.items():
        re.compile(written)
        assert expression(f"%import common.{name}\nstart: {name}") == f"(?:{written})"


def test_codexs_patches_are_told_apart() -> None:
    tools = json.loads(RECORDED.read_text())["tools"]
    (grammar,) = (tool["format"]["definition"] for tool in tools if tool["type"] == "custom")
    begin, end = "*** Begin Patch\n", "*** End Patch"
    change = "*** Update File: a/b.py\n*** Move to: c.py\n@@ def f():\n-x\n+y\n z\n*** End of File\n"
    assert fits(grammar, begin + "*** Add File: ä.txt\n+\n+*** x\n" + change + end + "\n")
    assert fits(grammar, begin + "*** Delete File: a\n" + end)
    assert not fits(grammar, begin + end)
    assert not fits(grammar, begin + "*** Add File: a\nno plus\n" + end)
