from __future__ import annotations

from collections.abc import Callable
from typing import Any

from handlers.wire.completion_answer import Answer, AnswerStream
from handlers.wire.completions import Completion
from handlers.wire.openai import Stamp
from inference.types import FinishReason, Request

STAMP = Stamp(id="cmpl-1", created=1763600000, model="org/m", fingerprint="1-native")
Fits = Callable[[str, Any], bool]


def completion(*prompts: str, n: int = 1, **changes: Any) -> Completion:
    members: dict[str, Any] = {
        "requests": tuple(Request(id="r", prompt=prompt) for prompt in prompts for _ in range(n)),
        "n": n,
        "candidates": n,
        "echo": False,
        "logprobs": None,
        "scored": False,
        "stream": False,
        "include_usage": False,
        "continuous_usage": False,
    }
    return Completion(**members | changes)


def test_the_answer_has_the_choices_of_each_prompt_and_the_sum_of_the_usage(sample: Any, fits: Fits) -> None:
    stopped = sample.output([sample.token(1, "a.", -1.0)], text_before_stop="a", reason=FinishReason.STOP)
    cut = sample.output([sample.token(2, "b", -1.0), sample.token(3, "c", -1.0)])
    body = Answer(completion("x", "y"), STAMP).whole([stopped, cut], [stopped, cut])
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


def test_an_echoed_prompt_stands_before_each_of_its_texts(sample: Any, fits: Fits) -> None:
    outputs = [sample.output([sample.token(1, text, -1.0)]) for text in "abcd"]
    body = Answer(completion("x", "y", n=2, echo=True), STAMP).whole(outputs, outputs)
    assert [choice["text"] for choice in body["choices"]] == ["xa", "xb", "yc", "yd"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert fits("CompletionFinal", body)


def test_the_logprobs_of_an_echo_begin_with_the_prompts(sample: Any, fits: Fits) -> None:
    prompt = (sample.prompt_token(8, "<s>", None), sample.prompt_token(9, "x", -0.5))
    output = sample.output([sample.token(1, "a", -1.0)], prompt=prompt)
    body = Answer(completion("x", echo=True, logprobs=1), STAMP).whole([output], [output])
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["<s>", "x", "a"]
    assert logprobs["token_logprobs"] == [None, -0.5, -1.0]
    assert logprobs["text_offset"] == [0, 0, 1]
    assert fits("CompletionFinal", body)


def test_a_scored_prompt_has_its_own_tokens_alone(sample: Any, fits: Fits) -> None:
    prompt = (sample.prompt_token(9, "x", None),)
    output = sample.output([sample.token(1, "a", -1.0)], prompt=prompt, reason=FinishReason.EOS)
    asked = completion("x", echo=True, logprobs=0, scored=True)
    body = Answer(asked, STAMP).whole([output], [output])
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]["tokens"]) == ("x", "length", ["x"])
    assert body["usage"]["completion_tokens"] == 0
    assert fits("CompletionFinal", body)
    (chunk,) = AnswerStream(asked, STAMP, 0, "x", 1).push(output[0])
    assert (chunk["choices"][0]["text"], chunk["choices"][0]["finish_reason"]) == ("x", "length")
    assert chunk["usage"]["completion_tokens"] == 0


def test_only_the_last_chunk_of_a_completion_has_a_reason_and_its_usage(sample: Any, fits: Fits) -> None:
    tokens = [sample.token(1, "a", -1.0), sample.token(2, "</s>", -1.0, special=True)]
    stream = AnswerStream(completion("x"), STAMP, 1, "x", 2)
    first, last = (
        chunk for event in sample.output(tokens, reason=FinishReason.EOS) for chunk in stream.push(event)
    )
    assert first["choices"] == [{"index": 1, "text": "a", "logprobs": None, "finish_reason": ""}]
    assert "usage" not in first
    assert last["choices"] == [{"index": 1, "text": "", "logprobs": None, "finish_reason": "stop"}]
    assert last["usage"]["total_tokens"] == 4
    assert fits("Chunk", first)
    assert fits("Chunk", last)


def test_an_echoed_prompt_is_a_chunk_of_its_own_and_counts_can_be_in_all(sample: Any, fits: Fits) -> None:
    tokens = [sample.token(1, "a", -1.0), sample.token(2, "b", -1.0)]
    stream = AnswerStream(completion("x", echo=True, continuous_usage=True), STAMP, 0, "x", 2)
    chunks = [chunk for event in sample.output(tokens) for chunk in stream.push(event)]
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["x", "a", "b"]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2]
    assert [chunk["usage"]["prompt_tokens"] for chunk in chunks] == [2, 2, 2]
    assert all(fits("Chunk", chunk) for chunk in chunks)


def test_the_chunks_of_a_stream_tell_the_logprobs_of_the_whole_answer(sample: Any, fits: Fits) -> None:
    output = sample.output([sample.token(1, "ab", -1.0), sample.token(2, "c", -2.0)], top=True)
    asked = completion("x", logprobs=1)
    whole = Answer(asked, STAMP).whole([output], [output])["choices"][0]["logprobs"]
    stream = AnswerStream(asked, STAMP, 0, "x", 1)
    chunks = [chunk for event in output for chunk in stream.push(event)]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert {name: [item for part in parts for item in part[name]] for name in whole} == whole
    assert all(fits("Chunk", chunk) for chunk in chunks)
