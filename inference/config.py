"""What the engine is started with; the defaults live in the table of settings (`handlers/settings.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EMBEDDED_MODEL = Path(__file__).parent / "embedded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model to load, and how."""

    model_id: str | None = None  # None: the embedded model; else a local directory or a hub id
    revision: str | None = None
    dtype: str = "auto"  # auto | float32 | float16 | bfloat16
    device: str = "auto"  # auto | cpu | cuda
    trust_remote_code: bool = False
    tokenizer_config_path: str | None = None  # replaces tokenizer_config.json for the chat template
    cache_dir: str | None = None  # the hub's cache

    @property
    def name(self) -> str:
        """Return the id that clients see."""
        return self.model_id or "parley-embedded"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How much the engine takes on; None means computed from the model and the machine."""

    model: ModelConfig = ModelConfig()
    max_concurrent_requests: int = 128
    max_input_tokens: int | None = None
    max_total_tokens: int | None = None
    max_batch_prefill_tokens: int | None = None  # token budget of one step
    max_batch_total_tokens: int | None = None  # KV cache, in tokens
    max_batch_size: int | None = None  # sequences
    validation_workers: int = 2  # tokenizer threads
    merge_linears: bool = True  # off switch: parallel linears merged by tracing
    threads: int | None = None  # compute threads of the CPU path
