"""The part of the settings that the engine is started with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference.config import EngineConfig, ModelConfig

if TYPE_CHECKING:
    from handlers.settings.table import Settings


def engine_config(settings: Settings) -> EngineConfig:
    """Return the engine's configuration."""
    model = ModelConfig(
        model_id=settings.model_id,
        revision=settings.revision,
        dtype=settings.dtype,
        device=settings.device,
        trust_remote_code=settings.trust_remote_code,
        tokenizer_config_path=settings.tokenizer_config_path,
        cache_dir=settings.huggingface_hub_cache,
        adapters=settings.lora_adapters,
        adapter_directory=settings.lora_directory,
        adapter_bytes=settings.lora_memory,
        quantize=settings.quantize,
    )
    shards = 1 if settings.sharded is False else settings.num_shard
    return EngineConfig(
        model=model,
        max_concurrent_requests=settings.max_concurrent_requests,
        max_input_tokens=settings.max_input_tokens,
        max_total_tokens=settings.max_total_tokens,
        max_batch_prefill_tokens=settings.max_batch_prefill_tokens,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        max_batch_total_tokens=settings.max_batch_total_tokens,
        max_batch_size=settings.max_batch_size,
        kv_cache_dtype=settings.kv_cache_dtype,
        validation_workers=settings.validation_workers,
        threads=settings.compute_threads,
        shards=shards,
        remote_shards=settings.remote_shards if shards > 1 else 0,
        shard_address=settings.master_addr,
        shard_port=settings.master_port,
        isa=settings.cpu_isa,
        separate_process=settings.engine_process,
        step_timeout=settings.step_timeout,
        max_restarts=settings.max_engine_restarts,
        max_requests_per_owner=of_each_replica(settings, settings.max_concurrent_requests_per_key),
        owner_limit=settings.max_concurrent_requests_per_key,
        max_sequence_logprobs=settings.max_sequence_logprobs,
        template_seconds=settings.template_timeout,
        template_characters=settings.max_template_output,
        speculate=settings.speculate or 0,
        isolate_owners=isolates_keys(settings),
        merge_linears=settings.merge_linears,
        native_kernels=settings.native_kernels,
        fuse_layers=settings.fuse_layers,
        latent_cache=settings.latent_cache,
        narrow_weights=settings.narrow_weights,
        compress_weights=settings.compress_weights,
        screen_head=settings.screen_head,
        trim_last_layer=settings.trim_last_layer,
        prefault_cache=settings.prefault_cache,
        prefix_caching=settings.prefix_caching,
        cuda_memory_fraction=settings.cuda_memory_fraction,
        cuda_graphs=settings.cuda_graphs,
        deterministic=settings.deterministic,
        one_step_ahead=settings.one_step_ahead,
        tune_linears=settings.tune_linears,
        overlap_kernels=settings.overlap_kernels,
        filter_on_device=settings.filter_on_device,
        group_experts=settings.group_experts,
    )


def isolates_keys(settings: Settings) -> bool:
    """Return whether the requests of different keys share nothing."""
    if settings.prefix_cache_scope == "auto":
        return settings.api_keys_file is not None
    return settings.prefix_cache_scope == "key"


def of_each_replica(settings: Settings, count: int | None) -> int | None:
    """Return the share of one of several replicas, of which none knows what the others gave a caller."""
    return None if count is None else max(1, count // settings.replicas)
