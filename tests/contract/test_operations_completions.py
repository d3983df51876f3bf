"""Text completions, as a client sees them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.serving import events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

REPLIES = {"replies": {"one": " first. Bye", "two": " second, a bit longer", "three": " x"}}
PATH = "/v1/completions"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_one_prompt_gives_one_choice() -> None:
    async with served(fake=REPLIES, model_id="org/m") as server:
        response = await server.post(PATH, {"prompt": "one", "temperature": 0, "model": "gpt-3.5"})
    body = response.json()
    assert body["choices"] == [{"index": 0, "text": " first. Bye", "logprobs": None, "finish_reason": "stop"}]
    assert (body["object"], body["model"]) == ("text_completion", "org/m")
    assert body["id"].startswith("cmpl-")


@pytest.mark.parametrize(("model", "named"), [("org/m", False), ("tgi", False), ("gpt-3.5", True)])
async def test_the_name_of_the_served_model_is_no_member_without_effect(model: str, named: bool) -> None:
    chat = {"messages": [{"role": "user", "content": "one"}], "model": model}
    async with served(fake=REPLIES, model_id="org/m") as server:
        answers = [
            await server.post(PATH, {"prompt": "one", "model": model}),
            await server.post("/vertex", {"instances": [chat]}),
        ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert ["model" in answer.headers.get("x-ignored-parameters", "") for answer in answers] == [named] * 2


async def test_several_prompts_give_their_choices_in_order_and_sums() -> None:
    async with served(fake=REPLIES) as server:
        singles = [
            await server.post(PATH, {"prompt": text, "temperature": 0}) for text in ("two", "three", "one")
        ]
        response = await server.post(PATH, {"prompt": ["two", "three", "one"], "temperature": 0})
    body = response.json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    texts = [single.json()["choices"][0]["text"] for single in singles]
    assert [choice["text"] for choice in body["choices"]] == texts
    usages = [single.json()["usage"] for single in singles]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert body["usage"][name] == sum(usage[name] for usage in usages)
    assert response.headers["x-compute-characters"] == "11"
    assert response.headers["x-generated-tokens"] == str(body["usage"]["completion_tokens"])
    assert response.headers["x-total-time"].isdigit()
    assert "x-compute-time" not in response.headers


async def test_the_streams_of_several_prompts_are_interleaved_without_loss() -> None:
    async with served(fake=REPLIES) as server:
        body: dict[str, Any] = {"prompt": ["two", "one"], "temperature": 0}
        whole = (await server.post(PATH, body)).json()
        *chunks, done = events_of(await server.post(PATH, {**body, "stream": True}))
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    for place, answer in enumerate(whole["choices"]):
        own = [choice for choice in choices if choice["index"] == place]
        assert "".join(choice["text"] for choice in own) == answer["text"]
        assert [choice["finish_reason"] for choice in own] == [""] * (len(own) - 1) + ["stop"]
    usages = [chunk["usage"] for chunk in chunks if "usage" in chunk]
    assert sum(usage["total_tokens"] for usage in usages) == whole["usage"]["total_tokens"]
    assert [("usage" in chunk) for chunk in chunks] == [
        bool(chunk["choices"][0]["finish_reason"]) for chunk in chunks
    ]


async def test_include_usage_adds_the_sum_in_one_chunk_more() -> None:
    async with served(fake=REPLIES) as server:
        body: dict[str, Any] = {"prompt": ["two", "one"], "temperature": 0}
        whole = (await server.post(PATH, body)).json()
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        *_, last, done = events_of(await server.post(PATH, streamed))
    assert done == "[DONE]"
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


async def test_to_openais_clients_only_a_reason_is_the_end_and_the_usage_comes_once() -> None:
    """They take an empty reason for the end, and stop reading."""
    headers = {"x-stainless-lang": "python"}
    body: dict[str, Any] = {"prompt": ["two", "one"], "temperature": 0, "stream": True}
    async with served(fake=REPLIES) as server:
        for more in ({}, {"stream_options": {"include_usage": True}}):
            response = await server.http.post(PATH, json={**body, **more}, headers=headers)
            *chunks, done = events_of(response)
            told = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
            assert sorted(map(str, told)) == ["None"] * (len(told) - 2) + ["stop"] * 2
            assert done == "[DONE]"
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["usage"]["total_tokens"] > 0


async def test_the_stop_sequence_is_cut_off_streamed_or_not() -> None:
    async with served(fake=REPLIES) as server:
        body: dict[str, Any] = {"prompt": "one", "temperature": 0, "stop": [" Bye"]}
        whole = (await server.post(PATH, body)).json()["choices"][0]
        *chunks, _ = events_of(await server.post(PATH, {**body, "stream": True}))
    assert (whole["text"], whole["finish_reason"]) == (" first.", "stop")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " first."


async def test_without_max_tokens_the_rest_of_the_context_is_used() -> None:
    async with served(fake={"replies": {"long": "x" * 500}}, max_total_tokens=100) as server:
        body = (await server.post(PATH, {"prompt": "long", "temperature": 0})).json()
    assert body["usage"]["total_tokens"] == 100
    assert body["choices"][0]["finish_reason"] == "length"


async def test_bad_requests_are_refused_with_tgis_words() -> None:
    long = "Number of prompts exceeds the maximum allowed batch size of 4"
    suffix = "Suffix is not supported and can be achieved by preprocessing the prompt."
    empty = "Input validation error: Empty array detected. Do not use an empty array for the prompt."
    shape = "Failed to deserialize the JSON body into the target type: "
    unknown = (
        "Input validation error: `inputs` holds token 4294967295, but the vocabulary has 2048 tokens: "
        "use ids from 0 to 2047"
    )
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"prompt": ["a"] * 5}, long, "batch size exceeded"),
        ({"prompt": "a", "suffix": "b"}, suffix, "suffix not supported"),
        ({"prompt": []}, empty, "validation"),
        ({"prompt": [2**32 - 1]}, unknown, "validation"),
        ({"prompt": [[1], [2**32 - 1]]}, unknown, "validation"),
        ({"prompt": ["a", 1]}, f"{shape}prompt[1]: expected a string, got 1", "validation"),
        ({"prompt": [1, "a"]}, f'{shape}prompt[1]: expected an integer, got "a"', "validation"),
        ({"prompt": [[1], "a"]}, f'{shape}prompt[1]: expected an array, got "a"', "validation"),
        (
            {"prompt": "a", "n": 17},
            "Input validation error: `n` must be > 0 and <= 16. Given: 17",
            "validation",
        ),
        ({"prompt": ["a", ""]}, "Input validation error: `inputs` cannot be empty", "validation"),
    ]
    async with served() as server:
        for body, error, error_type in cases:
            for stream in (False, True):
                response = await server.post(PATH, {**body, "stream": stream})
                assert response.status_code == 422
                assert error_of(response) == {"error": error, "error_type": error_type}


async def test_each_prompt_takes_a_place_and_one_failure_fails_the_request() -> None:
    async with served(max_concurrent_requests=2, fake={"fail_prompts": ["bad"]}) as server:
        never = await server.post(PATH, {"prompt": ["a", "b", "c"]})
        failed = await server.post(PATH, {"prompt": ["a", "bad"]})
        after = await server.post(PATH, {"prompt": ["a", "b"]})
    assert (never.status_code, failed.status_code, after.status_code) == (422, 424, 200)
    assert "3 sequences at a time are more than `max_concurrent_requests`" in never.json()["error"]


async def test_a_failure_in_a_stream_ends_it() -> None:
    async with served(fake={"fail_prompts": ["bad"], "fails_after": 1}) as server:
        response = await server.post(PATH, {"prompt": ["bad"], "stream": True})
    first, error, done = events_of(response)
    assert first["object"] == "text_completion"
    assert error["error"]["http_status_code"] == 424
    assert done == "[DONE]"
