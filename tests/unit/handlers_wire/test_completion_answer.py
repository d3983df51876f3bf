from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from handlers.wire.completion_answer import Answer, AnswerStream
from handlers.wire.completions import Completion
from handlers.wire.openai import Stamp
from handlers.wire.outputs import Output
from inference.types import FinishReason, Request

STAMP = Stamp(id="cmpl-1", created=1763600000, model="org/m", fingerprint="1-native")
Fits = Callable[[str, Any], bool]


def completion(*prompts: str, n: int = 1, candidates: int | None = None, **changes: Any) -> Completion:
    several = n if candidates is None else candidates
    members: dict[str, Any] = {
        "requests": tuple(Request(id="r", prompt=prompt) for prompt in prompts for _ in range(several)),
        "n": n,
        "candidates": several,
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
    body = Answer(completion("x", "y"), STAMP).body([stopped, cut])
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
    body = Answer(completion("x", "y", n=2, echo=True), STAMP).body(outputs)
    assert [choice["text"] for choice in body["choices"]] == ["xa", "xb", "yc", "yd"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert fits("CompletionFinal", body)


def test_the_logprobs_of_an_echo_begin_with_the_prompts(sample: Any, fits: Fits) -> None:
    prompt = (sample.prompt_token(8, "<s>", None), sample.prompt_token(9, "x", -0.5))
    output = sample.output([sample.token(1, "a", -1.0)], prompt=prompt)
    body = Answer(completion("x", echo=True, logprobs=1), STAMP).body([output])
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs is not None
    assert logprobs["tokens"] == ["<s>", "x", "a"]
    assert logprobs["token_logprobs"] == [None, -0.5, -1.0]
    assert logprobs["text_offset"] == [0, 0, 1]
    assert fits("CompletionFinal", body)


def test_a_scored_prompt_has_its_own_tokens_alone(sample: Any, fits: Fits) -> None:
    prompt = (sample.prompt_token(9, "x", None),)
    output = sample.output([sample.token(1, "a", -1.0)], prompt=prompt, reason=FinishReason.EOS)
    asked = completion("x", echo=True, logprobs=0, scored=True)
    body = Answer(asked, STAMP).body([output])
    (choice,) = body["choices"]
    assert choice["logprobs"] is not None
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]["tokens"]) == ("x", "length", ["x"])
    assert body["usage"]["completion_tokens"] == 0
    assert fits("CompletionFinal", body)
    (chunk,) = AnswerStream(asked, STAMP, [1]).chunks(0, output[0])
    assert (chunk["choices"], chunk["usage"]) == (body["choices"], body["usage"])


@pytest.mark.parametrize(("as_tgi", "going_on"), [(True, ""), (False, None)])
def test_only_the_last_chunk_of_a_completion_has_a_reason_and_its_usage(
    as_tgi: bool, going_on: str | None, sample: Any, fits: Fits
) -> None:
    tokens = [sample.token(1, "a", -1.0), sample.token(2, "</s>", -1.0, special=True)]
    stream = AnswerStream(completion("w", "x"), STAMP, [2, 2], as_tgi=as_tgi)
    first, last = chunks_of(stream, 1, sample.output(tokens, reason=FinishReason.EOS))
    assert first["choices"] == [{"index": 1, "text": "a", "logprobs": None, "finish_reason": going_on}]
    assert "usage" not in first
    assert last["choices"] == [{"index": 1, "text": "", "logprobs": None, "finish_reason": "stop"}]
    assert last["usage"]["total_tokens"] == 4
    assert fits("Chunk", first)
    assert fits("Chunk", last)


