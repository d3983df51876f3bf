"""Which function answers which operation of the contract."""

from __future__ import annotations

from handlers.metrics.metrics import metrics
from handlers.routes.adapters import load_lora_adapter, unload_lora_adapter
from handlers.routes.chat import chat_completions
from handlers.routes.cloud import sagemaker_compatibility
from handlers.routes.completions import completions
from handlers.routes.generate import compat_generate, generate, generate_stream
from handlers.routes.health import health, livez, ping, readyz, root_health
from handlers.routes.input_tokens import count_input_tokens, count_message_tokens
from handlers.routes.kserve import (
    kserve_infer,
    kserve_live,
    kserve_model_metadata,
    kserve_model_ready,
    kserve_ready,
    kserve_server_metadata,
)
from handlers.routes.messages import create_message
from handlers.routes.models import get_model_info, openai_get_model, openai_get_model_info
from handlers.routes.protocol import operations
from handlers.routes.responses import create_response
from handlers.routes.tokenize import get_chat_tokenize, tokenize
from handlers.routes.vertex import vertex_compatibility

OPERATIONS = operations(
    compat_generate=compat_generate,
    generate=generate,
    generate_stream=generate_stream,
    chat_completions=chat_completions,
    create_response=create_response,
    count_input_tokens=count_input_tokens,
    create_message=create_message,
    count_message_tokens=count_message_tokens,
    completions=completions,
    tokenize=tokenize,
    get_chat_tokenize=get_chat_tokenize,
    sagemaker_compatibility=sagemaker_compatibility,
    vertex_compatibility=vertex_compatibility,
    kserve_server_metadata=kserve_server_metadata,
    kserve_live=kserve_live,
    kserve_ready=kserve_ready,
    kserve_model_metadata=kserve_model_metadata,
    kserve_model_metadata_unversioned=kserve_model_metadata,
    kserve_model_ready=kserve_model_ready,
    kserve_model_ready_unversioned=kserve_model_ready,
    kserve_infer=kserve_infer,
    kserve_infer_unversioned=kserve_infer,
    root_health=root_health,
    health=health,
    livez=livez,
    readyz=readyz,
    ping=ping,
    get_model_info=get_model_info,
    openai_get_model_info=openai_get_model_info,
    openai_get_model=openai_get_model,
    load_lora_adapter=load_lora_adapter,
    unload_lora_adapter=unload_lora_adapter,
    metrics=metrics,
)
