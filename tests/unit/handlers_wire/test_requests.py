from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from handlers.wire.parameters import Parameters
from handlers.wire.requests import numbered, to_request
from inference.types import LogprobsMode, Request


def test_a_request_has_what_the_parameters_say() -> None:
    given = Parameters(
        truncate=9, max_new_tokens=5, min_new_tokens=2, ignore_eos=True, stop=("x",), top_n_tokens=3
    )
    assert to_request(given, id="r", prompt="Hi", logprobs=LogprobsMode.RAW) == Request(
        id="r",
        prompt="Hi",
        truncate=9,
        max_new_tokens=5,
        min_new_tokens=2,
        ignore_eos=True,
        stop=("x",),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=3,
    )


def test_what_is_absent_asks_for_nothing() -> None:
    made = to_request(Parameters(), id="r", prompt="Hi", logprobs=LogprobsMode.PROCESSED)
    assert made == Request(id="r", prompt="Hi")


def test_several_requests_of_one_body_have_ids_of_their_own() -> None:
    one = Request(id="r", prompt="Hi")
    assert numbered([one]) == (one,)
    assert [request.id for request in numbered([one] * 3)] == ["r-0", "r-1", "r-2"]


@pytest.mark.parametrize("members", [{"top_n_tokens": 1}, {"prompt_logprobs": True}])
def test_whoever_asks_for_log_probabilities_is_told_them(members: dict[str, Any]) -> None:
    request = to_request(Parameters(), id="r", prompt="Hi", logprobs=LogprobsMode.NONE)
    with pytest.raises(AssertionError, match="is told"):
        replace(request, **members)
    assert replace(request, logprobs=LogprobsMode.RAW, **members).prompt == "Hi"
