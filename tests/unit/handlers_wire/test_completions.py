from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from handlers.wire import completions as wire
from handlers.wire.limits import Limits
from handlers.wire.openai import Stamp
from inference.errors import InvalidInput
from inference.types import FinishReason, LogprobsMode

LIMITS = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5)
STAMP = Stamp(id="cmpl-1", created=1763600000, model="org/m", fingerprint="1-native")
Fits = Callable[[str, Any], bool]


def understand(prompt: Any, **members: Any) -> wire.Completion:
    seeds = count(100)
    return wire.to_completion({"prompt": prompt} | members, LIMITS, id="r", draw=lambda: next(seeds))


def test_a_prompt_is_a_text_or_several() -> None:
    assert wire.prompts({"prompt": "a"}) == ("a",)
    assert wire.prompts({"prompt": ["a", "b"]}) == ("a", "b")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "Empty array detected. Do not use an empty array for the prompt."),
        ([1, 2], "`prompt` is given as token ids, which is not supported yet: send it as text"),
        ([[1], [2]], "`prompt` is given as token ids, which is not supported yet: send it as text"),
    ],
)
def test_other_prompts_are_refused(prompt: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        wire.prompts({"prompt": prompt})
    assert str(refusal.value) == message


def test_each_prompt_is_a_request_of_its_own() -> None:
    first, second = understand(["a", "b"], max_tokens=3, stop="x").requests
    assert (first.prompt, second.prompt) == ("a", "b")
    assert first.id != second.id
    assert (first.sampling.seed, second.sampling.seed) == (100, 101)
    assert (first.max_new_tokens, first.stop, first.add_special_tokens) == (3, ("x",), True)
    assert first.logprobs is LogprobsMode.RAW


def test_without_max_tokens_the_rest_of_the_context_is_used() -> None:
    assert understand("a").requests[0].max_new_tokens is None


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"max_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"repetition_penalty": 0}, "`repetition_penalty` must be strictly positive"),
        ({"frequency_penalty": 3}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    ],
)
def test_a_value_out_of_range_is_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        understand("a", **members)
    assert str(refusal.value) == message


def test_the_answer_has_one_choice_for_each_prompt_and_the_sum_of_the_usage(sample: Any, fits: Fits) -> None:
    stopped = sample.output([sample.token(1, "a.", -1.0)], text_before_stop="a", reason=FinishReason.STOP)
    cut = sample.output([sample.token(2, "b", -1.0), sample.token(3, "c", -1.0)])
    body = wire.to_body(STAMP, [stopped, cut])
    assert body == {
        "object": "text_completion",
        "id": "cmpl-1",
        "created": 1763600000,
        "choices": [
            {"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop"},
            {"index": 1, "text": "bc", "logprobs": None, "finish_reason": "length"},
        ],
        "model": "org/m",
        "system_fingerprint": "1-native",
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 3,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    assert fits("CompletionFinal", body)


def test_only_the_last_chunk_of_a_prompt_has_a_reason_and_its_usage(sample: Any, fits: Fits) -> None:
    tokens = [sample.token(1, "a", -1.0), sample.token(2, "</s>", -1.0, special=True)]
    output = sample.output(tokens, reason=FinishReason.EOS)
    first, last = (wire.to_chunk(STAMP, 1, event) for event in output)
    assert first["choices"] == [{"index": 1, "text": "a", "logprobs": None, "finish_reason": ""}]
    assert "usage" not in first
    assert last["choices"] == [{"index": 1, "text": "", "logprobs": None, "finish_reason": "stop"}]
    assert last["usage"]["total_tokens"] == 4
    assert fits("Chunk", first)
    assert fits("Chunk", last)


def test_the_usage_chunk_has_no_choices_and_the_sum(sample: Any, fits: Fits) -> None:
    chunk = wire.to_usage_chunk(STAMP, [sample.finish("a", generated=1), sample.finish("b", generated=2)])
    assert (chunk["choices"], chunk["usage"]["total_tokens"]) == ([], 7)
    assert fits("Chunk", chunk)