def test_an_echoed_prompt_is_a_chunk_of_its_own_and_counts_can_be_in_all(sample: Any, fits: Fits) -> None:
    tokens = [sample.token(1, "a", -1.0), sample.token(2, "b", -1.0)]
    stream = AnswerStream(completion("x", echo=True, continuous_usage=True), STAMP, [2])
    chunks = chunks_of(stream, 0, sample.output(tokens))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["x", "a", "b"]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2]
    assert [chunk["usage"]["prompt_tokens"] for chunk in chunks] == [2, 2, 2]
    assert all(fits("Chunk", chunk) for chunk in chunks)


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("top", [0, 1])
def test_the_chunks_of_a_stream_tell_the_logprobs_of_the_whole_answer(
    echo: bool, top: int, sample: Any, fits: Fits
) -> None:
    prompt = (sample.prompt_token(8, "<s>", None), sample.prompt_token(9, "x", -0.5))
    tokens = [sample.token(1, "ab", -1.0), sample.token(2, "c", -2.0)]
    output = sample.output(tokens, top=top > 0, prompt=prompt if echo else ())
    asked = completion("x", logprobs=top, echo=echo)
    whole: Any = Answer(asked, STAMP).body([output])["choices"][0]["logprobs"]
    chunks = chunks_of(AnswerStream(asked, STAMP, [2]), 0, output)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [len(part["tokens"]) for part in parts] == ([2, 1, 1] if echo else [1, 1])
    for name, values in whole.items():
        if values is None:  # no likeliest were asked for
            assert [part[name] for part in parts] == [None] * len(parts)
        else:
            assert [value for part in parts for value in part[name]] == values
    assert all(fits("Chunk", chunk) for chunk in chunks)


def test_the_usage_of_all_comes_after_the_last_choice_that_ends(sample: Any, fits: Fits) -> None:
    stream = AnswerStream(completion("x", n=2, include_usage=True), STAMP, [2, 2])
    short, long = sample.output([sample.token(1, "a", -1.0)]), sample.output([sample.token(1, "b", -1.0)] * 3)
    assert len(chunks_of(stream, 1, short)) == 1
    *_, last = chunks_of(stream, 0, long)
    assert (last["choices"], last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == ([], 2, 4)
    assert fits("Chunk", last)


@pytest.mark.parametrize(
    ("as_tgi", "continuous", "told"),
    [(False, False, [None] * 3), (False, True, [3, 3, 4]), (True, False, [3, "absent", 4])],
)
def test_to_openais_clients_a_usage_in_the_end_is_the_only_one(
    as_tgi: bool, continuous: bool, told: list[Any], sample: Any, fits: Fits
) -> None:
    asked = completion("x", n=2, include_usage=True, continuous_usage=continuous)
    stream = AnswerStream(asked, STAMP, [2, 2], as_tgi=as_tgi)
    one, two = sample.output([sample.token(1, "a", -1.0)]), sample.output([sample.token(1, "b", -1.0)] * 2)
    chunks = [*chunks_of(stream, 1, one), *chunks_of(stream, 0, two)]
    *before, last = [chunk.get("usage", "absent") for chunk in chunks]
    totals = [counts["total_tokens"] if isinstance(counts, dict) else counts for counts in before]
    assert totals == told
    assert last["completion_tokens"] == 3
    assert all(fits("Chunk", chunk) for chunk in chunks)


def test_the_likeliest_of_each_prompt_are_answered_with_best_first(sample: Any) -> None:
    outputs = [
        sample.output([sample.token(1, text, logprob), sample.token(1, text, logprob)])
        for text, logprob in (("a", -3.0), ("b", -1.0), ("c", -2.0), ("d", -1.0), ("e", -2.0), ("f", -3.0))
    ]
    body = Answer(completion("x", "y", n=2, candidates=3), STAMP).body(outputs)
    assert [choice["text"] for choice in body["choices"]] == ["bb", "cc", "dd", "ee"]
    every = Answer(completion("x", "y", n=3), STAMP).body(outputs)
    assert [choice["text"] for choice in every["choices"]] == ["aa", "bb", "cc", "dd", "ee", "ff"]


def test_a_prompt_counts_once_and_every_candidate_was_generated(sample: Any) -> None:
    outputs = [sample.output([sample.token(1, "a", -1.0)] * made) for made in (1, 2, 3, 4)]
    counts = Answer(completion("x", "y", candidates=2), STAMP).body(outputs)["usage"]
    assert (counts["prompt_tokens"], counts["completion_tokens"], counts["total_tokens"]) == (4, 10, 14)


def chunks_of(stream: AnswerStream, place: int, output: Output) -> list[Any]:
    return [chunk for event in output for chunk in stream.chunks(place, event)]
