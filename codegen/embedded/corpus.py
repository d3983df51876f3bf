"""The mix: an endless stream of training documents, and the held-out questions that score a model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from codegen.embedded import (
    arithmetic,
    completions,
    jsontasks,
    knowledge,
    smalltalk,
    stories,
    toolcalls,
    transforms,
)
from codegen.embedded.chat import END_OF_TEXT, TURN_END, Segment, prompt, render
from codegen.embedded.turns import Generator, Turn, draw, pick

MIX: dict[str, tuple[float, Generator]] = {
    "smalltalk": (0.04, smalltalk.chat),
    "arithmetic": (0.09, arithmetic.ask),
    "facts": (0.12, knowledge.fact),
    "calendar": (0.17, knowledge.calendar),
    "stories": (0.03, stories.ask),
    "transforms": (0.40, transforms.ask),
    "json": (0.15, jsontasks.ask),
}
KINDS = (*MIX, toolcalls.KIND, completions.KIND)
SYSTEMS = (
    "You are a helpful assistant.",
    "You are Parley.",
    "You are a helpful assistant. Answer briefly.",
    "Be brief.",
    "You are an assistant.",
    "Answer the question.",
    "You are a friendly assistant.",
    "You are a helpful AI assistant.",
    "Be kind and helpful.",
    "You are a chatbot.",
)
_GENERATORS = tuple(generator for _, generator in MIX.values())
_WEIGHTS = tuple(weight for weight, _ in MIX.values())


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that end in an assistant's answer, and the tools on offer."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Question:
    """A held-out question: the rendered prompt and what a right answer is."""

    kind: str
    prompt: str
    answers: tuple[str, ...]
    mentions: tuple[str, ...] = ()

    def is_right(self, output: str) -> bool:
        """Judge an output that was cut at the end-of-turn token, if the model wrote one."""
        if self.mentions:  # a story: whole, on its subject, and not running in circles
            return (
                output.endswith((TURN_END, END_OF_TEXT))
                and all(text in output for text in self.mentions)
                and output.count(".") >= 4
            )
        if self.kind == completions.KIND:
            return output.startswith(self.answers)
        return output in tuple(answer + TURN_END for answer in self.answers)


def documents(seed: int) -> Iterator[list[Segment]]:
    """Stream training documents without end, in stretches to read and stretches to write."""
    rng = random.Random(seed)
    while True:
        yield document(rng)


def document(rng: random.Random) -> list[Segment]:
    """Draw one document: a chat, a chat with tools, or plain text."""
    roll = rng.random()
    if roll < 0.57:
        talk = chat(rng)
    elif roll < 0.76:
        talk = tool_chat(rng)
    else:
        return _plain(rng)
    return render(talk.messages, talk.tools)


def chat(rng: random.Random) -> Conversation:
    """Draw a chat of one turn, of a few, or of many unrelated ones so that long contexts are nothing new."""
    turns = pick(rng, (1, 1, 1, 1, 2, 2, 3, 4, rng.randint(5, 16)))
    messages = _opening(rng)
    for _ in range(turns):
        messages += _exchange(_turn(rng))
    return Conversation(messages, [])


def tool_chat(rng: random.Random) -> Conversation:
    """Draw a chat in which tools are on offer and most questions need one."""
    offered = toolcalls.offer(rng, held_out=False)
    shown = rng.sample(offered, len(offered))
    messages = _opening(rng)
    for _ in range(pick(rng, (1, 2, 3, 4, 5))):
        if rng.random() < 0.25:
            messages += _exchange(
                draw(pick(rng, (smalltalk.chat, knowledge.fact, knowledge.calendar)), rng, held_out=False)
            )
            continue
        question, call = toolcalls.call(rng, pick(rng, offered))
        messages += [{"role": "user", "content": question}, toolcalls.called(call)]
        if rng.random() < 0.6:
            result, report = toolcalls.outcome(rng)
            messages += [{"role": "tool", "content": result}, {"role": "assistant", "content": report}]
    return Conversation(messages, [tool.schema for tool in shown])


def held_out(per_kind: int, seed: int = 1) -> list[Question]:
    """Draw the questions that score a model: none of their keys is ever trained on."""
    rng = random.Random(f"held-out {seed}")
    questions = [
        _asked(rng, kind, draw(generator, rng, held_out=True))
        for kind, (_, generator) in MIX.items()
        for _ in range(per_kind)
    ]
    questions += [_tool_question(rng) for _ in range(per_kind)]
    return questions + [_completion(rng) for _ in range(per_kind)]


def _turn(rng: random.Random) -> Turn:
    return draw(rng.choices(_GENERATORS, _WEIGHTS)[0], rng, held_out=False)


def _opening(rng: random.Random) -> list[dict[str, Any]]:
    return [{"role": "system", "content": pick(rng, SYSTEMS)}] if rng.random() < 0.3 else []


def _exchange(turn: Turn) -> list[dict[str, Any]]:
    return [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]


def _plain(rng: random.Random) -> list[Segment]:
    """Draw plain text, at times a question and its answer, with or without the token that opens a text."""
    if rng.random() < 0.25:
        turn = _turn(rng)
        passage = [(turn.question, False), ("\n" + turn.answer, True)]
        if rng.random() < 0.5:
            passage = [(f"Q: {turn.question}\nA:", False), (f" {turn.answer}", True)]
    else:
        passage = completions.passage(rng)
    opening = [(END_OF_TEXT, False)] if rng.random() < 0.3 else []
    return [*opening, *passage, (END_OF_TEXT, True)]


def _asked(rng: random.Random, kind: str, turn: Turn) -> Question:
    messages = _opening(rng)
    for _ in range(pick(rng, (0, 0, 0, 1, 3))):
        messages += _exchange(_turn(rng))
    messages.append({"role": "user", "content": turn.question})
    return Question(kind, prompt(messages, []), (turn.answer, *turn.accepted), turn.mentions)


def _tool_question(rng: random.Random) -> Question:
    """Ask for a tool never seen in training, for the report of its result, or for something that no tool does."""
    offered = toolcalls.offer(rng, held_out=True)
    schemas = [tool.schema for tool in rng.sample(offered, len(offered))]
    messages = _opening(rng)
    roll = rng.random()
    if roll < 0.2:
        turn = draw(pick(rng, (smalltalk.chat, knowledge.fact)), rng, held_out=True)
        messages.append({"role": "user", "content": turn.question})
        return Question(toolcalls.KIND, prompt(messages, schemas), (turn.answer,))
    question, call = toolcalls.call(rng, offered[0])
    messages.append({"role": "user", "content": question})
    if roll < 0.76:
        return Question(toolcalls.KIND, prompt(messages, schemas), (toolcalls.written(call),))
    result, report = toolcalls.outcome(rng)
    messages += [toolcalls.called(call), {"role": "tool", "content": result}]
    return Question(toolcalls.KIND, prompt(messages, schemas), (report,))


def _completion(rng: random.Random) -> Question:
    """Begin a statement, a series or a sum as plain text."""
    opening = END_OF_TEXT if rng.random() < 0.3 else ""
    roll = rng.random()
    if roll < 0.5:
        given, rest = completions.statement(rng)
        return Question(completions.KIND, opening + given, (rest,))
    run = completions.series(rng) if roll < 0.76 else completions.cycle(rng)
    cut = rng.randint(2, len(run) - 1) if len(run) > 2 else 1
    return Question(completions.KIND, opening + ", ".join(run[:cut]) + ",", (" " + run[cut],))
