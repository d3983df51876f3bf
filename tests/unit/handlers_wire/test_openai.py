from __future__ import annotations

from typing import Any, cast

import pytest

from handlers.wire.limits import Limits
from handlers.wire.openai import (
    continuous_usage,
    include_usage,
    logprobs,
    to_choices,
    to_parameters,
    usage,
)
from handlers.wire.parameters import sampling
from handlers.wire.types import CompletionRequest
from inference.errors import InvalidInput

LIMITS = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5, max_n=16)


def asked(**members: Any) -> CompletionRequest:
    body: Any = {"prompt": "Hi", **members}
    return cast(CompletionRequest, body)


@pytest.mark.parametrize(
    ("body", "samples", "temperature"),
    [
        ({}, True, 1.0),
        ({"temperature": None}, True, 1.0),
        ({"temperature": 0}, False, 1.0),
        ({"temperature": 0.0, "top_p": 0.5}, False, 1.0),
        ({"temperature": 1e-60}, False, 1.0),
        ({"temperature": 1}, True, 1.0),
        ({"temperature": 0.5}, True, 0.5),
    ],
)
def test_openai_samples_unless_the_temperature_is_zero(body: Any, samples: bool, temperature: float) -> None:
    made = sampling(to_parameters(body, None, LIMITS), lambda: 3)
    assert (samples, temperature) == (made.sample, made.temperature)


@pytest.mark.parametrize("top_k", [None, 0, -1])
def test_top_k_has_three_ways_to_be_off(top_k: int | None) -> None:
    body = asked(top_k=top_k)
    assert sampling(to_parameters(body, None, LIMITS), lambda: 3).top_k == 0


def test_the_other_parameters_have_the_meaning_they_have_elsewhere() -> None:
    body: Any = {
        "top_k": 4,
        "top_p": 0.5,
        "typical_p": 0.25,
        "min_p": 0.125,
        "min_tokens": 4,
        "ignore_eos": True,
        "logit_bias": {"7": 1.5},
        "repetition_penalty": 1.5,
        "frequency_penalty": 1.0,
        "presence_penalty": -1.0,
        "seed": 11,
        "stop": "end",
    }
    parameters = to_parameters(body, 9, LIMITS)
    made = sampling(parameters, lambda: 3)
    assert (made.top_k, made.top_p, made.typical_p, made.seed) == (4, 0.5, 0.25, 11)
    assert (made.repetition_penalty, made.frequency_penalty, made.presence_penalty) == (1.5, 1.0, -1.0)
    assert (made.min_p, made.logit_bias) == (0.125, ((7, 1.5),))
    assert (parameters.max_new_tokens, parameters.stop) == (9, ("end",))
    assert (parameters.min_new_tokens, parameters.ignore_eos) == (4, True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"stream_options": None}, False),
        ({"stream_options": {}}, False),
        ({"stream_options": {"include_usage": None}}, False),
        ({"stream_options": {"include_usage": True}}, True),
    ],
)
def test_usage_is_streamed_on_request(options: Any, expected: bool) -> None:
    assert expected == include_usage(options)


def test_usage_is_summed(sample: Any) -> None:
    finishes = [
        sample.finish("a", generated=3, cached_tokens=1),
        sample.finish("b", generated=4, prompt_tokens=5),
    ]
    assert usage(finishes) == {
        "prompt_tokens": 7,
        "completion_tokens": 7,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_a_prompt_that_several_texts_continue_is_counted_once(sample: Any) -> None:
    finishes = [
        *(sample.finish("a", generated=3, prompt_tokens=2, cached_tokens=0), sample.finish("b", generated=1)),
        *(sample.finish("c", generated=1, prompt_tokens=5, cached_tokens=4) for _ in range(2)),
    ]
    assert usage(finishes, choices=2) == {
        "prompt_tokens": 7,
        "completion_tokens": 6,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


@pytest.mark.parametrize(("given", "expected"), [(None, 1), (1, 1), (16, 16)])
def test_one_text_is_generated_unless_more_are_asked_for(given: int | None, expected: int) -> None:
    assert expected == to_choices(asked(n=given), LIMITS)
    assert to_choices(asked(), LIMITS) == 1


@pytest.mark.parametrize("given", [0, 17])
def test_none_and_too_many_texts_are_refused_with_the_limit(given: int) -> None:
    with pytest.raises(InvalidInput) as refusal:
        to_choices(asked(n=given), LIMITS)
    assert str(refusal.value) == f"`n` must be > 0 and <= 16. Given: {given}"


def test_counts_so_far_are_streamed_on_request() -> None:
    assert continuous_usage(asked(stream_options={"continuous_usage_stats": True}))
    assert not continuous_usage(asked(stream_options={"include_usage": True}))
    assert not continuous_usage(asked(stream_options=None))


def test_bytes_are_the_tokens_own_where_they_are_known(sample: Any) -> None:
    table = [b"\xc3", b"\xa9", b"<eos>"]
    tokens = [
        sample.token(0, "", -0.5),
        sample.token(1, "é", -0.5),
        sample.token(2, "</s>", -0.5, special=True),
    ]
    told = logprobs(sample.output(tokens), 0, table)["content"]
    assert [entry["bytes"] for entry in told] == [[0xC3], [0xA9], list(b"</s>")]


def test_logprobs_have_bytes_and_no_more_alternatives_than_asked_for(sample: Any) -> None:
    events = sample.output([sample.token(1, "é", -0.5)], top=True)
    one = {"token": "é", "logprob": -0.5, "bytes": [195, 169]}
    filtered = {"token": "x", "logprob": -9999.0, "bytes": [120]}
    assert logprobs(events, 2)["content"] == [one | {"top_logprobs": [one, filtered]}]
    assert logprobs(events, 1)["content"] == [one | {"top_logprobs": [one]}]
    assert logprobs(events, 0)["content"] == [one | {"top_logprobs": []}]
