"""Where nobody is told log-probabilities none are computed, and what stands for them is shown nowhere."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from inference.fakes.core import MEANINGLESS
from inference.types import CoreRequest, LogprobsMode
from tests.contract.serving import Served, served

pytestmark = pytest.mark.anyio

PROMPT: dict[str, Any] = {"inputs": "x"}
TEXT: dict[str, Any] = {"prompt": "x", "max_tokens": 5}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
TENSOR: dict[str, Any] = {"inputs": [{"name": "t", "shape": [1], "datatype": "BYTES", "data": ["x"]}]}
BEST = {"best_of": 2, "do_sample": True}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
SHOWN = f"{MEANINGLESS:.0f}"


@dataclass(frozen=True)
class Asked:
    """A request, and which log-probabilities are computed for each of its texts."""

    path: str
    body: dict[str, Any]
    computed: Sequence[str] = ("none",)


def given(body: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    return {**body, "parameters": parameters}


def instances(*bodies: dict[str, Any]) -> dict[str, Any]:
    return {"instances": bodies}


ASKED = [
    Asked("/generate", PROMPT),
    Asked("/generate", given(PROMPT, do_sample=True, temperature=0.5)),
    Asked("/generate", given(PROMPT, details=True), ["processed"]),
    Asked("/generate", given(PROMPT, decoder_input_details=True), ["processed"]),
    Asked("/generate", given(PROMPT, top_n_tokens=2)),
    Asked("/generate", given(PROMPT, top_n_tokens=2, details=True), ["processed"]),
    Asked("/generate", given(PROMPT, **BEST), ["processed"] * 2),
    Asked("/generate_stream", PROMPT, ["processed"]),
    Asked("/", PROMPT),
    Asked("/", given(PROMPT, details=True), ["processed"]),
    Asked("/", {**PROMPT, "stream": True}, ["processed"]),
    Asked("/invocations", PROMPT),
    Asked("/v1/completions", TEXT),
    Asked("/v1/completions", {**TEXT, "stream": True, "temperature": 0, "n": 2}, ["none"] * 2),
    Asked("/v1/completions", {**TEXT, "echo": True}),
    Asked("/v1/completions", {**TEXT, "echo": True, "max_tokens": 0, "stream": True}),
    Asked("/v1/completions", {**TEXT, "n": 1, "best_of": 2}, ["raw"] * 2),
    Asked("/v1/completions", {**TEXT, "logprobs": 0}, ["raw"]),
    Asked("/v1/completions", {**TEXT, "logprobs": 2, "echo": True, "stream": True}, ["raw"]),
    Asked("/v1/chat/completions", CHAT),
    Asked("/v1/chat/completions", {**CHAT, "stream": True, "n": 2}, ["none"] * 2),
    Asked("/v1/chat/completions", {**CHAT, "tools": [WEATHER], "max_tokens": 50}),
    Asked("/v1/chat/completions", {**CHAT, "tools": [WEATHER], "max_tokens": 50, "stream": True}),
    Asked("/v1/chat/completions", {**CHAT, "top_logprobs": 2}),
    Asked("/v1/chat/completions", {**CHAT, "logprobs": True}, ["raw"]),
    Asked("/v1/chat/completions", {**CHAT, "logprobs": True, "stream": True, "top_logprobs": 2}, ["raw"]),
    Asked("/v2/models/m/infer", TENSOR),
    Asked("/v2/models/m/infer", given(TENSOR, details=True)),
    Asked("/v2/models/m/infer", given(TENSOR, decoder_input_details=True)),
    Asked("/v2/models/m/infer", given(TENSOR, **BEST), ["processed"] * 2),
    Asked("/vertex", instances(PROMPT, {**CHAT, "logprobs": True, "top_logprobs": 2}), ["none"] * 2),
    Asked("/vertex", instances(given(PROMPT, details=True), CHAT), ["none"] * 2),
    Asked("/vertex", instances(given(PROMPT, decoder_input_details=True))),
    Asked("/vertex", instances(given(PROMPT, **BEST)), ["processed"] * 2),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def modes(server: Served, monkeypatch: pytest.MonkeyPatch) -> list[LogprobsMode]:
    """Return a list that the mode of every request will be in as the engine gets it."""
    core, seen = server.service.engine._core, []
    submit = core.submit

    def noting(request: CoreRequest) -> None:
        seen.append(request.logprobs)
        submit(request)

    monkeypatch.setattr(core, "submit", noting)
    return seen


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: f"{asked.path} {asked.body}")
async def test_what_nobody_is_told_is_not_computed_and_shown_nowhere(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(enable_prefill_logprobs=True) as server:
        seen = modes(server, monkeypatch)
        response = await server.post(asked.path, asked.body)
        metrics = server.service.metrics.render().decode()
    assert response.status_code == 200, response.text
    assert seen == list(asked.computed)
    for place in (response.text, str(response.headers), metrics, caplog.text):
        assert SHOWN not in place


@pytest.mark.parametrize("mode", ["raw", "processed"])
async def test_a_setting_says_which_are_told_where_any_are(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(enable_prefill_logprobs=True, logprobs_mode=mode) as server:
        seen = modes(server, monkeypatch)
        for asked in ASKED:
            await server.post(asked.path, asked.body)
    computed = [each for asked in ASKED for each in asked.computed]
    assert seen == ["none" if each == "none" else mode for each in computed]


async def test_what_stands_for_an_untold_one_would_be_seen() -> None:
    async with served() as server:
        core = server.service.engine._core
        submit = core.submit

        def untold(request: CoreRequest) -> None:
            object.__setattr__(request, "logprobs", LogprobsMode.NONE)
            submit(request)

        core.submit = untold  # type: ignore[method-assign]
        response = await server.post("/generate", given(PROMPT, details=True))
    assert SHOWN in response.text
