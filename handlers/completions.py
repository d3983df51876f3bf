"""OpenAI's text completions."""

from __future__ import annotations

import time
from contextlib import ExitStack

from starlette.responses import Response

from handlers.http.call import Call
from handlers.http.replies import Dialect, EventStream, Refused, json_reply
from handlers.sequences import Flow, Render, counted, draw_seed, limits_of, new_id, run
from handlers.service import Service
from handlers.version import fingerprint
from handlers.wire import completions as wire
from handlers.wire.completions import Completion
from handlers.wire.headers import batch_headers, stream_headers
from handlers.wire.openai import Stamp
from handlers.wire.tgi import finish_of
from inference.types import Event, Finish


async def completions(service: Service, call: Call) -> Response:
    """Answer `POST /v1/completions`, whole or as a stream of chunks."""
    service.metrics.count_request()
    with counted(service.metrics), ExitStack() as held:
        prompts = wire.prompts(call.body)
        _check_batch(len(prompts), service.settings.max_client_batch_size)
        held.enter_context(service.engine.admit(len(prompts)))
        id = new_id()
        completion = wire.to_completion(call.body, limits_of(service.settings), id=id, draw=draw_seed)
        stamp = _stamp(service, id)
        if not completion.stream:
            return await _complete(service, call, completion, stamp)
        flow = await Flow.start(service, completion.requests, _render(completion, stamp))
        headers = stream_headers(service.settings.compute_type, prompts)
        return EventStream(flow, dialect=Dialect.OPENAI, headers=headers, on_close=held.pop_all().close)


async def _complete(service: Service, call: Call, completion: Completion, stamp: Stamp) -> Response:
    outputs = await run(service.engine, completion.requests)
    finishes = [finish_of(events) for events in outputs]
    for finish, request in zip(finishes, completion.requests, strict=True):
        service.metrics.finished(finish, request)
    prompts = [request.prompt for request in completion.requests]
    headers = batch_headers(service.settings.compute_type, prompts, finishes, call.received)
    return json_reply(wire.to_body(stamp, outputs), headers=headers)


def _render(completion: Completion, stamp: Stamp) -> Render:
    finishes: list[Finish] = []

    def render(place: int, event: Event) -> list[wire.Json]:
        chunks = [wire.to_chunk(stamp, place, event)]
        if event.finish is not None:
            finishes.append(event.finish)
            if completion.include_usage and len(finishes) == len(completion.requests):
                chunks.append(wire.to_usage_chunk(stamp, finishes))
        return chunks

    return render


def _check_batch(prompts: int, limit: int) -> None:
    if prompts > limit:
        raise Refused(
            f"Number of prompts exceeds the maximum allowed batch size of {limit}",
            error_type="batch size exceeded",
        )


def _stamp(service: Service, id: str) -> Stamp:
    return Stamp(
        id=f"cmpl-{id}",
        created=int(time.time()),
        model=service.engine.model.id,
        fingerprint=fingerprint(service.settings.docker_label),
    )
