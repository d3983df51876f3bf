"""What an engine that pretends makes of a prompt that holds certain texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from inference.text.tokenizer import TextTokenizer
from inference.types import CoreRequest

Answer = TypeVar("Answer")


def by_prompt(
    tokenizer: TextTokenizer, texts: Mapping[str, str], make: Callable[[str], Answer]
) -> Callable[[CoreRequest], Answer | None]:
    """Return what answers a request by the first text whose key its prompt contains, None without one."""
    answers = {key: make(text) for key, text in texts.items()}

    def find(request: CoreRequest) -> Answer | None:
        prompt = "".join(map(tokenizer.token_text, request.prompt_ids)) if answers else ""
        return next((answer for key, answer in answers.items() if key in prompt), None)

    return find
