"""Requests made from the contract by schemathesis: one by one at the borders of what it says, or drawn.

`coverage` gives each operation's deterministic cases, right ones and wrong ones: each member left out, at and
beyond its bounds, of each other type, each example, each undeclared method. `drawn` gives any number of
random ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.config import ProjectsConfig, SchemathesisConfig
from schemathesis.core import NotSet
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response
from schemathesis.generation.coverage import GenerationSession
from schemathesis.generation.drivers import CoverageGenerator
from schemathesis.generation.feedback import NO_FEEDBACK
from schemathesis.generation.overrides import Override
from schemathesis.schemas import APIOperation, BaseSchema

from codegen.property_checks import Exchange, parsed, problems
from codegen.property_contract import Promise

Operation = APIOperation[Any, Any, Any, Any]
Case = schemathesis.Case[Any]

MOST_EVENTS = 1_000_000  # of one stream: each is read to its end
PATIENCE = 300.0  # seconds for an answer
BOTH = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
CHECKED_APART = ("ignored_auth", "response_schema_conformance", "positive_data_acceptance")


def load(document: Mapping[str, Any]) -> BaseSchema:
    """Return the document as schemathesis has it, with our own key in place of made-up ones."""
    config = SchemathesisConfig(projects=ProjectsConfig())
    schema = schemathesis.openapi.from_dict(json.loads(json.dumps(document)), config=config)
    project = schema.config
    project.max_stream_events = MOST_EVENTS
    project.request_timeout = PATIENCE
    project.generation.with_security_parameters = False
    for name in CHECKED_APART:  # see property_checks, which knows streams, keys and ranges
        getattr(project.checks, name).enabled = False
    return schema


def operations(schema: BaseSchema) -> dict[str, Operation]:
    """Return the operations by operationId."""
    found = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    return {operation.definition.raw["operationId"]: operation for operation in found}


def coverage(operation: Operation) -> Iterator[Case]:
    """Yield the cases that the contract itself asks for; the same ones each time."""
    config = operation.schema.config.generation_for(operation=operation, phase="coverage")
    yield from CoverageGenerator(
        operation=operation,
        generation_modes=list(BOTH),
        generation_config=config,
        auth_storage=None,
        override=Override(),
        feedback=NO_FEEDBACK,
        session=GenerationSession(),  # remembers what another operation of the path was asked
    )


def drawn(operation: Operation, number: int, seeded: int, take: Callable[[Case], None]) -> None:
    """Give `take` that many random cases, half of them wrong; the same ones for the same seed."""
    for mode, count in zip(BOTH, (number - number // 2, number // 2), strict=True):
        if count:
            _draw(operation.as_strategy(generation_mode=mode), count, seeded, take)


def _draw(strategy: Any, count: int, seeded: int, take: Callable[[Case], None]) -> None:
    @seed(seeded)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(case: Case) -> None:
        take(case)

    draw()


def case_problems(promise: Promise, case: Case, response: Response) -> list[str]:
    """Return what is wrong with the answer to a case: schemathesis' checks, and ours."""
    found = []
    try:
        case.validate_response(response)
    except FailureGroup as group:
        found = [f"{failure.title}: {failure.message}" for failure in group.exceptions]
    return [*found, *problems(promise, exchange_of(response))]


def exchange_of(response: Response) -> Exchange:
    """Return request and answer as they went over the wire."""
    request = response.request
    sent = {name.lower(): _text(value) for name, value in request.headers.items()}
    return Exchange(
        method=str(request.method),
        sent=sent,
        body=parsed(sent.get("content-type", ""), _bytes(request.body)),
        status=response.status_code,
        headers={name.lower(): ", ".join(values) for name, values in response.headers.items()},
        content=response.content,
    )


def body_of(case: Case) -> Any:
    """Return a case's body, None without one."""
    return None if isinstance(case.body, NotSet) else case.body


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _bytes(body: object) -> bytes | None:
    if isinstance(body, str):
        return body.encode()
    return body if isinstance(body, bytes) else None
