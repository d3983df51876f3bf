"""LoRA adapters that come and go while the server runs: vLLM's two routes."""

from __future__ import annotations

from handlers.http.call import Call
from handlers.http.replies import Refused, TextReply, text_reply
from handlers.service import Service
from handlers.wire.types import LoadAdapterRequest, UnloadAdapterRequest
from inference.errors import AdapterRefused

OFF = "Adapters can't be loaded while the server runs: start it with --lora-directory"


async def load_lora_adapter(service: Service, call: Call[LoadAdapterRequest]) -> TextReply:
    """Answer `POST /v1/load_lora_adapter`, once every API worker knows the adapter."""
    name = call.body["lora_name"]
    await _changed(service, name, call.body["lora_path"], replaces=bool(call.body.get("load_inplace")))
    return text_reply(f"Success: LoRA adapter '{name}' added successfully.".encode())


async def unload_lora_adapter(service: Service, call: Call[UnloadAdapterRequest]) -> TextReply:
    """Answer `POST /v1/unload_lora_adapter`, once no API worker knows the adapter any more."""
    name = call.body["lora_name"]
    await _changed(service, name)
    return text_reply(f"Success: LoRA adapter '{name}' removed successfully.".encode())


async def _changed(service: Service, name: str, path: str | None = None, *, replaces: bool = False) -> None:
    service.engine.check_ready()
    if service.settings.lora_directory is None:
        raise Refused(OFF, status=403, error_type="forbidden")
    adapters = service.engine.adapters
    try:
        if path is None:
            await adapters.unload(name)
        else:
            await adapters.load(name, path, replaces=replaces)
    except AdapterRefused as error:
        if error.missing:
            raise Refused(str(error), status=404, error_type="not_found") from error
        raise
