"""Several completions of a prompt, its echo, its token ids and its log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.serving import Served, events_of, served

pytestmark = pytest.mark.anyio

REPLIES = {"replies": {"one": " first. Bye", "two": " second, a bit longer", "three": " x"}}
PATH = "/v1/completions"
SAMPLED: dict[str, Any] = {"max_tokens": 6, "min_tokens": 6}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def complete(server: Served, **body: Any) -> dict[str, Any]:
    response = await server.post(PATH, body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def texts(body: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in body["choices"]]


def likely(choice: dict[str, Any]) -> float:
    logprobs: list[float] = choice["logprobs"]["token_logprobs"]
    return sum(logprobs) / len(logprobs)


async def test_the_choices_of_a_prompt_are_those_of_the_seeds_that_follow_its_own() -> None:
    async with served() as server:
        alone = [(await complete(server, prompt="x", seed=seed, **SAMPLED)) for seed in (7, 8, 9)]
        body = await complete(server, prompt=["x", "y"], n=3, seed=7, **SAMPLED)
        other = await complete(server, prompt="y", seed=9, **SAMPLED)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3, 4, 5]
    assert texts(body)[:3] == [text for each in alone for text in texts(each)]
    assert texts(body)[5:] == texts(other)
    assert len(set(texts(body))) > 1


async def test_a_prompt_counts_once_however_many_texts_follow_it() -> None:
    async with served() as server:
        response = await server.post(PATH, {"prompt": ["x", "y z"], "n": 2, **SAMPLED})
        alone = await complete(server, prompt=["x", "y z"], **SAMPLED)
    usage = response.json()["usage"]
    assert usage["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert usage["completion_tokens"] == 24
    assert response.headers["x-prompt-tokens"] == str(usage["prompt_tokens"])
    assert response.headers["x-generated-tokens"] == "24"


async def test_the_streams_of_several_choices_are_the_plain_answer() -> None:
    body = {"prompt": ["x", "y"], "n": 2, "seed": 1, "logprobs": 2, **SAMPLED}
    async with served() as server:
        whole = await complete(server, **body)
        *chunks, last, done = events_of(
            await server.post(PATH, {**body, "stream": True, "stream_options": {"include_usage": True}})
        )
    assert (done, last["choices"], last["usage"]) == ("[DONE]", [], whole["usage"])
    for choice in whole["choices"]:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in own) == choice["text"]
        assert [part["finish_reason"] for part in own] == [""] * 5 + [choice["finish_reason"]]
        for name, values in choice["logprobs"].items():
            assert [value for part in own for value in part["logprobs"][name]] == values


async def test_best_of_answers_with_the_likeliest_of_the_candidates() -> None:
    body = {"prompt": "x", "seed": 3, "logprobs": 0, **SAMPLED}
    async with served() as server:
        candidates = (await complete(server, n=4, **body))["choices"]
        best = await complete(server, n=2, best_of=4, **body)
        taken = server.metric("tgi_request_success")
    ranked = sorted(candidates, key=likely, reverse=True)
    assert [likely(choice) for choice in best["choices"]] == [likely(choice) for choice in ranked[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == 24  # all four were generated
    assert taken == 8


async def test_each_candidate_takes_a_place() -> None:
    async with served(max_concurrent_requests=4) as server:
        with server.service.engine.admit():
            full = await server.post(PATH, {"prompt": ["x", "y"], "best_of": 2, **SAMPLED})
        fits = await server.post(PATH, {"prompt": ["x", "y"], "best_of": 2, **SAMPLED})
        never = await server.post(PATH, {"prompt": ["x", "y"], "n": 3, **SAMPLED})
    assert (full.status_code, fits.status_code, never.status_code) == (429, 200, 422)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_puts_the_prompt_in_front(stream: bool) -> None:
    body = {"prompt": ["one", "three"], "echo": True, "temperature": 0, "n": 2, "stream": stream}
    async with served(fake=REPLIES) as server:
        response = await server.post(PATH, body)
    answers = ["one first. Bye", "one first. Bye", "three x", "three x"]
    if not stream:
        assert texts(response.json()) == answers
        return
    *chunks, _ = events_of(response)
    parts = [[c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == at] for at in range(4)]
    assert ["".join(part) for part in parts] == answers
    assert [part[0] for part in parts] == ["one", "one", "three", "three"]


async def test_a_prompt_can_be_scored_without_generating() -> None:
    body = {"prompt": "one two three", "echo": True, "logprobs": 1, "temperature": 0}
    async with served(fake=REPLIES) as server:
        tokens = (await server.post("/tokenize", {"inputs": "one two three"})).json()
        scored = await complete(server, max_tokens=0, **body)
        longer = await complete(server, max_tokens=1, **body)
        (chunk, _) = events_of(
            await server.post(PATH, {"prompt": "one", "echo": True, "max_tokens": 0, "stream": True})
        )
    (choice,) = scored["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("one two three", "length")
    assert scored["usage"]["completion_tokens"] == 0
    logprobs = choice["logprobs"]
    assert len(tokens) == len(logprobs["tokens"]) == scored["usage"]["prompt_tokens"]
    assert "".join(logprobs["tokens"]) == "one two three"
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert all(logprob < 0 for logprob in logprobs["token_logprobs"][1:])
    assert all(
        token in top and len(top) <= 2
        for token, top in zip(logprobs["tokens"][1:], logprobs["top_logprobs"][1:], strict=True)
    )
    assert {name: values[:-1] for name, values in longer["choices"][0]["logprobs"].items()} == logprobs
    assert (chunk["choices"][0]["text"], chunk["usage"]["completion_tokens"]) == ("one", 0)


@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_the_stream_of_an_echo_tells_the_prompts_logprobs_first(max_tokens: int) -> None:
    prompts, choices = ["one two", "é"], {"n": 2, "seed": 1, "max_tokens": max_tokens}
    body: dict[str, Any] = {"prompt": prompts, "echo": True, "logprobs": 2, **choices}
    async with served() as server:
        whole = await complete(server, **body)
        *chunks, done = events_of(await server.post(PATH, {**body, "stream": True}))
    assert done == "[DONE]"
    for choice in whole["choices"]:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert own[0]["text"] == prompts[choice["index"] // 2]
        assert own[0]["logprobs"]["token_logprobs"][0] is None
        assert "".join(part["text"] for part in own) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for part in own for value in part["logprobs"][name]] == values


async def test_each_token_stands_at_its_offset() -> None:
    async with served(fake={"replies": {"é": " naïve ☕ tea 🎉 end"}}) as server:
        body = await complete(server, prompt="é ☕ x", echo=True, logprobs=0, temperature=0)
    (choice,) = body["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "é ☕ x naïve ☕ tea 🎉 end"
    assert logprobs["top_logprobs"] is None
    whole = [
        (token, at)
        for token, at in zip(logprobs["tokens"], logprobs["text_offset"], strict=True)
        if token and "\\x" not in token and at < len(choice["text"])
    ]
    assert len(whole) > 8
    assert all(choice["text"].startswith(token, at) for token, at in whole)


async def test_token_ids_are_answered_as_their_text_is() -> None:
    prompts = ["one two", "three"]
    async with served(fake=REPLIES) as server:
        ids = [
            [token["id"] for token in (await server.post("/tokenize", {"inputs": prompt})).json()]
            for prompt in prompts
        ]
        by_text = await complete(server, prompt=prompts, echo=True, temperature=0)
        by_ids = await complete(server, prompt=ids, echo=True, temperature=0)
        single = await complete(server, prompt=ids[0], echo=True, temperature=0)
    assert (texts(by_ids), by_ids["usage"]) == (texts(by_text), by_text["usage"])
    assert texts(single) == texts(by_text)[:1]


@pytest.mark.parametrize(
    ("path", "prompt"),
    [(PATH, {"prompt": "two"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "two"}]})],
)
async def test_every_chunk_can_count_its_own_choice_so_far(path: str, prompt: dict[str, Any]) -> None:
    options = {"stream": True, "stream_options": {"continuous_usage_stats": True}}
    async with served(fake=REPLIES) as server:
        usage = (await server.post(path, {**prompt, "temperature": 0, "n": 2})).json()["usage"]
        *chunks, _ = events_of(await server.post(path, {**prompt, "temperature": 0, "n": 2, **options}))
    for index in (0, 1):
        counts = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [count["completion_tokens"] for count in counts] == list(range(1, len(counts) + 1))
        assert {count["prompt_tokens"] for count in counts} == {usage["prompt_tokens"]}
        assert 2 * len(counts) == usage["completion_tokens"]


async def test_a_bias_of_100_leaves_one_token() -> None:
    async with served() as server:
        (token,) = (await server.post("/tokenize", {"inputs": "x", "add_special_tokens": False})).json()
        bias = {"logit_bias": {str(token["id"]): 100}, "max_tokens": 3}
        assert texts(await complete(server, prompt="y", **bias)) == ["xxx"]
        refused = await server.post(PATH, {"prompt": "y", "logit_bias": {"4294967295": 1}})
    assert refused.status_code == 422
    assert "4294967295" in refused.json()["error"]
