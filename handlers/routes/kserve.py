"""KServe's routes, version 2 of its protocol, with and without a version of the model in the address.

As in TGI, any name of a model will do: the server has one model. Its own name is in every answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from handlers.http.call import Call
from handlers.http.replies import JsonReply, Refused, json_reply
from handlers.routes.generate import generated, looked_at
from handlers.routes.health import health
from handlers.routes.sequences import counted, draw_seed, limits_of, logprobs_mode, new_id
from handlers.routes.together import together
from handlers.service import Service
from handlers.version import TGI_VERSION
from handlers.wire import kserve as wire
from handlers.wire import tgi
from handlers.wire.kserve import Tensor
from handlers.wire.outputs import Output
from handlers.wire.tgi import Generate, Meaning, Shown
from handlers.wire.types import (
    KserveInferOutput,
    KserveInferRequest,
    KserveInferResponse,
    KserveLive,
    KserveModel,
    KserveReady,
    KserveServer,
)
from inference.errors import InferenceError
from inference.types import LogprobsMode

Place = Callable[[], tuple[str | int, ...]]  # the path to a text


async def kserve_server_metadata(service: Service, call: Call[None]) -> JsonReply[KserveServer]:
    """Answer `GET /v2`."""
    extensions = ["health", "models", "metrics"]
    return json_reply({"name": "text-generation-inference", "version": TGI_VERSION, "extensions": extensions})


async def kserve_live(service: Service, call: Call[None]) -> JsonReply[KserveLive]:
    """Answer `GET /v2/health/live`: whoever is answered knows it."""
    return json_reply({"live": True})


async def kserve_ready(service: Service, call: Call[None]) -> JsonReply[KserveReady]:
    """Answer `GET /v2/health/ready`: 200 if `GET /health` says so, or 503."""
    await health(service, call)
    return json_reply({"live": True, "ready": True})


async def kserve_model_metadata(service: Service, call: Call[None]) -> JsonReply[KserveModel]:
    """Answer `GET /v2/models/{name}` and the same of a version."""
    return json_reply(wire.metadata(call.path["name"], call.path.get("version")))


async def kserve_model_ready(service: Service, call: Call[None]) -> JsonReply[KserveReady]:
    """Answer `GET /v2/models/{name}/ready` and the same of a version, as `GET /v2/health/ready`."""
    await health(service, call)
    return json_reply({"name": call.path["name"], "live": True, "ready": True})


async def kserve_infer(service: Service, call: Call[KserveInferRequest]) -> JsonReply[KserveInferResponse]:
    """Answer `POST /v2/models/{name}/infer` and the same of a version: a text for each text of each input."""
    service.metrics.count_request()
    with counted(service.metrics):
        tensors = await call.aside(partial(_tensors, call.body))
        candidates = tgi.sequences(call.body, limits_of(service), stream=False)
        sequences = candidates * sum(len(tensor.texts) for tensor in tensors)
        with service.engine.admit(sequences, call.owner):
            meaning = await call.aside(partial(_meaning, service, call.body))
            jobs = [_output(service, call, meaning, at, tensors, sequences) for at in range(len(tensors))]
            outputs = await together("inputs", jobs)
    return json_reply(_named(service, call, outputs))


def _tensors(body: KserveInferRequest) -> tuple[Tensor, ...]:
    try:
        return wire.to_tensors(body)
    except wire.Unreadable as error:
        raise Refused(str(error), error_type=error.error_type) from None


def _meaning(service: Service, body: KserveInferRequest) -> Meaning:
    """Return what the parameters ask for, which all texts have in common."""
    mode = logprobs_mode(service.settings, LogprobsMode.PROCESSED)
    limits = limits_of(service)
    return tgi.to_meaning(body.get("parameters"), limits, logprobs=mode, tokens=Shown.NEVER)


async def _output(
    service: Service, call: Call[Any], meaning: Meaning, at: int, tensors: Sequence[Tensor], sequences: int
) -> KserveInferOutput:
    tensor = tensors[at]
    jobs = [
        _continue(service, call, meaning, text, sequences, partial(wire.place_of, call.body, at, number))
        for number, text in enumerate(tensor.texts)
    ]
    return wire.to_output(tensor, await together("data", jobs))


async def _continue(
    service: Service, call: Call[Any], meaning: Meaning, text: str, sequences: int, place: Place
) -> tuple[Generate, Output]:
    try:
        read = meaning.of(text, id=new_id(), draw=draw_seed, vision=service.vision)
        wanted = await looked_at(service, call, read)
        winner, *_ = await generated(service, wanted, call.owner, sequences=sequences)
    except InferenceError as error:
        error.within = place()
        raise
    return wanted, winner


def _named(
    service: Service, call: Call[KserveInferRequest], outputs: list[KserveInferOutput]
) -> KserveInferResponse:
    """Return the answer, which says what its request was called and who answers."""
    answer: KserveInferResponse = {"model_name": service.engine.model.id, "outputs": outputs}
    id, version = call.body.get("id"), call.path.get("version")
    if id is not None:
        answer["id"] = id
    if version is not None:
        answer["model_version"] = version
    return answer
