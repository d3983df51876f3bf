"""What is told of a model once it is loaded."""

from __future__ import annotations

from collections.abc import Callable

from inference.config import EngineConfig
from inference.levels.served import Served
from inference.loading.source import Source
from inference.planning.plan import Plan
from inference.types import ModelInfo
from inference.vision.model import Vision


def describe(
    config: EngineConfig,
    source: Source,
    served: Served,
    plan: Plan,
    vocabulary: int,
    vision: Vision | None,
    progress: Callable[[str], None],
) -> ModelInfo:
    """Return what clients and the rest of the server are told of a model."""
    return ModelInfo(
        id=config.model.name,
        sha=source.checkpoint.sha,
        pipeline_tag=source.checkpoint.pipeline_tag,
        dtype=served.weights_dtype or str(source.dtype),
        device_type=source.device.type,
        max_input_tokens=plan.max_input_tokens,
        max_total_tokens=plan.max_total_tokens,
        max_batch_prefill_tokens=plan.prefill_tokens,
        max_batch_total_tokens=plan.kv_tokens,
        level=served.name,
        decoder_start=served.decoder_start,
        max_text_tokens=plan.demand.longest_text(len(served.decoder_start)),
        eos_token_ids=source.eos,
        vocabulary_size=vocabulary,
        adapters={each.name: place for place, each in enumerate(source.adapters)},
        adapter_commits={each.name: each.commit for each in source.adapters if each.commit},
        quantization=source.quantization,
        deterministic=served.exact and (served.make_model is None or config.deterministic),
        step_seconds=plan.step_seconds(plan.prefill_tokens),
        vision=None if vision is None else vision.info(source.checkpoint.path, config.model, progress),
    )
