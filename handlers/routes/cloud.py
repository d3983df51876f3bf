"""The routes at the addresses that cloud platforms call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

from handlers.http.call import Call, Operation
from handlers.http.replies import EventStream, JsonReply
from handlers.http.validation import Verdict, available, compile_schema
from handlers.routes.chat import chat_completions
from handlers.routes.completions import completions
from handlers.routes.generate import compat_generate
from handlers.service import Service
from handlers.wire.types import SagemakerRequest, SagemakerResponse, SagemakerStreamResponse
from openapi.schema import to_draft4

Reply: TypeAlias = JsonReply[SagemakerResponse] | EventStream[SagemakerStreamResponse]
Answer: TypeAlias = Operation[Any, Reply]  # of one shape of body, which validation has told from the others

SHAPES: dict[str, tuple[str, Answer]] = {  # the member that tells the shape: its schema, who answers
    "inputs": ("CompatGenerateRequest", compat_generate),
    "messages": ("ChatRequest", chat_completions),
    "prompt": ("CompletionRequest", completions),
}
INSTANCE = "GenerateInstance"  # of Vertex AI's, beside a chat
_verdicts: dict[tuple[str, str], Verdict] = {}


async def sagemaker_compatibility(service: Service, call: Call[SagemakerRequest]) -> Reply:
    """Answer `POST /invocations` as the first route whose request the body is."""
    answer = await call.aside(partial(operation_of, call.body, service.settings.validator))
    return await answer(service, call)


def operation_of(body: SagemakerRequest, validator: str) -> Answer:
    """Return who answers a body that the contract let pass, so that it fits at least one of the shapes."""
    named = [SHAPES[member] for member in SHAPES if member in body]
    return next(answer for schema, answer in named if len(named) == 1 or fits(schema, validator)(body))


def fits(schema: str, validator: str) -> Verdict:
    """Return the function that tells whether a body fits a schema that `compile_shapes` has compiled."""
    return _verdicts[schema, validator]


def compile_shapes(components: Mapping[str, Any], validator: str) -> None:
    """Compile what `fits` will be asked for: once at the start, where no stream waits for it."""
    for schema in (*(schema for schema, _ in SHAPES.values()), INSTANCE):
        draft = to_draft4(components["schemas"][schema], components)
        _verdicts[schema, validator] = compile_schema(draft, available(validator))
