from __future__ import annotations

from typing import Any

import pytest

from handlers.wire.openai import include_usage, logprobs, to_parameters, usage
from handlers.wire.parameters import sampling


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
def test_openai_samples_unless_the_temperature_is_zero(
    body: dict[str, Any], samples: bool, temperature: float
) -> None:
    made = sampling(to_parameters(body, None), lambda: 3)
    assert (samples, temperature) == (made.sample, made.temperature)


@pytest.mark.parametrize("top_k", [None, 0, -1])
def test_top_k_has_three_ways_to_be_off(top_k: int | None) -> None:
    assert sampling(to_parameters({"top_k": top_k}, None), lambda: 3).top_k == 0


def test_the_other_parameters_have_the_meaning_they_have_elsewhere() -> None:
    body = {
        "top_k": 4,
        "top_p": 0.5,
        "typical_p": 0.25,
        "repetition_penalty": 1.5,
        "frequency_penalty": 1.0,
        "presence_penalty": -1.0,
        "seed": 11,
        "stop": "end",
    }
    parameters = to_parameters(body, 9)
    made = sampling(parameters, lambda: 3)
    assert (made.top_k, made.top_p, made.typical_p, made.seed) == (4, 0.5, 0.25, 11)
    assert (made.repetition_penalty, made.frequency_penalty, made.presence_penalty) == (1.5, 1.0, -1.0)
    assert (parameters.max_new_tokens, parameters.stop) == (9, ("end",))


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
def test_usage_is_streamed_on_request(options: dict[str, Any], expected: bool) -> None:
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


def test_logprobs_have_bytes_and_no_more_alternatives_than_asked_for(sample: Any) -> None:
    events = sample.output([sample.token(1, "é", -0.5)], top=True)
    one = {"token": "é", "logprob": -0.5, "bytes": [195, 169]}
    filtered = {"token": "x", "logprob": -9999.0, "bytes": [120]}
    assert logprobs(events, 2)["content"] == [one | {"top_logprobs": [one, filtered]}]
    assert logprobs(events, 1)["content"] == [one | {"top_logprobs": [one]}]
    assert logprobs(events, 0)["content"] == [one | {"top_logprobs": []}]
