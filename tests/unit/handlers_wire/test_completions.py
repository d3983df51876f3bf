from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from handlers.wire import completions as wire
from handlers.wire.completions import Prompt
from handlers.wire.limits import Limits
from inference.errors import InvalidInput
from inference.types import LogprobsMode

LIMITS = Limits(
    max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5, max_n=4, adapters=frozenset({"one", "two"})
)


def ask(prompt: Any, **members: Any) -> wire.Asked:
    body: Any = {"prompt": prompt} | members
    return wire.to_asked(body, LIMITS)


def understand(prompt: Any, **members: Any) -> wire.Completion:
    seeds = count(100)
    asked = ask(prompt, **members)
    prompts = [
        Prompt(given) if isinstance(given, str) else Prompt(f"{given}", given) for given in asked.prompts
    ]
    body: Any = {"prompt": prompt} | members
    return wire.to_completion(body, asked, prompts, LIMITS, id="r", draw=lambda: next(seeds))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_a_prompt_is_texts_or_token_ids_one_or_several(prompt: Any, expected: Any) -> None:
    assert ask(prompt).prompts == expected


@pytest.mark.parametrize(
    ("prompt", "members", "message"),
    [
        ([], {}, "Empty array detected. Do not use an empty array for the prompt."),
        ([[1], []], {}, "`inputs` cannot be empty"),
        ("a", {"n": 0}, "`n` must be > 0 and <= 4. Given: 0"),
        ("a", {"n": 5}, "`n` must be > 0 and <= 4. Given: 5"),
        ("a", {"best_of": 0}, "`best_of` must be > 0 and <= 4. Given: 0"),
        ("a", {"best_of": 5}, "`best_of` must be > 0 and <= 4. Given: 5"),
        ("a", {"best_of": 1, "n": 2}, "`best_of` must be >= `n`. Given: 1 and 2"),
        ("a", {"best_of": 2, "stream": True}, "`best_of` > `n` is not supported when streaming tokens"),
    ],
)
def test_what_can_not_be_answered_is_refused(prompt: Any, members: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        ask(prompt, **members)
    assert str(refusal.value) == message


def test_each_candidate_of_each_prompt_takes_a_place() -> None:
    assert [
        ask(["a", "b"]).sequences,
        ask("a", n=3).sequences,
        ask(["a", "b"], n=2, best_of=4).sequences,
    ] == [
        2,
        3,
        8,
    ]


def test_each_prompt_is_a_request_of_its_own() -> None:
    first, second = understand(["a", "b"], max_tokens=3, stop="x").requests
    assert (first.prompt, second.prompt) == ("a", "b")
    assert first.id != second.id
    assert (first.sampling.seed, second.sampling.seed) == (100, 101)
    assert (first.max_new_tokens, first.stop, first.add_special_tokens) == (3, ("x",), True)
    assert (first.logprobs, first.prompt_ids) == (LogprobsMode.NONE, None)


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({}, False),
        ({"logprobs": None}, False),
        ({"stream": True, "n": 2}, False),
        ({"echo": True}, False),
        ({"echo": True, "max_tokens": 0}, False),
        ({"n": 2, "best_of": 2}, False),
        ({"best_of": 1}, False),
        ({"best_of": 2}, True),
        ({"n": 2, "best_of": 3}, True),
        ({"logprobs": 0}, True),
        ({"logprobs": 2}, True),
        ({"logprobs": 0, "echo": True}, True),
        ({"logprobs": 1, "echo": True, "max_tokens": 0}, True),
    ],
)
def test_log_probabilities_are_computed_where_they_are_told_or_rank(
    members: dict[str, Any], told: bool
) -> None:
    modes = {request.logprobs for request in understand(["a", "b"], **members).requests}
    assert modes == {LogprobsMode.RAW if told else LogprobsMode.NONE}


