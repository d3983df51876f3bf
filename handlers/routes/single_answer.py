"""One answer to a body that is understood as a chat, whole or as a stream of events that have names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from handlers.account import note_prompt
from handlers.http.aside import made
from handlers.http.call import Call
from handlers.http.replies import Dialect, EventStream, Failure, JsonReply, json_reply, named_event
from handlers.images.gathering import placed
from handlers.routes.chat import Prepared, ready
from handlers.routes.sequences import Flow, counted, limits_of, run, streamed, submitted
from handlers.service import Service
from handlers.wire.chat import Chat
from handlers.wire.headers import answer_headers, stream_headers
from handlers.wire.limits import Limits
from handlers.wire.outputs import finish_of, values_of
from inference.frontend.client import EngineClient
from inference.types import Event, Request

Body = TypeVar("Body")  # of the request
Whole = TypeVar("Whole")  # the body of the answer
Named = TypeVar("Named", bound=Mapping[str, Any])  # an event of the stream
Whole_co = TypeVar("Whole_co", covariant=True)
Named_co = TypeVar("Named_co", covariant=True)


class Asked(Protocol):
    """A body understood."""

    @property
    def chat(self) -> Chat:
        """Return the chat that it is."""


class Answer(Protocol[Whole_co, Named_co]):
    """The answer to one request; used once, either whole or streamed."""

    def body(self, events: Sequence[Event]) -> Whole_co:
        """Return the whole answer."""

    def events(self, place: int, event: Event) -> Sequence[Named_co]:
        """Return what an event of the engine brings about."""

    def values(self, output: Sequence[Event], request: Request) -> int:
        """Return about how much some events tell."""


Understood = TypeVar("Understood", bound=Asked)
Answering = TypeVar("Answering", bound=Answer[Any, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Generic[Body, Understood, Answering]):
    """How one dialect asks and answers."""

    dialect: Dialect
    prefix: str  # of answers' ids
    understand: Callable[[Body, Limits], Understood]
    begin: Callable[[EngineClient, Understood, Prepared, int], Answering]  # the last: the prompt's tokens
    failed: Callable[[Answering, Failure], Iterable[Mapping[str, Any]]]  # what is left to say in a stream


async def answered(
    service: Service,
    call: Call[Body],
    form: Form[Body, Understood, Answering],
) -> JsonReply[Any] | EventStream[Any]:
    """Answer a request in a dialect."""
    service.metrics.count_request()
    with counted(service.metrics), ExitStack() as held:
        held.enter_context(service.engine.admit(1, call.owner))
        asked = await call.aside(partial(form.understand, call.body, limits_of(service)))
        prepared = await ready(service, call, asked.chat, call.aside, prefix=form.prefix)
        note_prompt(prepared.requests)
        with placed(asked.chat.conversation.images, prepared.requests[0].images):
            if not asked.chat.stream:
                return await _complete(service, call, form, asked, prepared)
            generations = await submitted(service.engine, prepared.requests, call.owner)
        answer = form.begin(service.engine, asked, prepared, generations[0].prompt_tokens)
        flow = Flow(generations, service.metrics, answer.events, frame=named_event, values=answer.values)
        headers = stream_headers(service.settings.compute_type, [prepared.requests[0].prompt])
        return streamed(
            flow,
            dialect=form.dialect,
            headers=headers | prepared.ignored,
            on_close=held.pop_all().close,
            failed=partial(_failed, form, answer),
        )


async def _complete(
    service: Service,
    call: Call[Body],
    form: Form[Body, Understood, Answering],
    asked: Understood,
    prepared: Prepared,
) -> JsonReply[Any]:
    (events,) = await run(service.engine, prepared.requests, call.owner)
    finish, (request,) = finish_of(events), prepared.requests
    service.metrics.finished(finish, request)
    answer = form.begin(service.engine, asked, prepared, finish.prompt_tokens)

    def told() -> JsonReply[Any]:
        headers = answer_headers(service.settings.compute_type, request.prompt, [finish], call.received)
        return json_reply(answer.body(events), headers=headers | prepared.ignored)

    return await made(told, values_of(events, request))


def _failed(form: Form[Body, Understood, Answering], answer: Answering, failure: Failure) -> bytes:
    return b"".join(map(named_event, form.failed(answer, failure)))
