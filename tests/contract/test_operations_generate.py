"""TGI's own routes, as a client sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.serving import events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

REPLIES = {"replies": {"weather": " It is sunny. Bye"}}
TEXT = " It is sunny. Bye"
TIMES = {"x-total-time", "x-validation-time", "x-queue-time", "x-inference-time", "x-time-per-token"}
GREEDY: dict[str, Any] = {"max_new_tokens": 100}
INPUTS = "the weather"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_generate_answers_with_an_object_and_the_root_with_an_array() -> None:
    async with served(fake=REPLIES) as server:
        body = {"inputs": INPUTS, "parameters": GREEDY}
        assert (await server.post("/generate", body)).json() == {"generated_text": TEXT}
        assert (await server.post("/", body)).json() == [{"generated_text": INPUTS + TEXT}]
        assert (await server.post("/", {**body, "stream": False})).json() == [
            {"generated_text": INPUTS + TEXT}
        ]


@pytest.mark.parametrize("path", ["/generate", "/"])
async def test_an_answer_has_all_ten_headers(path: str) -> None:
    async with served(fake=REPLIES, compute_type="1-nvidia-l4") as server:
        response = await server.post(path, {"inputs": "the wéather weather", "parameters": GREEDY})
        tokens = (await server.post("/tokenize", {"inputs": "the wéather weather"})).json()
    headers = response.headers
    assert headers["x-compute-type"] == "1-nvidia-l4"
    assert headers["x-compute-characters"] == "19"
    assert float(headers["x-compute-time"]) > 0
    assert all(headers[name].isdigit() for name in TIMES)
    assert int(headers["x-total-time"]) == int(float(headers["x-compute-time"]) * 1000)
    assert headers["x-prompt-tokens"] == str(len(tokens))
    assert int(headers["x-generated-tokens"]) > 1


async def test_the_details_tell_the_tokens() -> None:
    async with served(fake=REPLIES) as server:
        parameters = {**GREEDY, "details": True, "top_n_tokens": 2}
        response = await server.post("/generate", {"inputs": INPUTS, "parameters": parameters})
    details = response.json()["details"]
    assert details["finish_reason"] == "eos_token"
    assert details["seed"] is None
    assert details["prefill"] == []
    assert details["generated_tokens"] == len(details["tokens"]) == len(details["top_tokens"])
    assert "best_of_sequences" not in details
    assert "".join(token["text"] for token in details["tokens"] if not token["special"]) == TEXT
    assert details["tokens"][-1]["special"] is True
    assert all(len(top) == 2 and top[0]["logprob"] >= top[1]["logprob"] for top in details["top_tokens"])
    assert response.headers["x-generated-tokens"] == str(details["generated_tokens"])


@pytest.mark.parametrize("path", ["/generate_stream", "/"])
async def test_a_stream_tells_the_same_as_the_answer(path: str) -> None:
    async with served(fake=REPLIES) as server:
        parameters = {**GREEDY, "details": True, "return_full_text": False}
        body = {"inputs": INPUTS, "parameters": parameters}
        whole = (await server.post("/generate", body)).json()
        response = await server.post(path, {**body, "stream": True})
    events = events_of(response)
    assert [event["index"] for event in events] == list(range(1, len(events) + 1))
    assert [event["token"] for event in events] == whole["details"]["tokens"]
    assert all(event["generated_text"] is None and event["details"] is None for event in events[:-1])
    assert events[-1]["generated_text"] == whole["generated_text"]
    counts = {name: whole["details"][name] for name in ("finish_reason", "generated_tokens", "seed")}
    assert events[-1]["details"] == {**counts, "input_length": int(events[-1]["details"]["input_length"])}
    assert all("top_tokens" not in event for event in events)


async def test_a_stream_has_just_the_headers_that_are_known_before_it() -> None:
    async with served(fake=REPLIES, compute_type="cpu") as server:
        response = await server.post("/generate_stream", {"inputs": INPUTS, "parameters": GREEDY})
    headers = response.headers
    assert headers["content-type"] == "text/event-stream"
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    assert (headers["x-compute-type"], headers["x-compute-characters"]) == ("cpu", "11")
    assert not TIMES & headers.keys()
    assert not {"x-compute-time", "x-prompt-tokens", "x-generated-tokens"} & headers.keys()


async def test_the_root_streams_the_full_text_unless_told_otherwise() -> None:
    async with served(fake=REPLIES) as server:
        response = await server.post("/", {"inputs": INPUTS, "parameters": GREEDY, "stream": True})
    assert events_of(response)[-1]["generated_text"] == INPUTS + TEXT


async def test_the_stop_sequence_ends_the_text_and_stays_in_it() -> None:
    async with served(fake=REPLIES) as server:
        parameters = {**GREEDY, "stop": ["sunny."], "details": True}
        body = {"inputs": INPUTS, "parameters": parameters}
        answer = (await server.post("/generate", body)).json()
        events = events_of(await server.post("/generate_stream", body))
    assert answer["generated_text"].endswith("sunny.")
    assert answer["details"]["finish_reason"] == "stop_sequence"
    assert events[-1]["generated_text"] == answer["generated_text"]


async def test_a_seed_gives_the_same_text_again_and_is_told() -> None:
    async with served() as server:
        body = {"inputs": "x", "parameters": {"do_sample": True, "seed": 2**64 - 1, "details": True}}
        first, second = [(await server.post("/generate", body)).json() for _ in range(2)]
        unseeded = {"inputs": "x", "parameters": {"do_sample": True, "details": True}}
        drawn = [(await server.post("/generate", unseeded)).json()["details"]["seed"] for _ in range(2)]
    assert first == second
    assert first["details"]["seed"] == 2**64 - 1
    assert drawn[0] != drawn[1]


async def test_without_parameters_the_text_is_sampled() -> None:
    async with served() as server:
        texts = {(await server.post("/generate", {"inputs": "x"})).text for _ in range(3)}
        greedy = {(await server.post("/generate", {"inputs": "x", "parameters": {}})).text for _ in range(3)}
    assert len(texts) > 1
    assert len(greedy) == 1


async def test_best_of_answers_with_the_likeliest_and_shows_the_others() -> None:
    async with served() as server:
        parameters = {"best_of": 2, "do_sample": True, "details": True, "max_new_tokens": 5}
        response = await server.post("/generate", {"inputs": "x", "parameters": parameters})
        successes = server.metric("tgi_request_success")
    details = response.json()["details"]
    (loser,) = details["best_of_sequences"]

    def mean(tokens: list[dict[str, Any]]) -> float:
        return sum(token["logprob"] for token in tokens) / len(tokens)

    assert mean(details["tokens"]) >= mean(loser["tokens"])
    assert details["seed"] != loser["seed"]
    assert successes == 2
    assert response.headers["x-generated-tokens"] == str(details["generated_tokens"])


@pytest.mark.parametrize("path", ["/generate", "/", "/invocations"])
async def test_alternatives_without_details_are_told_to_have_no_effect(path: str) -> None:
    async with served() as server:
        given: dict[str, Any] = {"top_n_tokens": 2, "max_new_tokens": 2}
        alone = await server.post(path, {"inputs": "x", "parameters": {**given, "foo": 1}})
        asked = await server.post(path, {"inputs": "x", "parameters": {**given, "details": True}})
        streaming = "/generate_stream" if path == "/generate" else path
        stream = await server.post(streaming, {"inputs": "x", "parameters": given, "stream": True})
    assert alone.headers["x-ignored-parameters"] == "parameters.foo,parameters.top_n_tokens"
    assert "top_tokens" in asked.text
    assert all("top_tokens" in event for event in events_of(stream))
    assert "top_n_tokens" not in asked.headers.get("x-ignored-parameters", "")
    assert "top_n_tokens" not in stream.headers.get("x-ignored-parameters", "")


async def test_the_prompts_logprobs_are_given_if_enabled_at_start() -> None:
    body = {"inputs": "hello", "parameters": {"max_new_tokens": 1, "decoder_input_details": True}}
    async with served(enable_prefill_logprobs=True) as server:
        prefill = (await server.post("/generate", body)).json()["details"]["prefill"]
        tokens = (await server.post("/tokenize", {"inputs": "hello"})).json()
    async with served() as server:
        without = (await server.post("/generate", body)).json()["details"]["prefill"]
    assert [token["id"] for token in prefill] == [token["id"] for token in tokens]
    assert prefill[0]["logprob"] is None
    assert all(token["logprob"] < 0 for token in prefill[1:])
    assert without == []


async def test_truncation_keeps_the_last_tokens() -> None:
    async with served() as server:
        body = {"inputs": "one two three", "parameters": {"truncate": 2, "max_new_tokens": 1}}
        response = await server.post("/generate", body)
    assert response.headers["x-prompt-tokens"] == "2"


REFUSED = [
    ({"inputs": ""}, "`inputs` cannot be empty"),
    ({"inputs": "x", "parameters": {"temperature": 0}}, "`temperature` must be strictly positive"),
    ({"inputs": "x", "parameters": {"top_p": 1.5}}, "`top_p` must be > 0.0 and < 1.0"),
    ({"inputs": "x", "parameters": {"stop": ["a"] * 5}}, "`stop` supports up to 4 stop sequences. Given: 5"),
    (
        {"inputs": "x", "parameters": {"truncate": 0}},
        "`truncate` must be strictly positive and less than 127. Given: 0",
    ),
    (
        {"inputs": "x", "parameters": {"max_new_tokens": 10000}},
        "`inputs` tokens + `max_new_tokens` must be <= 128. "
        "Given: 1 `inputs` tokens and 1024 `max_new_tokens`",
    ),
    ({"inputs": "", "parameters": {"temperature": 0}}, "`temperature` must be strictly positive"),
]


async def test_bad_input_is_refused_in_tgis_words_streamed_or_not() -> None:
    async with served(max_total_tokens=128) as server:
        asked = [(path, *case) for case in REFUSED for path in ("/generate", "/generate_stream", "/")]
        for path, body, message in asked:
            response = await server.post(path, body)
            assert response.status_code == 422, path
            expected = {"error": f"Input validation error: {message}", "error_type": "validation"}
            assert error_of(response) == expected, path
        assert server.metric('tgi_request_failure{err="validation"}') == len(asked)
        assert server.metric("tgi_request_count") == len(asked)


async def test_a_failure_before_the_first_token_has_its_own_status_streamed_or_not() -> None:
    async with served(fake={"fail_prompts": ["bad"]}) as server:
        for stream in (False, True):
            response = await server.post("/", {"inputs": "bad", "stream": stream})
            assert response.status_code == 424
            assert response.json()["error_type"] == "generation"
        assert server.metric('tgi_request_failure{err="generation"}') == 2


async def test_a_failure_after_the_first_token_is_the_last_event() -> None:
    async with served(fake={"fail_prompts": ["bad"], "fails_after": 2}) as server:
        response = await server.post("/generate_stream", {"inputs": "bad"})
    assert response.status_code == 200
    *tokens, error = events_of(response)
    assert [event["index"] for event in tokens] == [1, 2]
    assert error_of(response, error) == {
        "error": "Request failed during generation: injected failure: bad",
        "error_type": "generation",
    }


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_a_full_engine_answers_429_at_once_and_has_room_again_after(path: str) -> None:
    async with served(fake={**REPLIES, "step_seconds": 0.02}, max_concurrent_requests=1) as server:
        body = {"inputs": INPUTS, "parameters": GREEDY}
        first = asyncio.create_task(server.post(path, body))
        while server.metric("tgi_request_count") == 0:  # noqa: ASYNC110 - as a client can see it
            await asyncio.sleep(0.001)
        refused = await server.post(path, body)
        assert (await first).status_code == 200
        again = await server.post(path, body)
    assert refused.status_code == 429
    assert error_of(refused) == {"error": "Model is overloaded", "error_type": "overloaded"}
    assert int(refused.headers["retry-after"]) >= 1
    assert again.status_code == 200


async def test_each_candidate_of_best_of_takes_a_place() -> None:
    body = {"inputs": "x", "parameters": {"best_of": 2, "do_sample": True}}
    async with served(max_concurrent_requests=2) as server:
        with server.service.engine.admit():
            response = await server.post("/generate", body)
        assert response.status_code == 429
        assert server.metric('tgi_request_failure{err="overloaded"}') == 1
        assert (await server.post("/generate", body)).status_code == 200
