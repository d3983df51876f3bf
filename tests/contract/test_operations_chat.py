"""Chat completions and the tokens of a chat, as a client sees them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from handlers.version import fingerprint
from tests.contract.serving import events_of, served
from tests.support import error_of

pytestmark = pytest.mark.anyio

REPLIES = {"replies": {"weather": "It is sunny. Bye"}}
TEXT = "It is sunny. Bye"
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "the weather?"}]
BODY: dict[str, Any] = {"messages": MESSAGES, "temperature": 0}
PATH = "/v1/chat/completions"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_an_answer_has_the_text_and_the_usage() -> None:
    async with served(fake=REPLIES, model_id="org/m", docker_label="sha-1") as server:
        response = await server.post(PATH, BODY)
        tokenized = (await server.post("/chat_tokenize", BODY)).json()
    body = response.json()
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert (choice["logprobs"], choice["finish_reason"]) == (None, "stop")
    assert body["id"].startswith("chatcmpl-")
    assert (body["model"], body["system_fingerprint"]) == ("org/m", fingerprint("sha-1"))
    usage = body["usage"]
    assert usage["prompt_tokens"] == len(tokenized["tokenize_response"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert response.headers["x-compute-characters"] == str(len(tokenized["templated_text"]))
    assert response.headers["x-generated-tokens"] == str(usage["completion_tokens"])
    assert float(response.headers["x-compute-time"]) > 0


async def test_the_model_is_echoed_and_ids_differ() -> None:
    async with served(model_id="org/m") as server:
        answers = [
            (await server.post(PATH, {**BODY, "model": name})).json() for name in ("gpt-4o", "tgi", None)
        ]
    assert [answer["model"] for answer in answers] == ["gpt-4o", "org/m", "org/m"]
    assert len({answer["id"] for answer in answers}) == 3


async def test_a_stream_tells_the_same_as_the_answer() -> None:
    async with served(fake=REPLIES) as server:
        body = {**BODY, "logprobs": True, "top_logprobs": 2}
        whole = (await server.post(PATH, body)).json()
        response = await server.post(PATH, {**body, "stream": True})
    *chunks, done = events_of(response)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert done == "[DONE]"
    assert "".join(choice["delta"]["content"] for choice in choices) == TEXT
    assert {choice["delta"]["role"] for choice in choices} == {"assistant"}
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"] == "stop"
    streamed = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    assert streamed == whole["choices"][0]["logprobs"]["content"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in streamed)
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert response.headers["content-type"] == "text/event-stream"
    assert int(response.headers["x-compute-characters"]) > 0
    assert "x-total-time" not in response.headers


async def test_usage_comes_in_one_chunk_more_if_asked_for() -> None:
    async with served(fake=REPLIES) as server:
        whole = (await server.post(PATH, {**BODY, "cache_salt": "another"})).json()
        body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
        *chunks, last, done = events_of(await server.post(PATH, body))
        nulls = {**BODY, "stream": True, "stream_options": None}
        plain = events_of(await server.post(PATH, nulls))[:-1]
    assert done == "[DONE]"
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks + plain)
    assert len(plain) == len(chunks)


async def test_the_stop_sequence_ends_the_text_and_is_cut_off() -> None:
    async with served(fake=REPLIES) as server:
        body = {**BODY, "stop": " Bye"}
        whole = (await server.post(PATH, body)).json()["choices"][0]
        *chunks, _ = events_of(await server.post(PATH, {**body, "stream": True}))
    assert (whole["message"]["content"], whole["finish_reason"]) == ("It is sunny.", "stop")
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "It is sunny."


async def test_the_limit_of_tokens_ends_the_text_with_length() -> None:
    async with served(fake=REPLIES) as server:
        body = (await server.post(PATH, {**BODY, "max_completion_tokens": 2})).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2


async def test_chat_tokens_cover_the_rendered_text() -> None:
    async with served() as server:
        body = {"messages": [{"role": "user", "content": "Hé"}]}
        reply = (await server.post("/chat_tokenize", body)).json()
        counted = server.metric("tgi_request_count")
    raw = reply["templated_text"].encode()
    tokens = reply["tokenize_response"]
    assert tokens[0]["start"] == 0
    assert tokens[-1]["stop"] == len(raw)
    assert all(left["stop"] == right["start"] for left, right in pairwise(tokens))
    assert counted == 1


async def test_every_optional_member_may_be_null() -> None:
    names = ["model", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "max_tokens", "n"]
    names += ["presence_penalty", "response_format", "seed", "stop", "temperature", "top_p", "tools"]
    names += ["tool_prompt", "tool_choice", "stream_options"]
    async with served() as server:
        response = await server.post(PATH, {"messages": MESSAGES, "stream": False, **dict.fromkeys(names)})
    assert response.status_code == 200
    assert "x-ignored-parameters" not in response.headers


async def test_alternatives_without_logprobs_are_told_to_have_no_effect() -> None:
    async with served(fake=REPLIES) as server:
        alone = await server.post(PATH, {**BODY, "top_logprobs": 2})
        stream = await server.post(PATH, {**BODY, "top_logprobs": 2, "stream": True})
        asked = await server.post(PATH, {**BODY, "logprobs": True, "top_logprobs": 2})
    assert alone.headers["x-ignored-parameters"] == "top_logprobs"
    assert stream.headers["x-ignored-parameters"] == "top_logprobs"
    assert "x-ignored-parameters" not in asked.headers


async def test_several_answers_share_a_prompt_and_are_told_apart() -> None:
    body = {"messages": MESSAGES, "temperature": 1, "seed": 7, "n": 3}
    async with served() as server:
        response = await server.post(PATH, body)
        seeded = [(await server.post(PATH, {**body, "n": 1, "seed": 7 + at})).json() for at in range(3)]
        options = {"stream": True, "stream_options": {"include_usage": True}, "cache_salt": "another"}
        *chunks, last, done = events_of(await server.post(PATH, {**body, **options}))
        finished = server.metric("tgi_request_success")
    answer = response.json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == [one["choices"][0]["message"]["content"] for one in seeded]
    assert len(set(texts)) == 3
    streamed = ["", "", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["delta"]["content"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    usage = answer["usage"]
    assert streamed == texts
    assert (done, last["usage"]) == ("[DONE]", usage)
    assert len([reason for reason in reasons if reason is not None]) == 3
    assert usage["prompt_tokens"] == seeded[0]["usage"]["prompt_tokens"]
    assert usage["completion_tokens"] == sum(one["usage"]["completion_tokens"] for one in seeded)
    assert response.headers["x-generated-tokens"] == str(usage["completion_tokens"])
    assert response.headers["x-prompt-tokens"] == str(usage["prompt_tokens"])
    assert finished == 3 + 3 + 3


async def test_each_answer_takes_a_place() -> None:
    async with served(max_concurrent_requests=2) as server:
        fits = await server.post(PATH, {**BODY, "n": 2})
        never = await server.post(PATH, {**BODY, "n": 3})
        with server.service.engine.admit():
            not_now = await server.post(PATH, {**BODY, "n": 2})
        again = await server.post(PATH, {**BODY, "n": 2, "stream": True})
    assert [reply.status_code for reply in (fits, never, not_now, again)] == [200, 422, 429, 200]


async def test_one_answer_that_fails_ends_the_stream_with_one_error() -> None:
    async with served(fake={"fail_prompts": ["weather"], "fails_after": 1}) as server:
        response = await server.post(PATH, {**BODY, "n": 2, "stream": True})
        whole = await server.post(PATH, {**BODY, "n": 2})
        failures = server.metric('tgi_request_failure{err="generation"}')
        after = await server.post(PATH, {**BODY, "messages": [{"role": "user", "content": "Hi"}]})
    *chunks, error, done = events_of(response)
    assert all("error" not in chunk for chunk in chunks)
    assert (error["error"]["http_status_code"], done) == (424, "[DONE]")
    assert (whole.status_code, failures, after.status_code) == (424, 2, 200)


async def test_every_chunk_counts_so_far_if_asked_to() -> None:
    async with served(fake=REPLIES) as server:
        usage = (await server.post(PATH, {**BODY, "cache_salt": "another"})).json()["usage"]
        options = {"continuous_usage_stats": True, "include_usage": True}
        *chunks, last, _ = events_of(
            await server.post(PATH, {**BODY, "stream": True, "stream_options": options})
        )
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == list(range(1, len(chunks) + 1))
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {usage["prompt_tokens"]}
    assert last["usage"] == usage
    assert counts[-1] == usage["completion_tokens"]


async def test_bytes_of_tokens_add_up_to_the_text_where_a_character_has_several() -> None:
    text = "Grüße, 世界 🌍!"
    async with served(fake={"replies": {"weather": text}}) as server:
        body = {**BODY, "logprobs": True}
        choice = (await server.post(PATH, body)).json()["choices"][0]
    *entries, eos = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == text.encode()
    assert bytes(eos["bytes"]).decode() == eos["token"]
    pieces = [entry for entry in entries if entry["token"].startswith("\\x")]
    assert pieces
    spelled = [bytes(entry["bytes"]).decode("utf-8", "backslashreplace") for entry in entries]
    assert [entry["token"] for entry in entries] == spelled


async def test_biases_and_limits_of_other_servers_have_their_effect() -> None:
    async with served(fake=REPLIES) as server:
        plain = (await server.post(PATH, BODY)).json()
        least = plain["usage"]["completion_tokens"] + 3
        longer = (await server.post(PATH, {**BODY, "min_tokens": least})).json()
        endless = (await server.post(PATH, {**BODY, "ignore_eos": True, "max_tokens": least})).json()
        refused = await server.post(PATH, {**BODY, "logit_bias": {"x": 1}})
        beyond = await server.post(PATH, {**BODY, "logit_bias": {"1": 101}})
    assert longer["usage"]["completion_tokens"] >= least
    assert endless["usage"]["completion_tokens"] == least
    assert endless["choices"][0]["finish_reason"] == "length"
    assert (refused.status_code, beyond.status_code) == (422, 422)
    assert '"x"' in refused.json()["error"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "`n` must be > 0 and <= 16. Given: 0"),
    ({"n": 17}, "`n` must be > 0 and <= 16. Given: 17"),
    (
        {"response_format": {"type": "json_schema"}},
        "`response_format.json_schema` is missing: give it with the JSON Schema in its member `schema`",
    ),
    (
        {"response_format": {"type": "json_schema", "value": {"schema": {}}, "json_schema": {"schema": {}}}},
        "`response_format` has `value` and `json_schema`: they mean the same, give one",
    ),
    ({"temperature": -0.5}, "`temperature` must be strictly positive"),
    ({"top_p": 0}, "`top_p` must be > 0.0 and < 1.0"),
    ({"max_tokens": 0}, "`max_new_tokens` must be strictly positive"),
    ({"top_logprobs": 21}, "`top_logprobs` must be >= 0 and <= 20. Given: 21"),
    (
        {"max_tokens": 1, "max_completion_tokens": 2},
        "`max_tokens` is 1 and `max_completion_tokens` is 2: they mean the same, give one",
    ),
    (
        {"messages": [{"role": "user"}]},
        "`messages[0]` has no `content`, `refusal` or `tool_calls`: give it one of them",
    ),
]


async def test_bad_input_is_refused_streamed_or_not() -> None:
    async with served() as server:
        for members, message in REFUSED:
            for stream in (False, True):
                response = await server.post(PATH, {"messages": MESSAGES, "stream": stream, **members})
                assert response.status_code == 422
                expected = {"error": f"Input validation error: {message}", "error_type": "validation"}
                assert error_of(response) == expected
        images = [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}
        ]
        image = await server.post(PATH, {"messages": images})
        assert (image.status_code, image.json()["error_type"]) == (422, "validation")
        assert server.metric('tgi_request_failure{err="validation"}') == 2 * len(REFUSED) + 1


async def test_a_failure_after_the_first_token_is_an_event_in_openais_form() -> None:
    async with served(fake={"fail_prompts": ["weather"], "fails_after": 1}) as server:
        response = await server.post(PATH, {**BODY, "stream": True})
        before = await server.post(PATH, BODY)
    first, error, done = events_of(response)
    assert first["object"] == "chat.completion.chunk"
    assert error_of(response, error["error"]) == {
        "message": "Request failed during generation: injected failure: weather",
        "type": "server_error",
        "param": None,
        "code": "generation",
        "http_status_code": 424,
        "error_type": "generation",
    }
    assert done == "[DONE]"
    assert before.status_code == 424


async def test_openais_clients_get_the_role_once() -> None:
    """They append it to that of the chunk before."""
    headers = {"x-stainless-lang": "python"}
    async with served(fake=REPLIES) as server:
        response = await server.http.post(PATH, json={**BODY, "stream": True}, headers=headers)
    *chunks, _ = events_of(response)
    told = ["role" in chunk["choices"][0]["delta"] for chunk in chunks]
    assert told == [True] + [False] * (len(chunks) - 1)
    assert len(told) > 1


async def test_only_openais_clients_have_a_chunk_before_the_first_token_with_log_probabilities() -> None:
    body = {**BODY, "stream": True, "logprobs": True, "max_tokens": 2}
    async with served() as server:
        tgis = events_of(await server.post(PATH, body))
        openais = events_of(await server.http.post(PATH, json=body, headers={"x-stainless-lang": "js"}))
    counts = [
        [len(chunk["choices"][0]["logprobs"]["content"]) for chunk in chunks[:-1]]
        for chunks in (tgis, openais)
    ]
    assert counts == [[1, 1], [0, 1, 1]]


@pytest.mark.parametrize(
    ("path", "asked"), [("/v1/chat/completions", BODY), ("/v1/completions", {"prompt": "Hi"})]
)
async def test_what_is_asked_of_a_stream_is_named_where_there_is_none(
    path: str, asked: dict[str, Any]
) -> None:
    told = {"stream_options": {"include_usage": True}}
    async with served() as server:
        whole = await server.post(path, {**asked, **told})
        idle = await server.post(path, {**asked, "stream_options": {"include_usage": False}})
        stream = await server.post(path, {**asked, **told, "stream": True})
    assert whole.headers["x-ignored-parameters"] == "stream_options"
    assert "x-ignored-parameters" not in idle.headers
    assert "x-ignored-parameters" not in stream.headers
