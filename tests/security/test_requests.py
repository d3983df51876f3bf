"""Requests that ask for too much, or for what isn't there: refused before any work, in words."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from inference.types import CoreRequest
from tests.support import LiveServer, live_server

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
HUGE = 10**30


def refused(client: httpx.Client, path: str, body: Any, *words: str) -> str:
    """Return the message of a refusal that names all of `words`."""
    answer = client.post(path, json=body)
    assert answer.status_code == 422, answer.text
    message: str = answer.json()["error"]
    assert [word for word in words if word not in message] == []
    return message


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", {**CHAT, "n": 17}, ("`n`", "16", "17")),
        ("/v1/chat/completions", {**CHAT, "n": 2**31 - 1}, ("`n`",)),
        ("/v1/completions", {"prompt": "Hi", "n": 1000}, ("`n`",)),
        ("/v1/completions", {"prompt": "Hi", "best_of": 1000}, ("`best_of`",)),
        ("/v1/completions", {"prompt": ["Hi"] * 5}, ("batch size", "4")),
        ("/generate", {"inputs": "Hi", "parameters": {"best_of": 3, "do_sample": True}}, ("`best_of`", "2")),
        ("/generate", {"inputs": "Hi", "parameters": {"stop": ["a"] * 5}}, ("`stop`", "4", "5")),
    ],
)
def test_n_and_best_of_are_bounded(
    path: str, body: dict[str, Any], words: tuple[str, ...], client: httpx.Client
) -> None:
    refused(client, path, body, *words)


def test_all_sequences_of_a_body_count_as_requests_in_flight() -> None:
    with live_server(max_concurrent_requests=8) as live, live.client() as client:
        refused(client, "/v1/chat/completions", {**CHAT, "n": 9}, "9", "`max_concurrent_requests`", "8")
        assert client.post("/v1/chat/completions", json={**CHAT, "n": 8}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 21}, ("`top_logprobs`", "20")),
        ("/v1/completions", {"prompt": "Hi", "logprobs": 6}, ("`logprobs`", "5")),
        ("/generate", {"inputs": "Hi", "parameters": {"top_n_tokens": 6}}, ("`top_n_tokens`", "5", "6")),
    ],
)
def test_alternatives_of_a_token_are_bounded(
    path: str, body: dict[str, Any], words: tuple[str, ...], client: httpx.Client
) -> None:
    refused(client, path, body, *words)


def test_log_probabilities_of_a_text_are_bounded_with_those_of_its_prompt() -> None:
    asked = {"prompt": "Hi " * 20, "logprobs": 5, "echo": True, "max_tokens": 10}
    chat = {**CHAT, "logprobs": True, "top_logprobs": 20}
    changes: dict[str, Any] = {"max_sequence_logprobs": 150, "enable_prefill_logprobs": True}
    with live_server(**changes) as live, live.client() as client:
        refused(client, "/v1/completions", asked, "5", "150", "`max_sequence_logprobs`", "`max_tokens`")
        refused(client, "/v1/chat/completions", {**chat, "max_tokens": 8}, "20", "8", "150")
        assert client.post("/v1/completions", json={**asked, "echo": False}).status_code == 200
        # Of a prompt TGI's routes tell no alternatives
        details = {"decoder_input_details": True, "top_n_tokens": 5, "max_new_tokens": 10}
        generate = {"inputs": "Hi " * 20, "parameters": details}
        answer = client.post("/generate", json=generate).json()
        assert set(answer["details"]["prefill"][1]) == {"id", "text", "logprob"}
        assert client.post("/v1/chat/completions", json={**chat, "max_tokens": 7}).status_code == 200
        answer = client.post(
            "/v1/chat/completions", json={**chat, "max_tokens": None, "ignore_eos": True}
        ).json()
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (7, "length")


def test_log_probabilities_are_bounded_for_all_texts_of_a_body_together() -> None:
    words = ("`n`", "`best_of`", "`top_n_tokens`", "`top_logprobs`", "<= 100", "`max_sequence_logprobs`")
    chat = {**CHAT, "logprobs": True, "top_logprobs": 5, "max_tokens": 5}
    completion = {"logprobs": 5, "max_tokens": 5}
    parameters = {"top_n_tokens": 5, "max_new_tokens": 25, "details": True}
    sampled = {**parameters, "do_sample": True, "best_of": 2}
    text = {"inputs": "Hi", "parameters": parameters}
    tensor = {"name": "input", "shape": [1], "datatype": "BYTES", "data": ["Hi"]}
    with live_server(max_sequence_logprobs=100) as live, live.client() as client:
        for streamed in ({}, {"stream": True}):
            path = "/v1/chat/completions"
            refused(client, path, {**chat, **streamed, "n": 5}, *words, "Given: 125", "of 5 texts")
            assert client.post(path, json={**chat, **streamed, "n": 4}).status_code == 200
            path, body = "/v1/completions", {**completion, **streamed}
            refused(client, path, {**body, "prompt": ["Hi"] * 3, "n": 2}, *words, "Given: 150", "of 6 texts")
            assert client.post(path, json={**body, "prompt": ["Hi"] * 4}).status_code == 200
        best = {**completion, "prompt": "Hi", "n": 1, "best_of": 5}
        refused(client, "/v1/completions", best, *words, "Given: 125")
        parameters["max_new_tokens"] = sampled["max_new_tokens"] = 20
        assert client.post("/generate", json=text).status_code == 200
        refused(client, "/generate", {"inputs": "Hi", "parameters": sampled}, *words, "Given: 200")
        infer = {"inputs": [tensor] * 2, "parameters": parameters}  # of which these show, and compute, none
        assert client.post("/v2/models/m/infer", json=infer).status_code == 200
        assert client.post("/vertex", json={"instances": [text] * 3}).status_code == 200


def test_the_size_of_a_grammar_is_a_setting() -> None:
    small = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    large = {**small, "description": "x" * 200}
    words = ("must have <= 200 bytes (`max_grammar_size`). Given: ", "Shorten it")

    def bodies(schema: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
        inputs = {"inputs": "Hi", "parameters": {"grammar": {"type": "json", "value": schema}}}
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        return {
            "parameters.grammar.value": ("/generate", inputs),
            "response_format.json_schema.schema": ("/v1/chat/completions", {**CHAT, "response_format": form}),
            "tools['f'].function.parameters": ("/v1/chat/completions", {**CHAT, "tools": [tool]}),
        }

    with live_server(max_grammar_size=200) as live, live.client() as client:
        for path, body in bodies(small).values():
            assert client.post(path, json=body).status_code == 200
        for member, (path, body) in bodies(large).items():
            refused(client, path, body, member, *words)
        for size, status in ((200, 200), (201, 422)):
            grammar = {"type": "regex", "value": "a" * size}
            body = {"inputs": "Hi", "parameters": {"grammar": grammar, "max_new_tokens": 2}}
            assert client.post("/generate", json=body).status_code == status
        refused(client, "/generate", body, "parameters.grammar.value", *words, "201")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": ""}),
        ("/v1/completions", {"prompt": ""}),
        ("/v1/completions", {"prompt": []}),
        ("/v1/chat/completions", {"messages": []}),
        ("/vertex", {"instances": []}),
        ("/v2/models/m/infer", {"inputs": [{"data": [""]}]}),
    ],
)
def test_an_empty_prompt_is_refused(path: str, body: dict[str, Any], client: httpx.Client) -> None:
    refused(client, path, body)


@pytest.mark.parametrize("value", [-1, -(2**63), 2**31, 2**63, 2**64, HUGE, -HUGE])
@pytest.mark.parametrize("member", ["max_new_tokens", "top_k", "truncate", "best_of", "top_n_tokens"])
def test_negative_and_huge_integers_are_refused(member: str, value: int, client: httpx.Client) -> None:
    body = {"inputs": "Hi", "parameters": {member: value}}
    answer = client.post("/generate", json=body)
    if member == "max_new_tokens" and value == 2**31:  # asks for no more than there is
        assert answer.status_code == 200
        return
    assert answer.status_code in (400, 422), answer.text  # the parser takes no integer of a hundred bits
    assert answer.json()["error_type"] == "validation"


@pytest.mark.parametrize("seed", [-1, 2**64, HUGE])
def test_a_seed_that_is_no_uint64_is_refused(seed: int, client: httpx.Client) -> None:
    answer = client.post("/generate", json={"inputs": "Hi", "parameters": {"seed": seed}})
    assert answer.status_code in (400, 422)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("member", ["temperature", "top_p", "repetition_penalty", "frequency_penalty"])
def test_numbers_that_are_none_are_refused(member: str, literal: str, client: httpx.Client) -> None:
    raw = f'{{"inputs": "Hi", "parameters": {{"{member}": {literal}}}}}'
    answer = client.post("/generate", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422), answer.text


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 1e-45},
        {"temperature": 1e30},
        {"temperature": 5e-324},
        {"repetition_penalty": 1e-30},
        {"repetition_penalty": 1e30},
        {"top_p": 1e-30},
        {"typical_p": 1e-30},
        {"top_k": 2**31 - 1},
    ],
)
def test_extreme_sampling_values_are_served_or_refused_and_never_fail(
    parameters: dict[str, float], client: httpx.Client
) -> None:
    body = {"inputs": "Hi", "parameters": {**parameters, "do_sample": True, "details": True}}
    answer = client.post("/generate", json=body)
    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 200:
        told = [token["logprob"] for token in answer.json()["details"]["tokens"]]
        assert all(logprob is None or math.isfinite(logprob) for logprob in told)


def test_ids_and_biases_out_of_the_vocabulary_are_refused(client: httpx.Client, server: LiveServer) -> None:
    size = server.service.engine.model.vocabulary_size
    for wrong in (size, 2**31 - 1, 2**31):
        refused(client, "/v1/completions", {"prompt": [1, wrong]})
        refused(client, "/v1/chat/completions", {**CHAT, "logit_bias": {str(wrong): 1}})
    refused(client, "/v1/completions", {"prompt": [-1]})
    refused(client, "/v1/chat/completions", {**CHAT, "logit_bias": {"-1": 1}})
    refused(client, "/v1/chat/completions", {**CHAT, "logit_bias": {"5": 1e30}})


def test_a_prompt_that_can_not_fit_is_refused_before_it_is_tokenised(
    server: LiveServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = server.service.engine._text
    assert text is not None
    assert text.longest_token is not None
    encoded: list[str] = []
    encode = text.encode

    async def noting(prompt: str, **how: Any) -> list[int]:
        encoded.append(prompt)
        return await encode(prompt, **how)

    monkeypatch.setattr(text, "encode", noting)
    longest = server.service.engine.model.max_input_tokens * text.longest_token
    message = refused(client, "/generate", {"inputs": "é" * (longest // 2 + 1)})
    assert encoded == []
    assert "Given: at least " in message
    refused(client, "/generate", {"inputs": "a" * longest})
    assert len(encoded) == 1


def test_more_ids_than_fit_are_refused_before_their_text_is_made(
    server: LiveServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = server.service.engine._text
    assert text is not None
    decoded: list[int] = []
    decode = text.decode

    async def noting(ids: Any) -> str:
        decoded.append(len(ids))
        return await decode(ids)

    monkeypatch.setattr(text, "decode", noting)
    most = server.service.engine.model.max_input_tokens
    refused(client, "/v1/completions", {"prompt": [5] * (most + 1)}, f"less than {most}", f"{most + 1}")
    assert decoded == []
    fits = {"prompt": [5] * most, "max_tokens": 1}
    assert client.post("/v1/completions", json=fits).status_code == 200
    assert decoded == [most]


def test_how_long_a_token_can_be_is_true_of_every_text(server: LiveServer) -> None:
    text = server.service.engine._text
    assert text is not None
    assert text.longest_token is not None
    tokenizer = text._tokenizer
    for sample in (" " * 500, "a" * 500, "<|im_start|>" * 50, "é中\x00" * 99, "the cat sat on the mat " * 30):
        ids = tokenizer.encode(sample, add_special_tokens=False)
        assert len(ids) * text.longest_token >= len(sample.encode())


def test_what_reaches_the_engine_is_within_the_limits(
    server: LiveServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, seen = server.service.engine._core, []
    submit = core.submit

    def noting(request: CoreRequest) -> None:
        seen.append(request)
        submit(request)

    monkeypatch.setattr(core, "submit", noting)
    client.post("/generate", json={"inputs": "Hi", "parameters": {"max_new_tokens": 2**31 - 1}})
    client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2**31 - 1})
    model = server.service.engine.model
    assert len(seen) == 2
    assert all(len(each.prompt_ids) + each.max_new_tokens <= model.max_total_tokens for each in seen)
