"""Vertex AI's predictions: several prompts or chats in one request, answered by their texts alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from typing_extensions import TypeIs

from handlers.http.aside import Aside
from handlers.http.call import Call
from handlers.http.replies import JsonReply, Refused, json_reply
from handlers.http.support import ignored_header
from handlers.images.gathering import placed
from handlers.routes.chat import prepare
from handlers.routes.cloud import INSTANCE, fits
from handlers.routes.generate import generated, looked_at, understood
from handlers.routes.sequences import counted, limits_of, run
from handlers.routes.thoughts import idle, reader_of
from handlers.routes.together import together
from handlers.service import Service
from handlers.wire import tgi
from handlers.wire.outputs import finish_of
from handlers.wire.predictions import prediction
from handlers.wire.requests import left_out
from handlers.wire.tgi import Shown
from handlers.wire.types import ChatRequest, GenerateInstance, VertexInstance, VertexRequest, VertexResponse
from inference.errors import InferenceError

REFUSAL = "Input validation error"  # TGI's error_type, too


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one instance."""

    text: str
    ignored: tuple[str, ...] = ()  # members that have no effect with this model


async def vertex_compatibility(service: Service, call: Call[VertexRequest]) -> JsonReply[VertexResponse]:
    """Answer `POST /vertex`: a text for each instance, in their order; if one fails, the request does."""
    service.metrics.count_request()
    instances = call.body["instances"]
    with counted(service.metrics):
        if not instances:
            raise Refused(f"{REFUSAL}: `instances` is empty: send at least one", error_type=REFUSAL)
        places = await call.aside(lambda: sum(map(partial(_places, service), count(), instances)))
        with service.engine.admit(places, call.owner):
            aside = call.aside.part(len(instances))
            jobs = [_predict(service, call, at, aside, places) for at in range(len(instances))]
            answers = await together("instances", jobs)
    ignored = {f"instances[].{name}" for answer in answers for name in answer.ignored}
    headers = ignored_header(ignored)
    return json_reply({"predictions": [answer.text for answer in answers]}, headers=headers)


def _places(service: Service, at: int, instance: VertexInstance) -> int:
    if _is_chat(instance, service.settings.validator):
        return 1
    with _about(at):
        return tgi.sequences(instance, limits_of(service), stream=False)


async def _predict(
    service: Service, call: Call[VertexRequest], at: int, aside: Aside, sequences: int
) -> Answer:
    instance = call.body["instances"][at]
    with _about(at):
        if _is_chat(instance, service.settings.validator):
            return await _answer(service, call, instance, aside)
        return await _continue(service, call, instance, aside, sequences)


@contextmanager
def _about(at: int) -> Iterator[None]:
    """Have an error know which instance it is about."""
    try:
        yield
    except InferenceError as error:
        error.within = ("instances", at)
        raise


async def _continue(
    service: Service, call: Call[Any], instance: GenerateInstance, aside: Aside, sequences: int
) -> Answer:
    """Return the text that continues a prompt; unlike elsewhere, it's sampled unless `do_sample` is false."""
    read = await aside(partial(understood, service, instance, tokens=Shown.NEVER, do_sample=True))
    wanted = await looked_at(service, call, read)
    winner, *_ = await generated(service, wanted, call.owner, sequences=sequences)
    return Answer(tgi.to_text(wanted, finish_of(winner)))


async def _answer(service: Service, call: Call[Any], instance: ChatRequest, aside: Aside) -> Answer:
    """Return a chat's answer; one call of a tool at most, as in TGI, unless more are asked for."""
    parallel = bool(instance.get("parallel_tool_calls"))
    alone: ChatRequest = {
        **instance,  # as a text can be
        "n": 1,
        "stream": False,
        "logprobs": None,
        "parallel_tool_calls": parallel,
    }
    prepared = await prepare(service, call, alone, aside)
    with placed(prepared.chat.conversation.images, prepared.requests[0].images):
        (events,) = await run(service.engine, prepared.requests, call.owner)
    finish = finish_of(events)
    service.metrics.finished(finish, prepared.requests[0])
    ignored = prepared.chat.conversation.without_effect(service.engine.template_names)
    ignored += (*left_out(prepared.requests[0].grammar), *idle(service.engine, prepared.chat))
    parser = reader_of(service.engine, prepared.chat)
    return Answer(finish.text_before_stop if parser is None else prediction(events, parser), ignored)


def _is_chat(instance: VertexInstance, validator: str) -> TypeIs[ChatRequest]:
    """Return whether an instance is a chat; of one that could be both, TGI takes the prompt."""
    if "inputs" not in instance or "messages" not in instance:
        return "messages" in instance
    return not fits(INSTANCE, validator)(instance)
