"""Answers of models that think first: calls behind their thoughts are calls, and none within them is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.tools.formats import ToolFormat, with_tokens
from inference.tools.grammar import call_grammar
from inference.tools.known_formats import FORMATS, detect
from inference.tools.prompt import leaves_thought_open
from inference.tools.types import TextPart
from tests.unit.inference_tools.answers import (
    SILENT,
    SPECIAL,
    THOUGHTS,
    Call,
    Piece,
    calls_of,
    events,
    pieces_of,
    plain,
    special,
    text_of,
    use,
    whole,
    written,
)
from tests.unit.inference_tools.grammars import CALL, FORMS, accepts, compiled
from tests.unit.inference_tools.grammars import use as grammar_use
from tests.unit.inference_tools.templates import needs_corpus, prompt, template

WEATHER = Call("get_weather", '{"city": "Paris"}')
BARE = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
THINKING, ENDED = THOUGHTS.values()

GOLDEN: list[tuple[str, ToolFormat, list[Piece], str, list[Call]]] = [
    (
        "DeepSeek R1's distillate, whose prompt opens the thought",
        special("generic"),
        ['The user wants {"name": "get_weather"}.\n</think>\n\n', BARE],
        'The user wants {"name": "get_weather"}.\n</think>',
        [WEATHER],
    ),
    (
        "thoughts between special tokens",
        with_tokens(FORMATS["generic"], SPECIAL | THOUGHTS),
        [THINKING, "Hm.\n", ENDED, f"\n\n{BARE}"],
        "Hm.\n",
        [WEATHER],
    ),
    (
        "several bare calls of Llama's",
        plain("llama3"),
        [f"<think>Hm.</think>{BARE}; {BARE}"],
        "<think>Hm.</think>",
        [WEATHER, WEATHER],
    ),
    (
        "QwQ, with a word about calls in its thoughts",
        special("hermes"),
        [
            "<think>\nI could write <tool_call>\n or not.\n</think>\n\n",
            *written(special("hermes"), [WEATHER]),
        ],
        "<think>\nI could write <tool_call>\n or not.\n</think>",
        [WEATHER],
    ),
]

TEXTS: list[tuple[ToolFormat, list[Piece]]] = [
    (special("generic"), [f"Hm.</think> So: {BARE}"]),
    (special("generic"), ['Hm.</think>{"name": "nobody", "parameters": {}}']),
    (special("generic"), ["Hm.</thi", SILENT, f"nk>{BARE}"]),
    (special("generic"), ["Hm.", SILENT, f"</think>{BARE}"]),
    (special("generic"), ["Hm.</think> \n"]),
    (special("generic"), ['Hm.</think>{"name": "get_wea']),
    (special("mistral"), [f"Hm.</think>{BARE}"]),
    (special("hermes"), ["<think>Like ", *written(special("hermes"), [WEATHER]), " "]),
    (special("hermes"), ["<think>a</think>b<think>c <tool_call>"]),
    (plain("mistral_args"), ["<think>[TOOL_CALLS]add[ARGS]{}"]),
]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("fmt", "pieces", "text", "calls"), [row[1:] for row in GOLDEN], ids=[row[0] for row in GOLDEN]
)
def test_transcripts_are_read_whole_however_they_are_cut(
    fmt: ToolFormat, pieces: list[Piece], text: str, calls: list[Call], size: int
) -> None:
    parts = whole(fmt, use(), events(pieces_of(pieces, [size])))
    assert (text_of(parts), calls_of(parts)) == (text, [call.told for call in calls])


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(("fmt", "pieces"), TEXTS)
def test_what_only_resembles_a_call_stays_text(fmt: ToolFormat, pieces: list[Piece], size: int) -> None:
    parts = whole(fmt, use(), events(pieces_of(pieces, [size])))
    assert parts == (TextPart("".join(piece for piece in pieces if isinstance(piece, str))),)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("pieces", "text", "calls"),
    [
        (["<tool_call>? No.</think>", *written(special("hermes"), [WEATHER])], "<tool_call>? No.</think>", 1),
        (["So <tool_call>\n"], "So <tool_call>\n", 0),
        (["So ", SILENT, *written(special("hermes"), [WEATHER])], "So", 1),
    ],
)
def test_a_sign_in_the_thought_that_the_prompt_left_open_is_a_word(
    pieces: list[Piece], text: str, calls: int, size: int
) -> None:
    thinking = replace(use(), thinking=True)
    parts = whole(special("hermes"), thinking, events(pieces_of(pieces, [size])))
    assert (text_of(parts), calls_of(parts)) == (text, [WEATHER.told] * calls)


@needs_corpus
def test_the_distillates_of_deepseek_r1_can_call() -> None:
    chat = template("DeepSeek-R1-Distill-Llama-8B")
    shown = prompt(chat, [{"role": "user", "content": "Weather?"}])
    assert shown is not None
    assert shown.endswith("<think>\n")
    fmt = with_tokens(detect(chat.habits(has_tools=True).sample), SPECIAL)
    pieces = ["Hm.</think>\n\n", *written(fmt, [WEATHER])]
    assert calls_of(whole(fmt, replace(use(), thinking=True), events(pieces))) == [WEATHER.told]


@needs_corpus
@pytest.mark.parametrize(
    ("part", "is_open"),
    [("DeepSeek-R1-Distill-Llama-8B", True), ("Qwen3.5-4B", True), ("DeepSeek-R1-Distill-Qwen-32B", False)],
)
def test_the_prompts_of_some_models_leave_a_thought_open(part: str, is_open: bool) -> None:
    shown = prompt(template(part), [{"role": "user", "content": "What is <think>?"}])
    assert shown is not None
    assert leaves_thought_open(shown) == is_open


HEAD, REST = '{"name": "add"', ', "parameters": {"a": 1}}'


@pytest.mark.parametrize(
    ("form", "pieces", "accepted"),
    [
        ("generic", [f"Hm.</think>\n\n{HEAD}{REST}\n{HEAD}{REST}"], True),
        ("generic", [f'Hm.</think>{HEAD}, "parameters": {{"a": 10}}}}'], False),
        ("generic", [f"Hm.</think>{HEAD} So"], False),
        ("generic", ['Hm.</think>{"name": "address"} So'], True),
        ("generic", [f"Hm.</think> So: {HEAD}"], True),
        ("generic", [f'{{"name": "Bob"}}.</think>{{"name": "Eve"}}</think>{HEAD} So'], False),
        ("generic", ["Hm.", 0, f"</think>{HEAD}"], True),
        ("generic with special thoughts", ["Hm.", 0, "So", 1, f"\n{HEAD}{REST}"], True),
        ("generic with special thoughts", ["Hm.", 1, f" {HEAD} So"], False),
        ("generic with special thoughts", ["Hm.", 1, 0, f"{HEAD} So"], True),
        ("llama3", [f"Hm.</think>{HEAD}{REST}; {HEAD}{REST}"], True),
        ("llama3", [f"Hm.</think>{HEAD} So"], False),
        ("llama3", ["Hm.</think>", 1, f"{HEAD}{REST}"], True),
    ],
)
def test_a_call_without_an_opening_may_follow_a_thought(
    form: str, pieces: list[Piece], accepted: bool
) -> None:
    assert accepts(compiled(call_grammar(FORMS[form], grammar_use())), pieces) == accepted


@pytest.mark.parametrize(
    ("thinking", "pieces", "is_text"),
    [
        (False, ["<think>a <tool_call> b</think>c"], True),
        (False, ["<think>a <tool_call>\n{"], True),
        (False, ["<think>a</think> b <think><tool_call>"], True),
        (False, ["<think>a</think><tool_call>b"], False),
        (False, ["<think>a", 0, "<tool_call>b"], False),  # nothing goes on behind a special token
        (False, ["a</think><tool_call>b"], False),
        (True, ["a <tool_call> b"], True),
        (True, ["a</think>b<think><tool_call>"], True),
        (True, ["a</think><tool_call>b"], False),
        (True, ["a", 0, "<tool_call>b"], False),
        (True, ["a", 0, "b<think><tool_call>c"], True),
    ],
)
def test_a_sign_within_a_thought_is_a_word(thinking: bool, pieces: list[Piece], is_text: bool) -> None:
    fmt, tool_use = FORMS["hermes"], replace(grammar_use(), thinking=thinking)
    grammar = compiled(call_grammar(fmt, tool_use))
    assert accepts(grammar, pieces) == is_text
    assert accepts(grammar, [*pieces, "</think>", *written(fmt, [CALL])]) == is_text
