from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from handlers.wire import chat as wire
from handlers.wire.limits import Limits
from handlers.wire.openai import Stamp
from inference.errors import InvalidInput
from inference.types import FinishReason, LogprobsMode

LIMITS = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5)
STAMP = Stamp(id="chatcmpl-1", created=1763600000, model="org/m", fingerprint="1-native")
MESSAGES = [{"role": "user", "content": "Hi"}]
Fits = Callable[[str, Any], bool]


def understand(**members: Any) -> wire.Chat:
    return wire.to_chat({"messages": MESSAGES} | members, LIMITS)


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
    request = wire.to_request(understand(**members), "p", id="r", draw=lambda: 1)
    assert limit == request.max_new_tokens


def test_the_rendered_prompt_gets_no_special_tokens_and_logprobs_are_the_models_own() -> None:
    chat = understand(logprobs=True, top_logprobs=20, stop=["x"], seed=3)
    request = wire.to_request(chat, "<|user|>Hi", id="r", draw=lambda: 1)
    assert (request.id, request.prompt, request.add_special_tokens) == ("r", "<|user|>Hi", False)
    assert (request.top_n_tokens, request.logprobs, request.stop) == (20, LogprobsMode.RAW, ("x",))
    assert (request.sampling.sample, request.sampling.seed) == (True, 3)


def test_nulls_mean_absent() -> None:
    names = [
        "model",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "stop",
        "logprobs",
        "top_logprobs",
        "stream",
    ]
    names += [
        "stream_options",
        "frequency_penalty",
        "presence_penalty",
        "tools",
        "tool_choice",
        "n",
        "logit_bias",
    ]
    assert understand() == understand(**dict.fromkeys(names))


@pytest.mark.parametrize(("given", "echo"), [(None, None), ("tgi", None), ("gpt-4o", "gpt-4o"), ("", "")])
def test_the_model_is_echoed_unless_it_stands_for_the_served_one(given: str | None, echo: str | None) -> None:
    assert echo == understand(model=given).model


def test_the_answer_has_openais_form(sample: Any, fits: Fits) -> None:
    tokens = [sample.token(1, "OK", -0.5), sample.token(2, "</s>", -0.25, special=True)]
    output = sample.output(tokens, reason=FinishReason.EOS, prompt_tokens=12, cached_tokens=8)
    body = wire.to_body(understand(), STAMP, output)
    assert body == {
        "object": "chat.completion",
        "id": "chatcmpl-1",
        "created": 1763600000,
        "model": "org/m",
        "system_fingerprint": "1-native",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "OK", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 12,
            "completion_tokens": 2,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 8},
        },
    }
    assert fits("ChatCompletion", body)


@pytest.mark.parametrize(
    ("reason", "word"),
    [(FinishReason.EOS, "stop"), (FinishReason.STOP, "stop"), (FinishReason.LENGTH, "length")],
)
def test_reasons_are_openais_words(sample: Any, reason: FinishReason, word: str) -> None:
    output = sample.output([sample.token(1, "a", -1.0)], reason=reason)
    assert word == wire.to_body(understand(), STAMP, output)["choices"][0]["finish_reason"]
    assert word == wire.to_chunk(understand(), STAMP, output[-1])["choices"][0]["finish_reason"]


def test_the_stop_sequence_is_cut_off(sample: Any) -> None:
    output = sample.output([sample.token(1, "a.", -1.0)], text_before_stop="a", reason=FinishReason.STOP)
    assert wire.to_body(understand(), STAMP, output)["choices"][0]["message"]["content"] == "a"


def test_every_chunk_has_a_role_and_a_null_usage(sample: Any, fits: Fits) -> None:
    tokens = [sample.token(1, "OK", -0.5), sample.token(2, "</s>", -0.25, special=True)]
    output = sample.output(tokens, reason=FinishReason.EOS)
    chunks = [wire.to_chunk(understand(), STAMP, event) for event in output]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": "OK"},
        {"role": "assistant", "content": ""},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "stop"]
    assert [chunk["usage"] for chunk in chunks] == [None, None]
    assert all(fits("ChatCompletionChunk", chunk) for chunk in chunks)


def test_the_usage_chunk_has_no_choices(sample: Any, fits: Fits) -> None:
    chunk = wire.to_usage_chunk(STAMP, sample.finish("OK", generated=2))
    assert chunk["choices"] == []
    assert chunk["usage"]["total_tokens"] == 4
    assert fits("ChatCompletionChunk", chunk)


def test_logprobs_are_told_when_asked_for_and_only_then(sample: Any, fits: Fits) -> None:
    output = sample.output([sample.token(1, "a", -1.0)], top=True)
    asked = wire.to_body(understand(logprobs=True, top_logprobs=1), STAMP, output)
    assert asked["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["token"] == "a"
    assert fits("ChatCompletion", asked)
    chunk = wire.to_chunk(understand(logprobs=True), STAMP, output[0])
    assert chunk["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert fits("ChatCompletionChunk", chunk)
    without = wire.to_body(understand(top_logprobs=1), STAMP, output)
    assert without["choices"][0]["logprobs"] is None
