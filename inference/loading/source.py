"""A model that is about to be loaded: its files, and what they will be computed with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from inference.config import EngineConfig
from inference.encoded.texts import has_encoder
from inference.errors import ModelUnavailable
from inference.files.adapters import AdapterFiles, find_adapters, held_bytes
from inference.files.checkpoint import Checkpoint, Weights, find_checkpoint, read_weights
from inference.files.eos import eos_token_ids
from inference.gpu.arithmetic import device_flops
from inference.gpu.memory import memory_named
from inference.gpu.ops import choose_ops
from inference.kernels.native import Library, open_library
from inference.levels.served import Served
from inference.loading.classes import has_own_code
from inference.loading.counting import has_experts, held_weights, kept_weights
from inference.loading.keeping import KeptWeights
from inference.loading.level import Options, bring_up
from inference.loading.model import (
    choose_device,
    choose_dtype,
    load_model,
    read_config,
    vocabulary_size,
)
from inference.machine import Machine, free_memory
from inference.models.lora import Adaptable, load_adapters
from inference.planning.demand import Demand
from inference.planning.described import describe_demand
from inference.planning.plan import MIB
from inference.planning.precision import (
    kept_bits,
    kv_dtype,
    linears_dtype,
    product_speed,
    rounds_inputs,
    screen_bytes,
)
from inference.quantised.asked import FOUR_BITS, INT8, to_do
from inference.quantised.stored import Stored
from inference.shards.group import Group
from inference.vision.model import Vision, open_vision


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """What is known of a model before its weights are read."""

    config: EngineConfig
    checkpoint: Checkpoint
    adapters: tuple[AdapterFiles, ...]
    described: PreTrainedConfig
    weights: Weights
    eos: tuple[int, ...]
    device: torch.device
    device_path: bool  # it takes the path that GPUs take
    dtype: torch.dtype  # that is computed in
    kv_dtype: torch.dtype
    library: Library | None  # of native kernels
    without: str  # why there is none
    kept: KeptWeights = field(default_factory=KeptWeights)  # linears that compute with few bits

    @property
    def quantization(self) -> str | None:
        """Return how files were quantised and what becomes of that, for a person; None if they weren't."""
        stored = self.weights.stored
        return None if stored is None else stored.said(self.kept.names)

    def expanded(self, served: Served) -> Source | None:
        """Return what to load instead where a level can't compute with few bits; None if it does, or needn't.

        Raises ModelUnavailable where they were asked for.
        """
        if not self.kept or served.keeps_codes:
            return None
        if self.kept.rounding is not None:
            kernels = "kernels" if self.device_path else "the native kernels"
            raise ModelUnavailable(
                f"--quantize {self.config.model.quantize} needs {kernels}, and they can't serve "
                f"this model: {served.reason}; start without --quantize"
            )
        return replace(self, kept=KeptWeights())

    def demand(self) -> Demand:
        """Return what the model needs."""
        config, library, dtype = self.config, self.library, self.dtype
        linears = linears_dtype(config, self.weights, dtype, library)
        held = held_weights(self.described, self.weights, self.device)
        demand = describe_demand(
            self.described, held, dtype, linears, self.kv_dtype, latents=self.keeps_latents
        )
        spared = self._spared_bytes(linears.itemsize)
        beside = screen_bytes(config, library, self.described)
        if config.model.adapter_directory is not None:
            beside += config.model.adapter_bytes
        beside += held_bytes(self.adapters, None if self.device.type == "cpu" else dtype.itemsize)
        speed, loading, how = product_speed(config, self.weights, dtype, library), 0, ""
        if self.weights.stored is not None:  # but for few bits in 16, all of them, before the first is packed
            loading, how = held.size(dtype.itemsize, 2) + self.weights.stored.passing_bytes, "expanded"
            loading -= 0 if self.kept.rounding else self._spared_bytes(2)
        elif self.kept.experts.rounded:  # all of them are there before the first is rounded
            loading, how = held.size(dtype.itemsize, 2) + self.kept.nbytes, "rounded"
        elif self.device.type == "cpu" and has_own_code(self.described):
            loading, how = held.size(dtype.itemsize), "loaded in float32"
        elif wide := held.turned * (dtype.itemsize - linears.itemsize):
            loading, how = held.size(dtype.itemsize, linears.itemsize) + wide, "loaded in float32"
        elif self.library is not None and held.mixture:
            loading, how = held.size(dtype.itemsize, linears.itemsize), "packed"
            loading += held.mixture * _packed_bytes(linears)
        return replace(
            demand,
            weights_bytes=demand.weights_bytes + beside - spared,
            weights_form=self._form(demand.weights_form),
            loading_bytes=loading,
            loading_how=how,
            product_speed=speed,
        )

    @property
    def keeps_latents(self) -> bool:
        """Return whether latent attention keeps latents alone, where it is computed so."""
        return self.config.latent_cache

    def _form(self, others: str) -> str:
        """Return in which form the weights are."""
        return f"{self.kept.bits} bits, others {others}" if self.kept else others

    def _spared_bytes(self, item_bytes: int) -> int:
        """Return what less the weights take that are in few bits, of numbers of so many bytes otherwise."""
        return self.kept.numbers * item_bytes - self.kept.nbytes

    def machine(self, threads: int) -> Machine:
        """Return what there is to compute with; `threads`: torch's."""
        if self.device.type == "cpu":
            free = free_memory(self.config.engines)
        else:
            left, total = torch.cuda.mem_get_info(self.device)
            free = max(left - int(total * (1 - self.config.cuda_memory_fraction)), 0)
        flops = 0.0 if self.device.type == "cpu" else device_flops(self.device)
        library = self.library
        isa = "torch" if library is None else library.isa
        threads = threads if library is None else library.threads
        kind = self.device.type
        return Machine(device_type=kind, free_bytes=free, threads=threads, isa=isa, flops=flops)

    def bring_up(
        self, max_total_tokens: int, progress: Callable[[str], None], group: Group | None = None
    ) -> tuple[Served, int, Vision | None]:
        """Load the model, or its share in a group, and bring it to its best level; raise ModelUnavailable.

        Returns it with the number of its tokens' ids, and with what its images need if it sees.
        """
        config, device = self.config, self.device
        with memory_named("the model was loaded", device):
            model = load_model(
                *(self.checkpoint, config.model, self.described, self.weights, device, progress, self.kept)
            )
            vocabulary = vocabulary_size(model)
            adaptable = None if config.model.adapter_directory is None else Adaptable.of(model)
            low_ranks = load_adapters(self.adapters, model) if self.adapters or adaptable else None
            ops = choose_ops(config, device) if self.device_path else None
            vision = open_vision(
                model, self.checkpoint.path, self.described, max_total_tokens, self._blind(group, model)
            )
            options = replace(
                self._options(max_total_tokens),
                adapters=low_ranks,
                adaptable=adaptable,
                ops=ops,
                group=group,
                vision=vision,
            )
            return bring_up(model, options), vocabulary, vision

    def _blind(self, group: Group | None, model: PreTrainedModel) -> str:
        """Return why images can't be computed in any case, "" if they may be."""
        if has_encoder(model):
            return "its encoder would read them, which is done with text alone"
        if group is not None:
            return "they aren't passed on to other shards: start without --num-shard"
        return ""

    def _options(self, max_total_tokens: int) -> Options:
        config = self.config
        return Options(
            library=self.library,
            without=self.without,
            fuse=config.fuse_layers,
            merge=config.merge_linears,
            narrow=config.narrow_weights,
            compress=config.compress_weights,
            screen=config.screen_head,
            trim=config.trim_last_layer,
            quantize=config.model.quantize == INT8 and self.library is not None,
            round_inputs=rounds_inputs(config, self.library),
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            kv_dtype_asked=config.kv_cache_dtype != "auto",
            max_total_tokens=max_total_tokens,
            filter_on_device=config.filter_on_device,
            group_experts=config.group_experts,
            latents=config.latent_cache,
        )


