from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from handlers.wire import chat as wire
from handlers.wire.calls import CallDeltas, CallIds
from handlers.wire.chat_answer import ChatAnswer
from handlers.wire.choice import Choice, PartsChoice, TextChoice
from handlers.wire.limits import Limits
from handlers.wire.openai import Stamp, logprobs
from inference.tools.types import Part, TextPart
from inference.types import FinishReason
from tests.unit.handlers_wire.scripted import ScriptedParser

LIMITS = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5)
STAMP = Stamp(id="chatcmpl-1", created=1763600000, model="org/m", fingerprint="1-native")
Fits = Callable[[str, Any], bool]


def answer(*, prompt_tokens: int = 0, in_order: bool = False, **members: Any) -> ChatAnswer:
    body: Any = {"messages": [{"role": "user", "content": "Hi"}]} | members
    chat = wire.to_chat(body, LIMITS)
    tell = partial(logprobs, top=chat.top_logprobs) if chat.logprobs else None
    choices = [TextChoice(index, tell) for index in range(chat.choices)]
    return ChatAnswer(chat, STAMP, choices, prompt_tokens=prompt_tokens, in_order=in_order)


@pytest.fixture
def output(sample: Any) -> Any:
    tokens = [sample.token(1, "OK", -0.5), sample.token(2, "</s>", -0.25, special=True)]
    return sample.output(tokens, reason=FinishReason.EOS, prompt_tokens=12, cached_tokens=8)


def test_the_answer_has_openais_form(output: Any, fits: Fits) -> None:
    body = answer().body([output])
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


def test_choices_share_the_prompt(output: Any, sample: Any, fits: Fits) -> None:
    other = sample.output([sample.token(3, "No", -0.5)], prompt_tokens=12, cached_tokens=12)
    body = answer(n=2).body([output, other])
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert [choice["message"]["content"] for choice in body["choices"]] == ["OK", "No"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"]
    assert body["usage"] == {
        "prompt_tokens": 12,
        "completion_tokens": 3,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    assert fits("ChatCompletion", body)


@pytest.mark.parametrize(
    ("reason", "word"),
    [(FinishReason.EOS, "stop"), (FinishReason.STOP, "stop"), (FinishReason.LENGTH, "length")],
)
def test_reasons_are_openais_words(sample: Any, reason: FinishReason, word: str) -> None:
    output = sample.output([sample.token(1, "a", -1.0)], reason=reason)
    assert word == answer().body([output])["choices"][0]["finish_reason"]
    (chunk,) = answer().chunks(0, output[-1])
    assert word == chunk["choices"][0]["finish_reason"]


def test_the_first_chunk_has_the_role_and_all_have_a_null_usage(output: Any, fits: Fits) -> None:
    told = answer()
    chunks = [chunk for event in output for chunk in told.chunks(0, event)]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": "OK"},
        {"content": ""},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "stop"]
    assert [chunk["usage"] for chunk in chunks] == [None, None]
    assert all(fits("ChatCompletionChunk", chunk) for chunk in chunks)


def test_the_usage_comes_once_after_the_last_choice(output: Any, sample: Any, fits: Fits) -> None:
    other = sample.output([sample.token(3, "No", -0.5)], prompt_tokens=12, cached_tokens=12)
    told = answer(n=2, stream_options={"include_usage": True})
    chunks = [*told.chunks(1, other[0]), *(chunk for event in output for chunk in told.chunks(0, event))]
    assert [len(chunk["choices"]) for chunk in chunks] == [1, 1, 1, 0]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 3
    assert chunks[-1]["usage"] == answer(n=2).body([output, other])["usage"]
    assert fits("ChatCompletionChunk", chunks[-1])


def called(index: int, pushes: Sequence[Sequence[Part]]) -> PartsChoice:
    return PartsChoice(index, None, CallDeltas(ScriptedParser(pushes), CallIds(()).of(index)))


@pytest.mark.parametrize(("in_order", "first"), [(True, [0, 1, 1, 2, 2]), (False, [1, 1, 2, 0, 2])])
def test_choices_begin_in_the_order_of_their_indexes_where_that_is_asked_for(
    in_order: bool, first: list[int], sample: Any
) -> None:
    """OpenAI's Python client puts a choice where as many began before it, and fails with another's index."""
    body: Any = {"messages": [{"role": "user", "content": "Hi"}], "n": 3}
    choices: list[Choice] = [
        called(0, [[], [], [TextPart("a")]]),  # nothing is told of it until its third token
        called(1, [[TextPart("b")], [TextPart("c")]]),
        TextChoice(2, None),
    ]
    stream = ChatAnswer(wire.to_chat(body, LIMITS), STAMP, choices, in_order=in_order)
    outputs = [sample.output([sample.token(1, "x", -1.0)] * size) for size in (3, 2, 2)]
    told = []
    for place, at in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (2, 1)):
        told += stream.chunks(place, outputs[place][at])
    assert first == [chunk["choices"][0]["index"] for chunk in told]
    roles = [chunk["choices"][0]["index"] for chunk in told if "role" in chunk["choices"][0]["delta"]]
    assert roles == list(dict.fromkeys(first))


def test_a_choice_that_ends_before_its_turn_is_told_before_the_usage(output: Any, sample: Any) -> None:
    other = sample.output([sample.token(3, "No", -0.5)], prompt_tokens=12)
    told = answer(n=2, in_order=True, stream_options={"include_usage": True})
    assert told.chunks(1, other[0]) == []
    chunks = [chunk for event in output for chunk in told.chunks(0, event)]
    assert [[choice["index"] for choice in chunk["choices"]] for chunk in chunks] == [[0], [1], [0], []]
    assert chunks[-1]["usage"] is not None


def test_every_chunk_can_count_its_choice_so_far(output: Any, sample: Any, fits: Fits) -> None:
    other = sample.output([sample.token(3, "No", -0.5)], prompt_tokens=12)
    told = answer(n=2, prompt_tokens=12, stream_options={"continuous_usage_stats": True})
    chunks: list[Any] = [*told.chunks(1, other[0])]
    chunks += [chunk for event in output for chunk in told.chunks(0, event)]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 1, 2]
    assert [chunk["usage"]["total_tokens"] for chunk in chunks] == [13, 13, 14]
    assert all(fits("ChatCompletionChunk", chunk) for chunk in chunks)


def test_logprobs_are_told_when_asked_for_and_only_then(sample: Any, fits: Fits) -> None:
    output = sample.output([sample.token(1, "a", -1.0)], top=True)
    asked: Any = answer(logprobs=True, top_logprobs=1).body([output])
    assert asked["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["token"] == "a"
    assert fits("ChatCompletion", asked)
    chunk: Any = answer(logprobs=True).chunks(0, output[0])[1]
    assert chunk["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert fits("ChatCompletionChunk", chunk)
    without = answer(top_logprobs=1).body([output])
    assert without["choices"][0]["logprobs"] is None
