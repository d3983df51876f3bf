"""OpenAI's text completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice

from handlers.account import note_prompt
from handlers.http.aside import made
from handlers.http.call import Call
from handlers.http.replies import Dialect, EventStream, JsonReply, Refused, json_reply
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
    submitted,
)
from handlers.service import Service
from handlers.version import fingerprint
from handlers.wire import completions as wire
from handlers.wire.completion_answer import Answer, AnswerStream, as_told
from handlers.wire.completions import Asked, Completion, Prompt
from handlers.wire.headers import batch_headers, stream_headers
from handlers.wire.openai import Stamp, TokenBytes, idle_options
from handlers.wire.outputs import finish_of, values_of
from handlers.wire.types import Chunk, CompletionFinal, CompletionRequest
from inference.errors import InvalidInput, Member
from inference.types import LogprobsMode


async def completions(
    service: Service, call: Call[CompletionRequest]
) -> JsonReply[CompletionFinal] | EventStream[Chunk]:
    """Answer `POST /v1/completions`, whole or as a stream of chunks."""
    service.metrics.count_request()
    with counted(service.metrics), ExitStack() as held:
        limits = limits_of(service)
        asked = await call.aside(partial(wire.to_asked, call.body, limits))
        _check_batch(len(asked.prompts), service.settings.max_client_batch_size)
        held.enter_context(service.engine.admit(asked.sequences, call.owner))
        id = new_id()
        prompts = await call.aside(partial(wire.to_prompts, await _texts(service, asked), service.vision))
        mode = logprobs_mode(service.settings, LogprobsMode.RAW)
        completion = await call.aside(
            partial(
                wire.to_completion, call.body, asked, prompts, limits, id=id, draw=draw_seed, logprobs=mode
            )
        )
        if service.encodes and completion.echo and completion.logprobs is not None:
            raise InvalidInput(
                Member("logprobs"),
                " beside `echo` are the prompt's, too, and tokens that this model's encoder reads "
                "have none. Leave one of them out",
            )
        completion = await _looked_at(service, call, completion, prompts)
        for requests in completion.by_prompt:
            note_prompt(requests)
        stamp = _stamp(service, id, completion.requests[0].adapter)
        images = [image for prompt in prompts for image in prompt.image_urls]
        files = [file for requests in completion.by_prompt for file in requests[0].images]
        with placed(images, files):
            if not completion.stream:
                return await _complete(service, call, completion, stamp)
            generations = await submitted(service.engine, completion.requests, call.owner)
        counts = [generation.prompt_tokens for generation in generations]
        answer = AnswerStream(
            completion, stamp, counts, _token_bytes(service, completion), as_tgi=not call.speaks_openai
        )
        flow = Flow(generations, service.metrics, answer.chunks, partial(as_told, completion))
        headers = stream_headers(service.settings.compute_type, [prompt.text for prompt in prompts])
        return streamed(flow, dialect=Dialect.OPENAI, headers=headers, on_close=held.pop_all().close)


async def _complete(
    service: Service, call: Call[CompletionRequest], completion: Completion, stamp: Stamp
) -> JsonReply[CompletionFinal]:
    outputs = await run(service.engine, completion.requests, call.owner)
    finishes = [as_told(completion, finish_of(events)) for events in outputs]
    for finish, request in zip(finishes, completion.requests, strict=True):
        service.metrics.finished(finish, request)
    token_bytes = _token_bytes(service, completion)

    def answered() -> JsonReply[CompletionFinal]:
        body = Answer(completion, stamp, token_bytes).body(outputs)
        headers = batch_headers(
            service.settings.compute_type, completion.prompts, finishes, call.received, counts=body["usage"]
        )
        return json_reply(body, headers=headers | ignored_header(idle_options(call.body)))

    return await made(answered, sum(map(values_of, outputs, completion.requests)))


def _token_bytes(service: Service, completion: Completion) -> TokenBytes | None:
    return service.engine.token_bytes if completion.logprobs is not None else None


async def _texts(service: Service, asked: Asked) -> list[str | Prompt]:
    """Return the prompts, those that were given as token ids with their texts."""
    return [
        given if isinstance(given, str) else Prompt(await service.engine.decode(given), given)
        for given in asked.prompts
    ]


async def _looked_at(
    service: Service, call: Call[CompletionRequest], completion: Completion, prompts: Sequence[Prompt]
) -> Completion:
    """Return the same with the images of its prompts, fetched; raise InvalidInput or ImagesOverloaded."""
    urls = [image for prompt in prompts for image in prompt.image_urls]
    if not urls:
        return completion
    check_images(service, call, urls)
    found = iter(await gather(service, call, urls))
    return completion.with_images([tuple(islice(found, len(each.image_urls))) for each in prompts])


def _check_batch(prompts: int, limit: int) -> None:
    if prompts > limit:
        raise Refused(
            f"Number of prompts exceeds the maximum allowed batch size of {limit}",
            error_type="batch size exceeded",
        )


def _stamp(service: Service, id: str, adapter: str | None) -> Stamp:
    return Stamp(
        id=f"cmpl-{id}",
        created=int(time.time()),
        model=adapter or service.engine.model.id,
        fingerprint=fingerprint(service.settings.docker_label),
    )