def find_source(
    config: EngineConfig, threads: int, progress: Callable[[str], None], *, device_path: bool = False
) -> Source:
    """Return a model's files and what computes them; raise ModelUnavailable.

    `threads` are those of native kernels; `device_path`: a CPU takes the path that GPUs take.
    """
    checkpoint = find_checkpoint(config.model, progress)
    adapters = find_adapters(config.model, progress)
    described = read_config(checkpoint, config.model)
    weights = read_weights(checkpoint.path, pickled=config.model.trust_remote_code)
    asked, config = config.model.quantize, _with_quantisation(config, weights, progress)
    device = choose_device(config.model, progress)
    if config.shards > 1 and device.type != "cpu":
        raise ModelUnavailable(
            f"A model is spread over CPUs alone, and --num-shard {config.shards} would spread it over GPUs: "
            f"leave it out (--replicas gives each GPU a server), or use --device cpu"
        )
    if config.shards > 1 and has_experts(described):
        raise ModelUnavailable(
            f"`{config.model.name}` is a mixture of experts, which can't be divided, and --num-shard "
            f"{config.shards} would divide it: leave it out, one process uses all cores (--quantize "
            "bitsandbytes-nf4 has experts take a quarter of the memory of 16 bits)"
        )
    device_path = device_path or device.type != "cpu"
    library, without = _open_library(config, threads, device, device_path=device_path)
    quantize = config.model.quantize
    keeps = kept_bits(config, library, on_device=device_path)
    if quantize and library is None and not keeps:
        bits, times = (4, "four times") if quantize in FOUR_BITS else (8, "twice")
        kernels = "kernels" if device_path else "the native kernels"
        why = _why_not(config, described, on_device=True) if device_path else without
        raise ModelUnavailable(
            f"--quantize {asked} has weights rounded to {bits} bits by {kernels}, but {why}: "
            f"leave it out, and they are served in 16 bits, which take {times} the memory"
        )
    dtype = choose_dtype(config.model, described, device)
    rounding = FOUR_BITS.get(quantize or "")
    if quantize == INT8 and device_path:
        rounding = INT8
    source = Source(
        config=config,
        checkpoint=checkpoint,
        adapters=tuple(adapters),
        described=described,
        weights=weights,
        eos=eos_token_ids(checkpoint.path),
        device=device,
        device_path=device_path,
        dtype=dtype,
        kv_dtype=kv_dtype(config, library, without, dtype),
        library=library,
        without=without,
        kept=kept_weights(
            described, weights, rounding, keeps, experts=config.group_experts or not device_path
        )
        if keeps
        else KeptWeights(),
    )
    if rounding and not source.kept:
        bits = 8 if rounding == INT8 else 4
        raise ModelUnavailable(
            f"--quantize {asked} has weights in {bits} bits, and "
            f"{_why_not(config, described, on_device=device_path)}: leave it out"
        )
    if weights.stored is not None:
        sizes = _sizes_said(weights.stored, KeptWeights() if rounding else source.kept)
        progress(f"The files are quantised: {source.quantization}, {sizes}")
    return source


