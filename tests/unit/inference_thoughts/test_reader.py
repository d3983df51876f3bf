from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.thoughts.splitters import splitter_of
from inference.thoughts.types import Place
from inference.tools.formats import with_tokens
from inference.tools.known_formats import FORMATS
from inference.tools.types import CallArguments, CallStart, ToolUse
from tests.unit.inference_thoughts.answers import SPECIAL, cut, events, known, letters, read, reader, said
from tests.unit.inference_tools.answers import calls_of, use

ANSWERS = [  # (format, place, answer, thought, words)
    ("think", Place.START, "<think>\nHm.\n\nWell.\n</think>\n\nYes.", "Hm.\n\nWell.", "Yes."),
    ("think", Place.START, "\n<think>Hm</think>Yes", "Hm", "Yes"),
    ("think", Place.START, "<think>\n\n</think>\n\n Yes", "", "Yes"),
    (
        "think",
        Place.THOUGHT,
        "Hm </thin> x\n</think>\n\nYes </think>",
        "Hm </thin> x",
        "Yes </think>",
    ),
    ("think", Place.THOUGHT, "Hm, and cut", "Hm, and cut", ""),
    ("think", Place.THOUGHT, "Hm</thi", "Hm</thi", ""),
    ("think", Place.START, "  Yes <think>no</think>", "", "  Yes <think>no</think>"),
    ("think", Place.START, "<thin", "", "<thin"),
    ("think", Place.START, " \n", "", " \n"),
    ("think", Place.START, "<think>", "", ""),
    ("think", Place.WORDS, "<think>Yes</think>", "", "<think>Yes</think>"),
    ("mistral", Place.START, "[THINK]Hm \n[/THINK] Yes", "Hm", "Yes"),
    ("mistral", Place.START, "Yes[THINK]", "", "Yes"),
    ("mistral", Place.START, "<|im_start|> [THINK]Hm<|im_start|>m", "Hmm", ""),
    ("gemma", Place.START, "<|channel>thought\nHm\n<channel|>Yes", "Hm", "Yes"),
    ("gemma", Place.START, "<|channel>thou<channel|>Yes", "thou", "Yes"),
    ("gemma", Place.THOUGHT, "Hm<channel|>Yes", "Hm", "Yes"),
    ("seed", Place.START, "<seed:think>Hm</seed:think>Yes", "Hm", "Yes"),
    (
        "harmony",
        Place.START,
        "<|channel|>analysis<|message|>Hm <think>.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes<|return|>",
        "Hm <think>.",
        "Yes",
    ),
    ("harmony", Place.START, "<|channel|>final<|message|>Yes\n", "", "Yes\n"),
    (
        "harmony",
        Place.START,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>Well.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes",
        "Hm.\n\nWell.",
        "I look.\n\nYes",
    ),
    ("harmony", Place.START, "<|channel|>analysis<|message|>Hm, and cut", "Hm, and cut", ""),
    ("harmony", Place.START, "<|channel|>analysis<|message|>Hm<|end|><|start|>assist", "Hm", ""),
    ("harmony", Place.START, "No channel at all", "", "No channel at all"),
    ("harmony", Place.START, " to=" + "x" * 300, "", " to=" + "x" * 300),
    ("harmony", Place.WORDS, "es.", "", "es."),
    ("harmony", Place.THOUGHT, "m<|end|><|start|>assistant<|channel|>final<|message|>Yes", "m", "Yes"),
]


@pytest.mark.parametrize(("name", "place", "answer", "thought", "words"), ANSWERS)
def test_thoughts_are_told_from_words(name: str, place: Place, answer: str, thought: str, words: str) -> None:
    fmt = known(name)
    assert said(read(fmt, cut(answer), place)) == (thought, words)
    assert said(read(fmt, letters(cut(answer)), place)) == (thought, words)


@given(st.text("<think>/ \nab", max_size=40), st.data())
def test_it_is_the_same_however_the_tokens_cut_it(answer: str, data: st.DataObject) -> None:
    found = re.match(r"\s*<think>(?P<thought>.*?)(?P<end></think>\s*|$)(?P<words>.*)", answer, re.DOTALL)
    expected = (found["thought"].strip(), found["words"]) if found else ("", answer)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(answer)))) | {0, len(answer)})
    pieces = [answer[a:b] for a, b in pairwise(cuts)]
    assert said(read(known("think"), pieces)) == expected


