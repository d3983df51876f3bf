"""TGI's own routes: `/`, `/generate` and `/generate_stream`."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from handlers.account import note_prompt
from handlers.http.aside import made
from handlers.http.call import Call
from handlers.http.replies import EventStream, JsonReply, json_reply
from handlers.http.support import ignored_header
from handlers.images.gathering import check_images, gather, placed
from handlers.routes.sequences import (
    Flow,
    counted,
    draw_seed,
    limits_of,
    logprobs_mode,
    new_id,
    run,
    streamed,
)
from handlers.service import Service
from handlers.wire import tgi
from handlers.wire.headers import Headers, answer_headers, stream_headers
from handlers.wire.outputs import Output, finish_of, values_of
from handlers.wire.tgi import Body, Generate, Shown
from handlers.wire.types import (
    CompatGenerateRequest,
    CompatGenerateResponse,
    GenerateRequest,
    GenerateResponse,
    StreamResponse,
)
from inference.types import LogprobsMode


async def compat_generate(
    service: Service, call: Call[CompatGenerateRequest]
) -> JsonReply[CompatGenerateResponse] | EventStream[StreamResponse]:
    """Answer `POST /`: an array of one, or a stream; the prompt comes first if the model continues texts."""
    if call.body.get("stream"):
        return await stream(service, call, at_root=True)
    body, headers = await complete(service, call, at_root=True)
    return json_reply([body], headers=headers)


async def generate(service: Service, call: Call[GenerateRequest]) -> JsonReply[GenerateResponse]:
    """Answer `POST /generate`."""
    body, headers = await complete(service, call)
    return json_reply(body, headers=headers)


async def generate_stream(service: Service, call: Call[GenerateRequest]) -> EventStream[StreamResponse]:
    """Answer `POST /generate_stream`."""
    return await stream(service, call)


async def complete(
    service: Service, call: Call[Body], *, at_root: bool = False
) -> tuple[GenerateResponse, Headers]:
    """Generate the whole text, the best of several if asked for; return the body and its headers."""
    service.metrics.count_request()
    with counted(service.metrics):
        limits = limits_of(service)
        with service.engine.admit(tgi.sequences(call.body, limits, stream=False), call.owner):
            full_text = at_root and _continues(service)
            reading = partial(understood, service, call.body, tokens=Shown.WITH_DETAILS, full_text=full_text)
            wanted = await looked_at(service, call, await call.aside(reading))
            outputs = await generated(service, wanted, call.owner)
    finish = finish_of(outputs[0])
    headers = answer_headers(service.settings.compute_type, wanted.inputs, [finish], call.received)
    values = sum(map(values_of, outputs, wanted.requests))
    return await made(partial(tgi.to_body, wanted, outputs), values), headers | _ignored(wanted)


async def stream(service: Service, call: Call[Body], *, at_root: bool = False) -> EventStream[StreamResponse]:
    """Start to generate, and return the stream of tokens."""
    service.metrics.count_request()
    with counted(service.metrics), ExitStack() as held:
        limits = limits_of(service)
        held.enter_context(service.engine.admit(tgi.sequences(call.body, limits, stream=True), call.owner))
        full_text = at_root and _continues(service)
        reading = partial(understood, service, call.body, tokens=Shown.ALWAYS, full_text=full_text)
        wanted = await looked_at(service, call, await call.aside(reading))
        with placed(wanted.image_urls, wanted.requests[0].images):
            flow = await Flow.start(
                service, wanted.requests, call.owner, lambda _, event: [tgi.to_event(wanted, event)]
            )
        headers = stream_headers(service.settings.compute_type, [wanted.inputs])
        return streamed(flow, headers=headers, on_close=held.pop_all().close)


def _continues(service: Service) -> bool:
    """Return whether the model goes on with a prompt, and doesn't answer it."""
    return service.engine.model.pipeline_tag in (None, "text-generation")


def understood(
    service: Service, body: Body, *, tokens: Shown, full_text: bool = False, do_sample: bool = False
) -> Generate:
    """Return what a body asks for; see `tgi.to_generate`."""
    return tgi.to_generate(
        body,
        limits_of(service),
        id=new_id(),
        draw=draw_seed,
        full_text=full_text,
        do_sample=do_sample,
        logprobs=logprobs_mode(service.settings, LogprobsMode.PROCESSED),
        tokens=tokens,
        vision=service.vision,
    )


async def looked_at(service: Service, call: Call[Any], wanted: Generate) -> Generate:
    """Return the same with the images of its prompt, fetched; raise InvalidInput or ImagesOverloaded."""
    if not wanted.image_urls:
        return wanted
    check_images(service, call, wanted.image_urls)
    return wanted.with_images(await gather(service, call, wanted.image_urls))


async def generated(
    service: Service, wanted: Generate, owner: str, *, sequences: int | None = None
) -> tuple[Output, ...]:
    """Return the outputs, the one to answer with first; places in the engine are the caller's to take.

    `sequences` are those of the whole body, if this is a part of it.
    """
    note_prompt(wanted.requests)
    with placed(wanted.image_urls, wanted.requests[0].images):
        outputs = await run(service.engine, wanted.requests, owner, sequences=sequences)
    places = tgi.winner_first(outputs)
    for place in places:
        service.metrics.finished(finish_of(outputs[place]), wanted.requests[place])
    return tuple(outputs[place] for place in places)


def _ignored(wanted: Generate) -> Headers:
    return ignored_header(wanted.without_effect)
