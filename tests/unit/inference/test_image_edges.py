"""Ordinary text at the edges of an image, which becomes tokens with the text beside it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from inference.frontend.preparation import prompt_ids
from inference.types import Image, Request, VisionInfo
from tests.unit.inference.puppet import MODEL, TOKENIZER, load_text

MARK, ROW = "<|im_start|>", MODEL.vocabulary_size - 1
INNER = (7, ROW, ROW, 8)
EDGED = VisionInfo(token=MARK, placeholder=MARK, row_id=ROW, before="\n", behind="!\n")
PLAIN = VisionInfo(token=MARK, placeholder=MARK, row_id=ROW)


class Looks:
    async def look(self, request: Request) -> tuple[tuple[int, ...], ...]:
        return (INNER,) * len(request.images)


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def asked(vision: VisionInfo, **prompt: Any) -> list[int]:
    request = Request(id="a", add_special_tokens=False, images=(Image(data=b"one"),), **prompt)
    model = replace(MODEL, vision=vision)
    return list(asyncio.run(prompt_ids(request, load_text(), model, Looks())))  # type: ignore[arg-type]


@pytest.mark.parametrize(("vision", "before", "behind"), [(PLAIN, "", ""), (EDGED, "\n", "!\n")])
def test_it_is_cut_into_tokens_with_the_prompt(vision: VisionInfo, before: str, behind: str) -> None:
    found = asked(vision, prompt=f"look\n{MARK}\nhere")
    assert found == [*ids_of(f"look\n{before}"), *INNER, *ids_of(f"{behind}\nhere")]


def test_it_is_added_to_a_prompt_of_tokens() -> None:
    given = (*ids_of("look"), *ids_of(MARK), *ids_of("here"))
    found = asked(EDGED, prompt="", prompt_ids=given)
    assert found == [*ids_of("look"), *ids_of("\n"), *INNER, *ids_of("!\n"), *ids_of("here")]
