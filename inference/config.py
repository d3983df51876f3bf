"""What the engine is started with; the defaults live in the table of settings (`handlers/settings/`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

TEMPLATE_CHARACTERS = 16 * 1024 * 1024  # the most that any value in a chat template has, too
EMBEDDED_MODEL = Path(__file__).parent / "embedded"


@dataclass(frozen=True, slots=True)
class Found:
    """What the hub said of a model when it was asked first."""

    sha: str | None  # of its commit; None for a directory
    pipeline_tag: str | None
    adapters: Mapping[str, str] = field(default_factory=dict)  # the commits of those from the hub, by name


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
    adapters: tuple[str, ...] = ()  # LoRA: hub ids or name=directory, each with @revision if need be
    adapter_directory: str | None = None  # below which more are loaded while it runs; None: none are
    adapter_bytes: int = 2**30  # of memory that is kept for these
    # No setting: the directories, by name, of those that an engine before this one had
    kept_adapters: Mapping[str, str] = field(default_factory=dict)
    # int8: weights and the inputs of linears, on CPU; or one of TGI's methods, which the files may be of
    quantize: str | None = None
    found: Found | None = None  # no setting: its files are in the cache, and the hub isn't asked again

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
    prefill_chunk_tokens: int | None = None  # of prompts in a step in which texts go on
    max_batch_total_tokens: int | None = None  # KV cache, in tokens
    max_batch_size: int | None = None  # sequences
    kv_cache_dtype: str = "auto"  # auto | float32 | bfloat16
    validation_workers: int = 2  # tokenizer threads
    threads: int | None = None  # compute threads of the CPU path
    engines: int = 1  # no setting: how many, this one too, have the machine's memory together
    shards: int = 1  # processes that have a share each of the model
    remote_shards: int = 0  # of these, on other machines
    shard_address: str = "localhost"  # at which those reach this machine
    shard_port: int = 29500
    isa: str = "auto"  # of the CPU kernels: auto | amx | avx512 | avx2 | baseline
    separate_process: bool = True  # the engine runs in a process of its own
    step_timeout: float | None = None  # seconds, after which that process is started again; 0: never
    max_restarts: int = 5  # of it in a row without a token between, after which it is given up; 0: never
    max_requests_per_owner: int | None = None  # sequences in flight; None: as many as of all
    owner_limit: int | None = None  # of which that is this replica's share; None: it is all of it
    max_sequence_logprobs: int = 524_288  # of alternatives, in all texts of a body and their prompts
    template_seconds: float = 5.0  # that a chat template may take
    template_characters: int = TEMPLATE_CHARACTERS  # that it may make of a conversation
    speculate: int = 0  # most tokens that are guessed to follow a text in a step
    isolate_owners: bool = False  # owners share nothing that the prefix cache holds
    # off switches, each for one optimisation
    merge_linears: bool = True  # parallel linears merged by tracing
    native_kernels: bool = True  # linears and attention of the C extension
    fuse_layers: bool = True  # whole decoder layers in the C extension
    latent_cache: bool = True  # latent attention keeps latents, not every head's keys and values
    narrow_weights: bool = True  # float32 weights that 16 bits hold exactly are kept in 16 bits
    compress_weights: bool = True  # weights are kept in fewer bits that hold them: the files' own, or 12
    screen_head: bool = True  # the likeliest token is found by a copy of the head in 8 or 6 bits
    trim_last_layer: bool = True  # of tokens that none is chosen after, it gives keys and values alone
    prefault_cache: bool = True  # its next pages' memory is found while nothing is computed
    prefix_caching: bool = True  # keys and values of ended requests are kept for others
    # a GPU's
    cuda_memory_fraction: float = 1.0  # of the device's memory, (0, 1]
    cuda_graphs: tuple[int, ...] | None = None  # sizes of decode batches that are captured; (): none
    deterministic: bool = False  # the same bits in any batch
    one_step_ahead: bool = True  # a step is begun before the tokens of the one before it are read
    tune_linears: bool = True  # what multiplies up to 256 rows is chosen by measurement
    overlap_kernels: bool = True  # one comes up while the one before it computes
    filter_on_device: bool = True  # filters and penalties are computed beside the model, not by the host
    group_experts: bool = True  # a mixture's experts are multiplied by kernels of its own


def again(config: EngineConfig, found: Found | None) -> EngineConfig:
    """Return the same for another start, by which the files are of the commits that were found first."""
    if found is None:
        return config
    model = replace(config.model, revision=found.sha or config.model.revision, found=found)
    return replace(config, model=model)
