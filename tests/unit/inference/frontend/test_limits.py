"""How many alternatives a body is told, and how long its texts may be for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import ContextExceeded, InvalidInput
from inference.frontend.client import EngineClient
from inference.frontend.limits import check_length, fit_context, too_long
from inference.types import Request
from tests.unit.inference import puppet
from tests.unit.inference.puppet import Puppet, with_puppet


# The context has room for 20 tokens behind 10, and the limit is 40 log-probabilities
@pytest.mark.parametrize(
    ("members", "granted"),
    [
        ({}, 20),
        ({"top_n_tokens": 2}, 20),
        ({"top_n_tokens": 3}, 13),
        ({"top_n_tokens": 3, "sequences": 2}, 6),
        ({"top_n_tokens": 40}, 1),
        ({"top_n_tokens": 3, "prompt_logprobs": True}, 13),
        ({"top_n_tokens": 3, "prompt_logprobs": True, "prompt_top_n_tokens": 3}, 3),
        ({"prompt_logprobs": True, "prompt_top_n_tokens": 4}, 20),
        ({"top_n_tokens": 3, "min_new_tokens": 13}, 13),
        ({"top_n_tokens": 3, "max_new_tokens": 13}, 13),
        ({"top_n_tokens": 41}, None),
        ({"top_n_tokens": 3, "sequences": 14}, None),
        ({"top_n_tokens": 4, "prompt_logprobs": True, "prompt_top_n_tokens": 4}, None),
        ({"top_n_tokens": 3, "min_new_tokens": 14}, None),
        ({"top_n_tokens": 3, "max_new_tokens": 14}, None),
        ({"prompt_logprobs": True, "prompt_top_n_tokens": 5, "max_new_tokens": 1}, None),
    ],
)
def test_a_text_without_a_length_of_its_own_ends_where_its_alternatives_do(
    members: dict[str, Any], granted: int | None
) -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        request = Request(id="a", prompt="x" * 10, **members)
        if granted is None:
            with pytest.raises(InvalidInput, match="must be <= 40 log-probabilities"):
                await client.submit(request)
            return
        await client.submit(request)
        assert core.requests[-1].max_new_tokens == granted

    with_puppet(check, max_sequence_logprobs=40)


def test_alternatives_of_a_prompt_that_no_frame_holds_are_refused_whatever_the_setting() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        members: dict[str, Any] = {"prompt_logprobs": True, "prompt_top_n_tokens": 1_700_000}
        with pytest.raises(InvalidInput, match="must be <= 16777216 log-probabilities for one prompt"):
            await client.submit(Request(id="a", prompt="x" * 10, max_new_tokens=1, **members))

    with_puppet(check, max_sequence_logprobs=2**31 - 1)


@pytest.mark.parametrize(
    ("asked", "granted"), [({}, 12), ({"max_new_tokens": 12}, 12), ({"max_new_tokens": 13}, None)]
)
def test_a_text_has_its_own_positions_where_its_prompt_takes_none(
    asked: dict[str, Any], granted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puppet, "MODEL", replace(puppet.MODEL, max_text_tokens=12))

    async def check(client: EngineClient, core: Puppet) -> None:
        request = Request(id="a", prompt="x" * 10, **asked)
        if granted is None:
            with pytest.raises(InvalidInput, match="`max_new_tokens` must be <= 12, the positions that"):
                await client.submit(request)
            return
        await client.submit(request)
        assert core.requests[-1].max_new_tokens == granted

    with_puppet(check)


@given(st.integers(0, 60), st.one_of(st.none(), st.integers(1, 2000)), st.integers(10, 30))
def test_a_text_that_is_surely_too_long_is_refused_as_its_tokens_would_be(
    size: int, max_new_tokens: int | None, most: int
) -> None:
    model = replace(puppet.MODEL, max_input_tokens=most)

    def refusal(check: Callable[..., object], prompt: object, *others: object) -> list[object]:
        try:
            check(prompt, max_new_tokens, *others, model)
        except ContextExceeded as refused:
            return [str(refused).replace("at least ", ""), refused.limit, refused.given, refused.wanted]
        return []

    early = refusal(check_length, "x" * size, 1)  # a token for each byte
    assert early == (refusal(fit_context, size) if size > most else [])


def test_prompt_of_no_tokens_is_refused() -> None:
    with pytest.raises(InvalidInput, match="`inputs` cannot be empty"):
        fit_context(0, 5, puppet.MODEL)


@pytest.mark.parametrize(("prompt", "wanted"), [(20, 15), (21, 0)])  # the limit of prompts is 20
def test_of_a_prompt_that_is_too_long_alone_no_tokens_are_said_to_be_wanted(prompt: int, wanted: int) -> None:
    assert too_long(puppet.MODEL, prompt, 15).wanted == wanted
