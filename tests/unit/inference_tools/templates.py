"""The real chat templates of the corpus, which lies beside the repository, and what they make of chats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inference.errors import TemplateFailed
from inference.text.chat_template import ChatTemplate
from inference.tools.history import fit
from inference.tools.known_formats import detect
from inference.tools.prompt import template_tools
from inference.tools.types import Tool

CORPORA = Path(__file__).parents[4] / "shared" / "reference" / "corpora"
FILES = sorted(CORPORA.glob("chat_templates_*.json"))
needs_corpus = pytest.mark.skipif(not FILES, reason=f"the corpus of chat templates is not at {CORPORA}")
CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "Where"}}}
WEATHER = Tool(name="get_weather", description="Get the weather", parameters=CITY)


@cache
def templates() -> dict[str, ChatTemplate]:
    """Return each template by the name of its first case."""
    sources: dict[str, str] = {}
    for file in FILES:
        for case in json.loads(file.read_text()):
            sources.setdefault(case["template"], case["name"])
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return {name: ChatTemplate({"default": source}, tokens) for source, name in sources.items()}


def template(part: str) -> ChatTemplate:
    """Return the first template whose name has this part."""
    return next(found for name, found in templates().items() if part in name)


def prompt(chat: ChatTemplate, messages: Sequence[dict[str, Any]], tool: Tool = WEATHER) -> str | None:
    """Return what a template makes of messages that were made to fit it; None if it refuses them."""
    habits = chat.habits(has_tools=True)
    fitting = fit(messages, habits, detect(habits.sample))
    try:
        return chat.render(fitting, tools=template_tools([tool], habits))
    except TemplateFailed:
        return None
