"""Settings that contradict each other, or what there is: refused at the start."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from handlers.keys import read_keys
from handlers.settings.row import SettingsError
from handlers.settings.table import Settings


def check(settings: Settings) -> None:
    """Refuse values that contradict each other, as TGI does at its start; raises SettingsError."""
    total, budget = settings.max_total_tokens, settings.max_batch_total_tokens
    if settings.max_input_tokens and total and settings.max_input_tokens >= total:
        raise SettingsError(
            f"`max_input_tokens` must be < `max_total_tokens`. Given: {settings.max_input_tokens} and {total}"
        )
    for name in ("max_batch_prefill_tokens", "max_total_tokens"):
        value: int | None = getattr(settings, name)
        if value and budget and value > budget:
            raise SettingsError(f"`{name}` must be <= `max_batch_total_tokens`. Given: {value} and {budget}")
    if settings.api_workers > 1 and not settings.engine_process:
        raise SettingsError(
            f"`api_workers` {settings.api_workers} need an engine that they share: leave --no-engine-process "
            "out, or let there be one"
        )
    if settings.replicas > 1:
        _check_replicas(settings)
    if settings.num_shard > 1 or settings.sharded:
        _check_shards(settings)
    if settings.lora_directory is not None:
        _check_lora_directory(settings, Path(settings.lora_directory))
    if settings.api_keys_file is not None:
        read_keys(Path(settings.api_keys_file))
    if settings.otlp_endpoint is not None and not _traces_available():
        raise SettingsError(
            "`otlp_endpoint` needs libraries that aren't installed: install Parley with its extra `traces`"
        )
    if settings.prometheus_port == settings.port:
        raise SettingsError(f"`prometheus_port` must not be `port`. Given: {settings.port} for both")
    if settings.aip_predict_route is not None or settings.aip_health_route is not None:
        from handlers.routes import aliases  # which reads the contract

        aliases.check(settings)


def _check_lora_directory(settings: Settings, directory: Path) -> None:
    several = settings.num_shard > 1 and settings.sharded is not False
    others = {"replicas": settings.replicas > 1, "num_shard": several, "device": settings.device == "cuda"}
    for name in (name for name, is_other in others.items() if is_other):
        raise SettingsError(
            f"`lora_directory` is for one engine, in one process, on a CPU, and `{name}` is "
            f"{getattr(settings, name)}: leave one of them out; --lora-adapters loads adapters at the start"
        )
    if not directory.is_dir():
        raise SettingsError(f"`lora_directory` must be a directory. Given: {directory}")


def _check_replicas(settings: Settings) -> None:
    if settings.api_workers > 1:
        raise SettingsError(
            f"`api_workers` {settings.api_workers} and `replicas` {settings.replicas} are one too many: each "
            "replica has one API process; leave --api-workers out, and let there be more replicas"
        )
    if not _ray_available():
        raise SettingsError(
            f"`replicas` {settings.replicas} need Ray Serve, which isn't installed: install Parley with its "
            "extra `ray`"
        )


def _check_shards(settings: Settings) -> None:
    if settings.sharded and settings.num_shard == 1:
        raise SettingsError("`sharded` is true, and `num_shard` is 1: say over how many with --num-shard")
    several, elsewhere = settings.num_shard, settings.remote_shards
    if elsewhere >= several:
        raise SettingsError(
            f"`remote_shards` must be < `num_shard`: the first one is here. Given: {elsewhere} and {several}"
        )
    if elsewhere and settings.master_addr == "localhost":
        raise SettingsError(
            "`remote_shards` need `master_addr`, the address at which other machines reach this one: give it "
            "with --master-addr"
        )
    if elsewhere and settings.replicas > 1:
        raise SettingsError(
            f"`remote_shards` {elsewhere} and `replicas` {settings.replicas} are one too many: all replicas "
            "would open one port for them; leave one out"
        )
    if settings.device == "cuda" and settings.sharded is not False:
        raise SettingsError(
            f"`num_shard` {settings.num_shard} is for CPUs, and `device` is cuda: a model isn't spread over "
            "GPUs; leave --num-shard out, and --replicas gives each GPU a server"
        )


def _ray_available() -> bool:
    return importlib.util.find_spec("ray") is not None


def _traces_available() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.grpc") is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False
