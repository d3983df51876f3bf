from __future__ import annotations

from typing import Any

import pytest

from handlers.wire import chat as wire
from handlers.wire.limits import Limits
from inference.errors import InvalidInput, ToolRefused
from inference.types import Grammar, GrammarKind, LogprobsMode, Request

LIMITS = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5, max_n=4)
MESSAGES = [{"role": "user", "content": "Hi"}]


def understand(**members: Any) -> wire.Chat:
    body: Any = {"messages": MESSAGES} | members
    return wire.to_chat(body, LIMITS)


def requests_of(grammar: Grammar | None = None, **members: Any) -> tuple[Request, ...]:
    seeds = iter(range(100, 200))
    chat = understand(**members)
    return wire.to_requests(chat, "<|user|>Hi", id="r", draw=lambda: next(seeds), grammar=grammar)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"temperature": -1}, "`temperature` must be strictly positive"),
        ({"top_p": 0}, "`top_p` must be > 0.0 and < 1.0"),
        ({"top_k": -2}, "`top_k` must be strictly positive"),
        ({"presence_penalty": 3}, "`presence_penalty` must be >= -2.0 and <= 2.0"),
        ({"max_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"stop": ["a"] * 5}, "`stop` supports up to 4 stop sequences. Given: 5"),
        ({"logprobs": True, "top_logprobs": 21}, "`top_logprobs` must be >= 0 and <= 20. Given: 21"),
        ({"top_logprobs": 21}, "`top_logprobs` must be >= 0 and <= 20. Given: 21"),
        ({"model": "m" * 1025}, "`model` must have at most 1024 characters. Given: 1025"),
        ({"n": 0}, "`n` must be > 0 and <= 4. Given: 0"),
        ({"n": 5}, "`n` must be > 0 and <= 4. Given: 5"),
        (
            {"max_tokens": 1, "max_completion_tokens": 2},
            "`max_tokens` is 1 and `max_completion_tokens` is 2: they mean the same, give one",
        ),
    ],
)
def test_a_value_out_of_range_is_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        understand(**members)
    assert str(refusal.value) == message


def test_what_is_wrong_with_tools_is_told_before_values_out_of_range() -> None:
    with pytest.raises(ToolRefused, match="Tool with name g not found"):
        understand(temperature=-1, tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="g")
    with pytest.raises(InvalidInput, match="`temperature`"):
        understand(temperature=-1, response_format={"type": "json", "value": 5})


@pytest.mark.parametrize(
    ("members", "limit"),
    [
        ({}, None),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4, "max_tokens": None}, 4),
        ({"max_completion_tokens": 5, "max_tokens": 5}, 5),
    ],
)
def test_the_limit_of_tokens_has_two_names(members: dict[str, Any], limit: int | None) -> None:
    (request,) = requests_of(**members)
    assert limit == request.max_new_tokens


def test_the_rendered_prompt_gets_no_special_tokens_and_logprobs_are_the_models_own() -> None:
    (request,) = requests_of(logprobs=True, top_logprobs=20, stop=["x"], seed=3)
    assert (request.id, request.prompt, request.add_special_tokens) == ("r", "<|user|>Hi", False)
    assert (request.top_n_tokens, request.logprobs, request.stop) == (20, LogprobsMode.RAW, ("x",))
    assert (request.sampling.sample, request.sampling.seed) == (True, 3)


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({}, False),
        ({"logprobs": None, "top_logprobs": 3}, False),
        ({"logprobs": False, "n": 2, "stream": True}, False),
        ({"logprobs": True}, True),
        ({"logprobs": True, "top_logprobs": 3, "n": 2}, True),
    ],
)
def test_log_probabilities_are_computed_where_they_are_told(members: dict[str, Any], told: bool) -> None:
    modes = {request.logprobs for request in requests_of(**members)}
    assert modes == {LogprobsMode.RAW if told else LogprobsMode.NONE}


def test_each_choice_has_a_request_and_a_seed_of_its_own() -> None:
    assert [request.id for request in requests_of(n=3)] == ["r-0", "r-1", "r-2"]
    assert [request.sampling.seed for request in requests_of(n=3)] == [100, 101, 102]
    assert [request.sampling.seed for request in requests_of(n=3, seed=2**64 - 1)] == [2**64 - 1, 0, 1]
    assert [request.prompt for request in requests_of(n=2)] == ["<|user|>Hi"] * 2


def test_what_other_servers_added_reaches_the_engine() -> None:
    (request,) = requests_of(min_tokens=3, ignore_eos=True, min_p=0.25, logit_bias={"7": -1, "5": 2.5})
    assert (request.min_new_tokens, request.ignore_eos) == (3, True)
    assert (request.sampling.min_p, request.sampling.logit_bias) == (0.25, ((5, 2.5), (7, -1.0)))
    (plain,) = requests_of()
    assert (plain.min_new_tokens, plain.ignore_eos, plain.grammar) == (0, False, None)


def test_all_choices_follow_the_grammar() -> None:
    chat = understand(response_format={"type": "regex", "value": "a+"})
    assert chat.grammar == Grammar(kind=GrammarKind.REGEX, source="a+", member="response_format.value")
    assert [request.grammar for request in requests_of(chat.grammar, n=2)] == [chat.grammar] * 2


def test_nulls_mean_absent() -> None:
    names = ["model", "max_tokens", "temperature", "top_p", "seed", "stop", "logprobs", "top_logprobs"]
    names += ["stream", "stream_options", "frequency_penalty", "presence_penalty", "tools", "tool_choice"]
    names += ["n", "logit_bias", "min_p", "min_tokens", "ignore_eos", "response_format", "tool_prompt"]
    assert understand() == understand(**dict.fromkeys(names))


@pytest.mark.parametrize(("given", "echo"), [(None, None), ("tgi", None), ("gpt-4o", "gpt-4o"), ("", "")])
def test_the_model_is_echoed_unless_it_stands_for_the_served_one(given: str | None, echo: str | None) -> None:
    assert echo == understand(model=given).model
