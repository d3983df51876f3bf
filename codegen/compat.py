"""Is the contract the superset of the documents that clients were made from?

A request that is valid there must be valid here; a response that we may send must be valid there; what they
document must be documented here. Where that can't be, `openapi/compatibility.yaml` says so, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema import Draft4Validator

import openapi
from codegen.document import EVENTS, JSON, SCHEMAS, Content, Document, Operation
from codegen.examples import media_examples, read_transcript
from codegen.references import Key, Reference, read
from codegen.samples import Samples
from openapi.yamlload import parse


class Violation(NamedTuple):
    """A place where the contract and a document disagree."""

    document: str
    side: str  # request | response | event | status | header | operation
    operation: str
    at: str  # the place in the body, "*" for an element of an array
    message: str
    value: Any

    def __str__(self) -> str:
        return f"{self.document}: {self.side} of {self.operation} at '{self.at}': {self.message}"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A disagreement that is meant."""

    documents: tuple[str, ...]
    side: str
    operations: tuple[str, ...]
    at: tuple[str, ...]
    when: Mapping[str, Any]
    reason: str
    row: int | None  # of the table in which the documents were first compared

    def __str__(self) -> str:
        documents, operations, places = (", ".join(x) for x in (self.documents, self.operations, self.at))
        return f"{documents}: {self.side} of {operations} at '{places}': {self.reason}"

    def explains(self, violation: Violation) -> bool:
        """Return whether it is this disagreement."""
        return (
            violation.document in self.documents
            and violation.side == self.side
            and violation.operation in self.operations
            and violation.at in self.at
            and bool(Draft4Validator(self.when).is_valid(violation.value))
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What a comparison found."""

    unexplained: tuple[Violation, ...]
    explained: tuple[tuple[Contradiction, tuple[Violation, ...]], ...]

    @property
    def idle(self) -> tuple[Contradiction, ...]:
        """Return the contradictions that are no longer there."""
        return tuple(contradiction for contradiction, found in self.explained if not found)


def compare(document: Document, directory: Path) -> Report:
    """Compare the contract with all documents of `directory`."""
    found = _distinct(violations(document, read(directory)))
    explained = tuple((known, tuple(filter(known.explains, found))) for known in contradictions())
    return Report(tuple(_unexplained(found)), explained)


def validate_response(
    path: str, method: str, status: int, body: Any, directory: Path, media_type: str = JSON
) -> list[str]:
    """Say where a response, or with `text/event-stream` one event of it, is not what the documents promise.

    `path` is the contract's, `/v1/models/{model}`; what is meant to be otherwise is left out.
    """
    key = (method.upper(), path)
    found = (
        violation
        for reference in read(directory)
        for violation in _response(reference, (key, str(status), media_type), [body])
    )
    return [str(violation) for violation in _unexplained(found)]


@cache
def contradictions() -> tuple[Contradiction, ...]:
    """Read the disagreements that are meant."""
    rows = parse(openapi.text("compatibility.yaml"))["contradictions"]
    return tuple(
        Contradiction(
            documents=tuple(row["documents"]),
            side=row["side"],
            operations=tuple(row["operations"]),
            at=tuple(row["at"]),
            when=row.get("when", {}),
            reason=row["reason"],
            row=row.get("row"),
        )
        for row in rows
    )


def violations(document: Document, references: Iterable[Reference]) -> Iterator[Violation]:
    """Yield every disagreement, meant or not."""
    requests = {
        _key(body.operation): Draft4Validator(document.draft4(body.node["schema"]))
        for body in document.requests()
    }
    responses = {
        (_key(content.operation), content.status, content.media_type): content
        for content in document.responses()
    }
    bodies = {place: instances(document, content) for place, content in responses.items()}
    operations = {_key(operation): operation for operation in document.operations()}
    for reference in references:
        yield from _undocumented(document, reference, operations)
        for key, schema in reference.requests.items():
            if key in requests:
                yield from _requests(reference, key, schema, requests[key])
        for place in reference.responses:
            yield from _response(reference, place, bodies.get(place, ()))


def instances(document: Document, content: Content) -> list[Any]:
    """Return what a response may be: its examples, and an instance for every branch of its schema."""
    if content.media_type != EVENTS:
        written = [example.node for example in media_examples(content)]
        return written + list(Samples(document.draft4(content.node["schema"])))
    transcripts = content.node["x-sse-transcript"].values()
    events = [event for text in transcripts for event in read_transcript(text).events if "error" not in event]
    for dialect in content.node["x-sse"]:
        events += Samples(document.draft4({"$ref": SCHEMAS + dialect["event"]}))
    return events


def _undocumented(
    document: Document, reference: Reference, operations: Mapping[Key, Operation]
) -> Iterator[Violation]:
    for key, statuses in reference.statuses.items():
        if key not in operations:
            yield Violation(reference.name, "operation", " ".join(key), "", "not in the contract", "")
            continue
        ours = operations[key].node["responses"]
        for status in sorted(statuses - ours.keys()):
            yield Violation(reference.name, "status", " ".join(key), status, "not documented", "")
        headers = {name.lower() for name in document.resolve(ours["200"]).get("headers", {})}
        for header in sorted(reference.headers.get(key, set()) - headers):
            yield Violation(reference.name, "header", " ".join(key), header, "not documented", "")


def _requests(
    reference: Reference, key: Key, schema: Mapping[str, Any], ours: Draft4Validator
) -> Iterator[Violation]:
    theirs = Draft4Validator(schema)
    for body in (*Samples(schema), *reference.examples.get(key, ())):
        if theirs.is_valid(body):  # their oneOf refuses some of their own
            yield from _errors(reference, "request", key, ours, body)


def _response(
    reference: Reference, place: tuple[Key, str, str], bodies: Iterable[Any]
) -> Iterator[Violation]:
    schema = reference.responses.get(place)
    if schema is not None:
        key, _, media_type = place
        theirs = Draft4Validator(schema)
        for body in bodies:
            yield from _errors(reference, "event" if media_type == EVENTS else "response", key, theirs, body)


def _errors(
    reference: Reference, side: str, key: Key, validator: Draft4Validator, body: Any
) -> Iterator[Violation]:
    for error in validator.iter_errors(body):
        at = "/".join("*" if isinstance(part, int) else str(part) for part in error.absolute_path)
        yield Violation(reference.name, side, " ".join(key), at, error.message[:200], error.instance)


def _unexplained(found: Iterable[Violation]) -> Iterator[Violation]:
    known = contradictions()
    return (violation for violation in found if not any(row.explains(violation) for row in known))


def _key(operation: Operation) -> Key:
    return operation.method.upper(), operation.path


def _distinct(found: Iterable[Violation]) -> list[Violation]:
    """Keep one of each kind: values are not hashable, and differ where nothing else does."""
    return list({(*violation[:5], type(violation.value)): violation for violation in found}.values())
