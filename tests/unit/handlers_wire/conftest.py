"""What the wire's tests share: made-up outputs of the engine, and the contract's schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft4Validator

import openapi
from inference.types import Event, Finish, FinishReason, PromptToken, Timings, Token
from openapi.schema import to_draft4

TIMES = Timings(submitted=10.0, queued=10.0015, started=10.003, first_token=10.02, finished=10.0505)


class Sample:
    """Builders of what the engine gives."""

    @staticmethod
    def token(id: int, text: str, logprob: float, *, special: bool = False) -> Token:
        return Token(id, text, logprob, special)

    @staticmethod
    def finish(text: str, *, generated: int, **changes: Any) -> Finish:
        members: dict[str, Any] = {
            "reason": FinishReason.LENGTH,
            "text": text,
            "text_before_stop": text,
            "prompt_tokens": 2,
            "generated_tokens": generated,
            "cached_tokens": 0,
            "seed": None,
            "timings": TIMES,
        }
        return Finish(**members | changes)

    @staticmethod
    def output(
        tokens: list[Token], *, top: bool = False, prompt: tuple[PromptToken, ...] = (), **changes: Any
    ) -> tuple[Event, ...]:
        """Return the events of an output; with `top`, each token and a filtered one are alternatives."""
        text = "".join(token.text for token in tokens if not token.special)
        finish = Sample.finish(changes.pop("text", text), generated=len(tokens), **changes)
        events = []
        for place, token in enumerate(tokens, 1):
            alternatives = (token, Token(5, "x", float("-inf"), False)) if top else ()
            delta = "" if token.special else token.text
            ended = finish if place == len(tokens) else None
            events.append(Event(place, token, alternatives, delta, ended, prompt if place == 1 else ()))
        return tuple(events)

    @staticmethod
    def prompt_token(id: int, text: str, logprob: float | None) -> PromptToken:
        return PromptToken(id, text, logprob)


@pytest.fixture
def sample() -> type[Sample]:
    return Sample


@pytest.fixture(scope="session")
def fits() -> Callable[[str, Any], bool]:
    """Return a function that tells whether a value fits a schema of the contract."""
    components = openapi.load()["components"]

    def check(schema: str, value: Any) -> bool:
        Draft4Validator(to_draft4(components["schemas"][schema], components)).validate(value)
        return True

    return check