def test_the_answers_to_a_prompt_go_on_from_its_seed() -> None:
    requests = understand(["a", "b"], n=2, seed=2**64 - 1).requests
    assert [request.prompt for request in requests] == ["a", "a", "b", "b"]
    assert [request.sampling.seed for request in requests] == [2**64 - 1, 0, 2**64 - 1, 0]
    assert len({request.id for request in requests}) == 4


def test_token_ids_are_passed_on_beside_their_text() -> None:
    (request,) = understand([5, 6]).requests
    assert (request.prompt, request.prompt_ids) == ("(5, 6)", (5, 6))


def test_every_member_reaches_the_engine() -> None:
    (request,) = understand(
        "a",
        min_tokens=2,
        max_tokens=3,
        ignore_eos=True,
        min_p=0.5,
        logit_bias={"7": 1},
        logprobs=2,
        echo=True,
    ).requests
    assert (request.min_new_tokens, request.ignore_eos, request.sampling.min_p) == (2, True, 0.5)
    assert (request.sampling.logit_bias, request.top_n_tokens, request.prompt_logprobs) == (
        ((7, 1.0),),
        2,
        True,
    )
    assert request.prompt_top_n_tokens == 2


def test_likeliest_tokens_are_asked_for_where_they_are_told() -> None:
    (plain,), (scored,) = (
        understand("a", logprobs=2).requests,
        understand("a", logprobs=2, echo=True, max_tokens=0).requests,
    )
    assert (plain.top_n_tokens, plain.prompt_top_n_tokens) == (2, 0)
    assert (scored.top_n_tokens, scored.prompt_top_n_tokens) == (0, 2)  # its one token isn't told


def test_without_max_tokens_the_rest_of_the_context_is_used() -> None:
    assert understand("a").requests[0].max_new_tokens is None


@pytest.mark.parametrize("scored", [{}, {"max_tokens": 0, "echo": True, "logprobs": 0}])
def test_an_adapters_name_is_its_own_on_any_way(scored: dict[str, Any]) -> None:
    asked = {"other": None, "tgi": None, None: None, "one": "one"}
    found = {name: understand("a", model=name, **scored).requests[0].adapter for name in asked}
    assert found == asked


def test_a_prompt_is_scored_by_the_one_token_that_is_not_told() -> None:
    scored = understand("a", max_tokens=0, echo=True, logprobs=0)
    assert (scored.scored, scored.requests[0].max_new_tokens) == (True, 1)
    assert not understand("a", max_tokens=1, echo=True).scored


@pytest.mark.parametrize("least", [1, 5])
def test_a_scored_prompt_has_no_text_to_be_of_some_length(least: int) -> None:
    with pytest.raises(InvalidInput) as refusal:
        understand("a", max_tokens=0, echo=True, min_tokens=least)
    assert str(refusal.value) == (
        f"`min_new_tokens` (`min_tokens`) must be <= `max_new_tokens` (`max_tokens`). Given: {least} and 0"
    )


@pytest.mark.parametrize("least", [None, 0])
def test_a_scored_prompt_may_say_that_its_text_has_no_shortest_length(least: int | None) -> None:
    (request,) = understand("a", max_tokens=0, echo=True, min_tokens=least).requests
    assert (request.min_new_tokens, request.max_new_tokens) == (0, 1)


def test_what_else_is_wrong_with_a_scored_prompt_comes_first() -> None:
    with pytest.raises(InvalidInput, match=r"^`top_p`"):
        understand("a", max_tokens=0, echo=True, min_tokens=5, top_p=0)


def test_requests_are_told_apart_by_prompt() -> None:
    asked = understand(["a", "a"], n=2)
    assert asked.by_prompt == (asked.requests[:2], asked.requests[2:])


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"max_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"repetition_penalty": 0}, "`repetition_penalty` must be strictly positive"),
        ({"frequency_penalty": 3}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ({"logprobs": 6}, "`logprobs` must be >= 0 and <= 5. Given: 6"),
        ({"min_p": 2}, "`min_p` must be >= 0.0 and <= 1.0"),
    ],
)
def test_a_value_out_of_range_is_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        understand("a", **members)
    assert str(refusal.value) == message