def _packed_bytes(linears: torch.dtype) -> int:
    """Return the bytes of an expert's number beside the model's own, while its layer is tried and packed.

    What 8 bits round is tried in 16 first, in which it is exact.
    """
    return linears.itemsize if linears.itemsize > 1 else 1 + 2


def _why_not(config: EngineConfig, described: PreTrainedConfig, *, on_device: bool) -> str:
    if config.shards > 1:
        return "shards have none of them"
    if not config.native_kernels:
        return "they are switched off (--native-kernels)"
    if not config.compress_weights or not (config.narrow_weights or on_device):
        return "to keep weights in fewer bits is switched off"
    if described.is_encoder_decoder or has_own_code(described):
        return "models with an encoder, or with code of their own, can't be given them"
    return "it has no linears that can be"


def _sizes_said(stored: Stored, kept: KeptWeights) -> str:
    become = stored.held_bytes - 2 * kept.numbers + kept.nbytes
    return f"{stored.file_bytes / MIB:,.0f} MiB that become {become / MIB:,.0f} MiB"


def _with_quantisation(
    config: EngineConfig, weights: Weights, progress: Callable[[str], None]
) -> EngineConfig:
    """Return the configuration by which weights are rounded or aren't; raise ModelUnavailable."""
    asked = to_do(config.model.quantize, weights.stored, progress)
    return replace(config, model=replace(config.model, quantize=asked))


def _open_library(
    config: EngineConfig, threads: int, device: torch.device, *, device_path: bool
) -> tuple[Library | None, str]:
    """Return the C extension, or why it isn't used."""
    library, without = None, ""
    if device.type != "cpu":
        without = "native kernels are for CPUs"
    elif device_path:
        without = "a GPU's path is tried"
    elif not config.native_kernels:
        without = "native kernels are switched off"
    else:
        library = open_library(threads, config.isa)
        without = "" if library else "native kernels can't be used: see the log for why, and what to do"
    return library, without
