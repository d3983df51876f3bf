"""What is kept of a request's generations while it is answered."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from dataclasses import replace

import pytest

from handlers.account import Account, note_generation, note_prompt, open_account
from inference.types import Request
from tests.unit.handlers.metrics.test_metrics import FINISH

GROUPS = [["a", "b"], ["c", "d"]]  # ids of the requests of each prompt


def of_each_prompt(noted: Sequence[str], groups: Sequence[Sequence[str]]) -> list[int]:
    """Return which of the generations that were noted, in their order, stand for a prompt."""
    account = Account("id", 0.0)

    def answer() -> None:
        open_account(account)
        for group in groups:
            note_prompt([Request(id=id, prompt="p") for id in group])
        for place, id in enumerate(noted):
            note_generation(Request(id=id, prompt="p"), replace(FINISH, generated_tokens=place))

    contextvars.copy_context().run(answer)
    return [finish.generated_tokens for finish in account.of_each_prompt()]


@pytest.mark.parametrize(
    ("noted", "groups", "chosen"),
    [
        ("abcd", GROUPS, [0, 2]),
        ("dcba", GROUPS, [1, 3]),
        ("b", GROUPS, [0]),
        ("bd", GROUPS, [0, 1]),
        ("ab", [["a"], ["b"]], [0, 1]),
        ("ab", [], [0, 1]),
        ("", GROUPS, []),
    ],
)
def test_a_prompt_counts_once_by_its_first_request_if_that_ended(
    noted: str, groups: Sequence[Sequence[str]], chosen: list[int]
) -> None:
    assert chosen == of_each_prompt(noted, groups)


def test_outside_of_a_request_nothing_is_kept() -> None:
    request = Request(id="a", prompt="p")
    contextvars.Context().run(note_prompt, [request])
    contextvars.Context().run(note_generation, request, FINISH)
