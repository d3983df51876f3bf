"""Vertex AI's predictions: several prompts or chats in one request, answered by their texts alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from handlers.chat import prepare
from handlers.cloud import fits
from handlers.generate import generated, understood
from handlers.http.call import Call
from handlers.http.replies import Refused, json_reply
from handlers.http.support import header_value
from handlers.sequences import counted, limits_of, run
from handlers.service import Service
from handlers.together import together
from handlers.wire import tgi
from handlers.wire.outputs import finish_of

Instance = Mapping[str, Any]

REFUSAL = "Input validation error"  # TGI's error_type, too
ONE_TEXT = {"n": 1, "stream": False, "logprobs": None}  # what a chat may ask for, and a prediction can't hold


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one instance."""

    text: str
    ignored: tuple[str, ...] = ()  # members that have no effect with this model


async def vertex_compatibility(service: Service, call: Call) -> Response:
    """Answer `POST /vertex`: a text for each instance, in their order; if one fails, the request does."""
    service.metrics.count_request()
    instances: list[Instance] = call.body["instances"]
    with counted(service.metrics):
        if not instances:
            raise Refused(f"{REFUSAL}: `instances` is empty: send at least one", error_type=REFUSAL)
        chats = [_is_chat(instance, service.settings.validator) for instance in instances]
        places = [
            1 if chat else _candidates(service, item) for item, chat in zip(instances, chats, strict=True)
        ]
        with service.engine.admit(sum(places)):
            jobs = [
                (_answer if chat else _continue)(service, instance, call.owner)
                for instance, chat in zip(instances, chats, strict=True)
            ]
            answers = await together("instances", jobs)
    ignored = {f"instances[].{name}" for answer in answers for name in answer.ignored}
    headers = {"x-ignored-parameters": header_value(ignored)} if ignored else {}
    return json_reply({"predictions": [answer.text for answer in answers]}, headers=headers)


def _candidates(service: Service, instance: Instance) -> int:
    return tgi.sequences(instance, limits_of(service.settings), stream=False)


async def _continue(service: Service, instance: Instance, owner: str) -> Answer:
    """Return the text that continues a prompt; unlike elsewhere, it's sampled unless `do_sample` is false."""
    wanted = understood(service, instance, do_sample=True)
    winner, *_ = await generated(service, wanted, owner)
    return Answer(tgi.to_text(wanted, finish_of(winner)))


async def _answer(service: Service, instance: Instance, owner: str) -> Answer:
    """Return a chat's answer as the model wrote it, calls of tools included."""
    prepared = await prepare(service, {**instance, **ONE_TEXT})
    (events,) = await run(service.engine, prepared.requests, owner)
    finish = finish_of(events)
    service.metrics.finished(finish, prepared.requests[0])
    ignored = prepared.chat.conversation.without_effect(service.engine.template_names)
    return Answer(finish.text_before_stop, ignored)


def _is_chat(instance: Instance, validator: str) -> bool:
    """Return whether an instance is a chat; of one that could be both, TGI takes the prompt."""
    if "inputs" not in instance or "messages" not in instance:
        return "messages" in instance
    return not fits("GenerateInstance", validator)(instance)