@pytest.mark.parametrize(
    ("name", "place", "pieces", "counted"),
    [
        ("think", Place.START, ["<think>", "\n", "Hm", "\n", "</think>", "\n\n", "Yes", "."], 6),
        ("think", Place.START, ["<th", "ink>", "Hm", "</think>Yes", "."], 4),
        ("think", Place.START, ["<th", "e", "."], 0),
        ("think", Place.START, ["\n", "Yes"], 0),
        ("think", Place.THOUGHT, ["Hm", "</think>", "Yes"], 2),
        ("mistral", Place.START, ["[THINK]", "Hm", "[/THINK]", "Yes"], 3),
        ("harmony", Place.START, ["Hello", " there"], 0),
        ("harmony", Place.START, ["<|channel|>", "final", "<|message|>", "Yes"], 0),
        ("harmony", Place.START, ["<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>"], 4),
    ],
)
def test_tokens_of_thoughts_are_counted(name: str, place: Place, pieces: list[str], counted: int) -> None:
    reading = reader(known(name), place)
    for event in events(SPECIAL.get(piece, piece) for piece in pieces):
        reading.push(event)
    assert reading.thought_tokens == counted


def test_tokens_that_name_a_channel_are_none_of_what_is_said() -> None:
    reading, told = reader(known("harmony")), []
    for event in events(
        cut("<|channel|>final<|message|>Yes<|end|><|start|>assistant<|channel|>final<|message|>No")
    ):
        known_before = reading.untold_tokens
        reading.push(event)
        told += [event.delta] if reading.untold_tokens == known_before else []
    assert told == ["Yes", "No"]
    assert reading.thought_tokens == 0


@pytest.mark.parametrize("piece", [" " * 16, "\n"])
def test_white_space_without_end_takes_time_in_proportion(piece: str) -> None:
    def seconds(count: int) -> float:
        splitter = splitter_of(known("think"), Place.THOUGHT)
        began = time.process_time()
        for _ in range(count):
            splitter.push(piece)
        return time.process_time() - began

    assert seconds(64_000) < 2  # quadratic it took a minute
    assert said(read(known("think"), [piece] * 200)) == ("", piece * 200)


def test_so_much_white_space_is_said() -> None:
    splitter = splitter_of(known("think"), Place.START)
    shown = "".join(splitter.push(" " * 16).words for _ in range(100))
    assert shown == " " * 1600


def test_special_tokens_keep_their_place_behind_text_that_comes_late() -> None:
    fmt, reading = known("mistral"), reader(known("mistral"))
    late = [(0, "[THINK]", ""), (1, "Hm", ""), (0, "[/THINK]", ""), (1, "Yes", "HmYes")]
    made = [
        replace(event, delta=delta)
        for event, (_, _, delta) in zip(events(cut("[THINK]Hm[/THINK]Yes")), late, strict=True)
    ]
    assert said(part for event in made for part in reading.push(event)) == ("Hm", "Yes")
    assert fmt.is_hidden


MISTRAL = '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]'
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
BARE = '{"name": "add", "parameters": {"a": 1}}'


@pytest.mark.parametrize(
    ("thoughts", "calls", "required", "answer", "thought", "words"),
    [
        ("think", "hermes", False, f"<think>{HERMES}?</think>\nI add.\n{HERMES}", f"{HERMES}?", "I add."),
        ("think", "hermes", True, f"<think>Hm</think>\n{HERMES}", "Hm", ""),
        ("think", "generic", False, f"<think>Hm {BARE}</think>\n\n{BARE}", f"Hm {BARE}", ""),
        ("think", "generic", True, f"<think>Hm</think>\n\n{BARE}", "Hm", ""),
        ("mistral", "mistral", False, f"[THINK]Hm[/THINK]So{MISTRAL}", "Hm", "So"),
        # The sign of calls is meant where it is a token of its own, be it in an open thought
        ("mistral", "mistral", False, f"[THINK]Hm{MISTRAL}", "Hm", ""),
    ],
)
def test_calls_behind_thoughts_are_read(
    thoughts: str, calls: str, required: bool, answer: str, thought: str, words: str
) -> None:
    tools: ToolUse = use(required=required)
    pieces = cut(answer)
    for given_pieces in (pieces, letters(pieces)):
        parts = read(
            known(thoughts), given_pieces, calls=(with_tokens(FORMATS[calls], {"[TOOL_CALLS]": 20}), tools)
        )
        assert said(parts) == (thought, words)
        (call,) = calls_of(parts)
        assert (call.name, call.arguments) == ("add", '{"a":1}')
    assert any(isinstance(part, CallStart | CallArguments) for part in parts)
