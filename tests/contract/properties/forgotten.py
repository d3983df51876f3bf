"""Defects that no schema shows: what is asked for is forgotten, or the answer is that to another request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from handlers.http import contract
from handlers.wire import completion_answer
from inference.frontend.client import EngineClient
from tests.contract.properties.mutant import APART, CASES, NO_JSON, RANGES, Mutant
from tests.contract.properties.tampering import body, reply, request, result, value


def _forget(*names: str) -> Any:
    """Return a change of a TGI body: members of its parameters are as good as absent."""

    def change(asked: Any) -> None:
        for name in names:
            (asked.get("parameters") or {}).pop(name, None)

    return change


def _leave(name: str, of: str = "") -> Any:
    """Return a change of a body: a member, of its object `of` if one is named, is as good as absent."""

    def change(asked: Any) -> None:
        holder = asked.get(of) if of else asked
        (holder or {}).pop(name, None)

    return change


def _never_greedy(asked: Any) -> None:
    if asked.get("temperature") == 0:
        del asked["temperature"]


def _as_best_as_asked(asked: Any) -> None:
    if (asked.get("best_of") or 0) < (asked.get("n") or 1):
        asked.pop("best_of", None)


def _all_first(answer: Any) -> Any:
    return {**answer, "choices": [{**choice, "index": 0} for choice in answer["choices"]]}


def _with_specials(patch: pytest.MonkeyPatch) -> None:
    right = EngineClient.tokenize

    async def wrong(self: EngineClient, text: str, *, add_special_tokens: bool = True) -> Any:
        return await right(self, text, add_special_tokens=True)

    patch.setattr(EngineClient, "tokenize", wrong)


def _latin(raw: bytes) -> Any:
    return orjson.loads(raw.decode("latin-1"))


FORGOTTEN = (
    *(
        Mutant(f"{name} is ignored", operation, APART, request(operation, _forget(name)))
        for operation in ("generate", "generate_stream")
        for name in ("stop", "seed", "return_full_text")
    ),
    *(
        Mutant(f"{name} is ignored", operation, APART, request(operation, _leave(name)))
        for operation, names in {
            "chat_completions": ("stop", "logit_bias", "logprobs", "seed"),
            "create_response": ("stop", "logit_bias", "include", "seed", "instructions", "top_p", "tools"),
            "completions": ("stop", "logit_bias", "logprobs", "echo"),
            "tokenize": ("add_special_tokens",),
            "count_input_tokens": ("instructions", "tools"),
            "create_message": ("stop_sequences", "thinking", "system", "tools"),
            "count_message_tokens": ("system",),
        }.items()
        for name in names
    ),
    *(
        Mutant("temperature 0 is ignored", operation, APART, request(operation, _never_greedy))
        for operation in ("chat_completions", "completions", "create_response")
    ),
    *(
        Mutant(
            "continuous_usage_stats is ignored",
            operation,
            APART,
            request(operation, _leave("continuous_usage_stats", "stream_options")),
        )
        for operation in ("chat_completions", "completions")
    ),
    Mutant("all choices are the first", "completions", APART, reply("completions", body(_all_first))),
    Mutant(
        "the stop sequence is kept",
        "completions",
        APART,
        result(completion_answer, "finish_of", lambda given: replace(given, text_before_stop=given.text)),
    ),
    Mutant(
        "templated_text is empty",
        "get_chat_tokenize",
        CASES,
        reply("get_chat_tokenize", body(lambda told: {**told, "templated_text": ""})),
    ),
    Mutant("special tokens are added to a template's", "get_chat_tokenize", CASES, _with_specials),
    Mutant("best_of below n passes", "completions", RANGES, request("completions", _as_best_as_asked)),
    Mutant("another charset is read", "tokenize", NO_JSON, value(contract, "parse_json", _latin)),
)
