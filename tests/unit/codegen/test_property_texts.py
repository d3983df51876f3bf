"""What an answer's texts don't have in common with their request is told: each rule, kept and broken."""

from __future__ import annotations

from typing import Any

import pytest

from codegen.property_texts import choice_problems, generated_problems, token_problems

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
COUNTED = {"stream_options": {"continuous_usage_stats": True}}
LONG = "b" * 200  # longer than a token
SEED = {"seed": 3, "do_sample": True}
TOKENS = [
    {"id": 0, "text": "", "start": 0, "stop": 0, "special": True},
    {"id": 1, "text": "é", "start": 0, "stop": 2, "special": False},
    {"id": 2, "text": "a", "start": 2, "stop": 3, "special": False},
]


def choice(text: str, index: int = 0, logprobs: Any = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": "stop"}


def message(text: str) -> dict[str, Any]:
    return {"index": 0, "message": {"content": text}, "logprobs": None, "finish_reason": "stop"}


def chunk(text: str, usage: Any = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "logprobs": None}], "usage": usage}


@pytest.mark.parametrize(
    ("body", "right", "wrong"),
    [
        ({"prompt": "A", "n": 2}, [choice("a"), choice("b", 1)], [choice("a"), choice("b")]),
        ({"prompt": "A", "echo": True}, [choice("Ab")], [choice("b")]),
        (
            {"prompt": ["A", "B"], "echo": True, "n": 2},
            [choice("A"), choice("A", 1), choice("B", 2), choice("B", 3)],
            [choice("A"), choice("B", 1), choice("A", 2), choice("B", 3)],
        ),
        ({"prompt": "A", "logprobs": 0}, [choice("a", logprobs={})], [choice("a")]),
        ({"prompt": "A"}, [choice("a")], [choice("a", logprobs={})]),
        ({"messages": [], "logprobs": False}, [message("a")], [{**message("a"), "logprobs": {}}]),
        ({"prompt": "A", "stop": "x"}, [choice("a")], [choice("ax")]),
        ({"prompt": "Ax", "stop": ["x"], "echo": True}, [choice("Axb")], [choice("Axbx")]),
        ({"messages": [], "stop": ["y", "x"]}, [message("a")], [message("axb")]),
    ],
)
def test_choices_belong_to_their_request(body: Any, right: Any, wrong: Any) -> None:
    assert list(choice_problems(body, {"choices": right}, None)) == []
    assert len(list(choice_problems(body, {"choices": wrong}, None))) >= 1


@pytest.mark.parametrize(
    ("body", "right", "wrong"),
    [
        (COUNTED, [chunk("a", USAGE), chunk("b", USAGE)], [chunk("a"), chunk("b", USAGE)]),
        ({"stop": "ab"}, [chunk("b"), chunk("a")], [chunk("a"), chunk("b")]),
    ],
)
def test_chunks_belong_to_their_request(body: Any, right: Any, wrong: Any) -> None:
    assert list(choice_problems(body, {}, right)) == []
    assert len(list(choice_problems(body, {}, wrong))) == 1


def details(**changes: Any) -> dict[str, Any]:
    told = {"finish_reason": "length", "generated_tokens": 1, "seed": None, "tokens": [{"text": "a"}]}
    return told | changes


@pytest.mark.parametrize(
    ("parameters", "right", "wrong"),
    [
        ({"return_full_text": True}, {"generated_text": "Ab"}, {"generated_text": "b"}),
        ({"stop": ["x"]}, {"generated_text": "axb"}, {"generated_text": f"ax{LONG}"}),
        (
            {"stop": ["x"]},
            {"generated_text": "axb", "details": details(tokens=[{"text": "axb"}])},
            {"generated_text": "axb", "details": details()},
        ),
        (
            {"stop": ["x"]},
            {"generated_text": "a", "details": details(finish_reason="eos_token")},
            {"generated_text": "axb", "details": details(finish_reason="eos_token")},
        ),
        (
            {"stop": ["x"]},
            {"generated_text": "ax", "details": details(finish_reason="stop_sequence")},
            {"generated_text": "a", "details": details(finish_reason="stop_sequence")},
        ),
        (
            SEED,
            {"generated_text": "", "details": details(seed=3)},
            {"generated_text": "", "details": details(seed=4)},
        ),
        (SEED, {"generated_text": "", "details": None}, {"generated_text": "", "details": details()}),
        (
            {"seed": 3},
            {"generated_text": "", "details": details()},
            {"generated_text": "", "details": details(seed=4)},
        ),
        (
            {},
            {"generated_text": "", "details": details()},
            {"generated_text": "", "details": details(tokens=[])},
        ),
    ],
)
def test_a_generated_text_belongs_to_its_request(parameters: Any, right: Any, wrong: Any) -> None:
    assert list(generated_problems("A", parameters, right)) == []
    assert len(list(generated_problems("A", parameters, wrong))) == 1


def test_a_text_may_go_on_after_a_stop_sequence_where_it_has_to_be_longer() -> None:
    parameters = {"stop": ["x"], "min_new_tokens": 3}
    assert list(generated_problems("A", parameters, {"generated_text": "axb"})) == []


@pytest.mark.parametrize("asked", [{}, {"return_full_text": True}])
def test_a_prompt_before_its_text_may_have_a_stop_sequence(asked: dict[str, Any]) -> None:
    parameters = {"stop": ["x"], **asked}
    assert list(generated_problems("axb", parameters, {"generated_text": "axbc"})) == []
    assert "goes on" in next(generated_problems("axb", parameters, {"generated_text": f"axbcx{LONG}"}))


def test_a_text_without_its_prompt_has_no_stop_sequence_but_at_its_end() -> None:
    parameters = {"stop": ["x"], "return_full_text": False}
    assert "goes on" in next(generated_problems("axb", parameters, {"generated_text": f"ax{LONG}"}))


def test_tokens_are_the_parts_of_their_text() -> None:
    assert list(token_problems("éa", TOKENS, added=True)) == []
    assert list(token_problems("éa", TOKENS[1:], added=False)) == []
    assert "is added" in next(token_problems("éa", TOKENS, added=False))
    assert "end before" in next(token_problems("éa", TOKENS[:2], added=True))
    assert "not 'é'" in next(token_problems("", TOKENS, added=True))
