"""Requests of the examples, each with its answer: what the API reference shows and the tests execute.

An example of a request is answered by the example of the same name in the operation's 200: of its JSON, or of
its transcripts if the request streams. `x-needs` at a request says what the server or its model must have for
it; without that the request is refused with 422. An operation without a body has an exchange for each example
of its answer. `x-request` at an error's example names the operation, and the body that is answered so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from codegen.document import EVENTS, JSON, Document, Node, Operation, at

Finding = tuple[str, str]

FAILURE = "a failure after the first token"  # the transcript that no request asks for


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer."""

    operation: Operation
    name: str
    summary: str
    body: Any  # of the request; None: it has none
    status: str
    media_type: str  # of the answer; "" if it has no body
    answer: Any  # parsed JSON, a stream's or another text, None without a body
    needs: str = ""  # what a server must have for this answer; others refuse the request


@dataclass(frozen=True, slots=True)
class Provocation:
    """A request that is refused, and the documented refusal."""

    response: str  # its name in components/responses
    name: str
    summary: str
    operation: str
    body: Any  # JSON; or as a text, what is sent in place of JSON
    answer: Any


def exchanges(document: Document) -> Iterator[Exchange]:
    """Yield the exchanges of each operation; KeyError where a request has no answer."""
    for operation in document.operations():
        yield from of_operation(document, operation)


def of_operation(document: Document, operation: Operation) -> Iterator[Exchange]:
    """Yield the exchanges of one operation."""
    answers = document.resolve(operation.node["responses"]["200"]).get("content", {})
    if "requestBody" not in operation.node:
        yield from _without_body(operation, answers)
        return
    for name, example in request_examples(document, operation).items():
        media_type = answer_type(answers, example["value"])
        answer = _answers(answers[media_type])[name]
        needs = example.get("x-needs", "")
        yield Exchange(
            operation, name, example["summary"], example["value"], "200", media_type, answer, needs
        )


def provocations(document: Document) -> Iterator[Provocation]:
    """Yield the errors' examples that say how to get them."""
    for response, node in document.components["responses"].items():
        for name, example in node.get("content", {}).get(JSON, {}).get("examples", {}).items():
            request = example.get("x-request")
            if request is not None:
                yield Provocation(
                    response,
                    name,
                    example["summary"],
                    request["operation"],
                    request["body"],
                    example["value"],
                )


def answered(document: Document) -> Iterator[Finding]:
    """Each example of a request has its answer, and each answer its request."""
    for operation in document.operations():
        if "requestBody" not in operation.node:
            continue
        content = document.resolve(operation.node["responses"]["200"])["content"]
        asked: dict[str, set[str]] = {media_type: set() for media_type in content}
        for name, example in request_examples(document, operation).items():
            asked[answer_type(content, example["value"])].add(name)
        for media_type, names in asked.items():
            there = set(_answers(content[media_type])) - {FAILURE}
            pointer = at(operation.pointer, "responses", "200", "content", media_type)
            for name in sorted(names - there):
                yield pointer, f"add the answer to the request's example {name!r}, under the same name"
            for name in sorted(there - names):
                yield pointer, f"add the request that {name!r} is the answer to, under the same name"


def request_examples(document: Document, operation: Operation) -> dict[str, Node]:
    """Return the examples of an operation's body, by name."""
    body = document.resolve(operation.node["requestBody"])
    return dict(body["content"][JSON].get("examples", {}))


def answer_type(answers: Node, body: Any) -> str:
    """Return the media type of the answer to a body: JSON where there is any, unless it is a stream."""
    if streams(answers, body):
        return EVENTS
    return JSON if JSON in answers else next(each for each in answers if each != EVENTS)


def streams(answers: Node, body: Any) -> bool:
    """Return whether a body is answered with a stream; `answers` are those of 200 by their media types."""
    return EVENTS in answers and (
        JSON not in answers or (isinstance(body, dict) and body.get("stream") is True)
    )


def _without_body(operation: Operation, answers: Node) -> Iterator[Exchange]:
    summary = operation.node["summary"]
    if not answers:
        yield Exchange(operation, "empty", summary, None, "200", "", None)
    for media_type, node in answers.items():
        for name, example in node["examples"].items():
            yield Exchange(operation, name, example["summary"], None, "200", media_type, example["value"])


def _answers(media_type: Node) -> dict[str, Any]:
    """Return the answers of a media type by name, those of a stream as texts."""
    if "x-sse-transcript" in media_type:
        return dict(media_type["x-sse-transcript"])
    return {name: example.get("value") for name, example in media_type.get("examples", {}).items()}
