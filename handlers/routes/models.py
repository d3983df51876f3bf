"""What is served: the model and the server's limits."""

from __future__ import annotations

from handlers.http.call import Call
from handlers.http.replies import JsonReply, Refused, json_reply
from handlers.service import Service
from handlers.version import TGI_VERSION
from handlers.wire.types import Info, Modality, ModelInfo, ModelList
from inference.frontend.limits import SHOWN_NAMES


async def get_model_info(service: Service, call: Call[None]) -> JsonReply[Info]:
    """Answer `GET /info`: the members of TGI 3, those of earlier versions that clients still read, ours."""
    model, settings = service.engine.model, service.settings
    info: Info = {
        "model_id": model.id,
        "model_sha": model.sha,
        "model_pipeline_tag": model.pipeline_tag,
        "max_concurrent_requests": settings.max_concurrent_requests,
        "max_best_of": settings.max_best_of,
        "max_stop_sequences": settings.max_stop_sequences,
        "max_input_tokens": model.max_input_tokens,
        "max_total_tokens": model.max_total_tokens,
        "validation_workers": settings.validation_workers,
        "max_client_batch_size": settings.max_client_batch_size,
        "router": "text-generation-router",
        "version": TGI_VERSION,
        "sha": None,
        "docker_label": settings.docker_label,
        "model_dtype": model.dtype,
        "model_device_type": model.device_type,
        "max_input_length": model.max_input_tokens,
        "waiting_served_ratio": settings.waiting_served_ratio,
        "max_batch_total_tokens": model.max_batch_total_tokens,
        "max_batch_prefill_tokens": model.max_batch_prefill_tokens,
        "max_waiting_tokens": settings.max_waiting_tokens,
        "max_batch_size": settings.max_batch_size,
        "quantize": settings.quantize,
        "quantization": model.quantization,
        "execution": model.level,
        "deterministic": model.deterministic,
        "input_modalities": _modalities(service),
        "images_refused": (model.vision.reason or None) if model.vision is not None else None,
    }
    return json_reply(info)


async def openai_get_model_info(service: Service, call: Call[None]) -> JsonReply[ModelList]:
    """Answer `GET /v1/models`: OpenAI's list, and beside it the flat model of TGI's document."""
    model, adapters = _model(service), _adapters(service)
    return json_reply(
        {
            "object": "list",
            "data": [model, *adapters],
            "id": model["id"],
            "created": model["created"],
            "owned_by": model["owned_by"],
            "has_more": False,
            "first_id": model["id"],
            "last_id": adapters[-1]["id"] if adapters else model["id"],
        }
    )


async def openai_get_model(service: Service, call: Call[None]) -> JsonReply[ModelInfo]:
    """Answer `GET /v1/models/{model}`; `tgi` names the served model, as it does in requests."""
    model, asked = _model(service), call.path["model"]
    if asked in (model["id"], "tgi"):
        return json_reply(model)
    for adapter in _adapters(service):
        if adapter["id"] == asked:
            return json_reply(adapter)
    if not asked:
        told = "Not found: the models are listed at `/v1/models`, without a slash behind it"
        raise Refused(told, status=404, error_type="not_found")
    served = " and ".join(f"`{each['id']}`" for each in [model, *_adapters(service)[:SHOWN_NAMES]])
    are = "are" if service.engine.model.adapters else "is"
    raise Refused(
        f"The model `{asked}` is not served here; {served} {are}.", status=404, error_type="not_found"
    )


def _model(service: Service) -> ModelInfo:
    name = service.engine.model.id
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": name,
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "input_modalities": _modalities(service),
    }


def _adapters(service: Service) -> list[ModelInfo]:
    model = service.engine.model
    shared: ModelInfo = {**_model(service), "parent": model.id, "input_modalities": ["text"]}
    return [{**shared, "id": name, "display_name": name} for name in model.adapters]


def _modalities(service: Service) -> list[Modality]:
    return ["text", "image"] if service.sees else ["text"]
