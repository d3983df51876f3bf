"""The rows about optimisations: a part of the table of settings, each on unless something is measured."""

from __future__ import annotations

from dataclasses import dataclass

from handlers.settings import effects as effects
from handlers.settings.requests import RequestSettings
from handlers.settings.row import Group, boolean, choice, row

SWITCHES = Group.SWITCHES


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSettings(RequestSettings):
    """Faster ways to the same answer, but for its last bits; there to be switched off and measured."""

    # fmt: off
    cpu_isa: str = row("auto", choice("auto", "amx", "avx512", "avx2", "neon", "baseline"), SWITCHES,
        "instructions that the CPU's kernels use; auto: the best that the CPU has", tgi=False,
        effect=effects.ON_CPU)
    native_kernels: bool = row(True, boolean, SWITCHES,
        "compute by Parley's own kernels, in C on a CPU and in Triton on a GPU; off: by torch's", tgi=False)
    fuse_layers: bool = row(True, boolean, SWITCHES,
        "compute a whole layer by one call on a CPU, or by a few kernels on a GPU, and models with an "
        "encoder in batches, where the results are the model's own", tgi=False)
    latent_cache: bool = row(True, boolean, SWITCHES,
        "keep in the KV cache, of models with multi-head latent attention (DeepSeek's and others), the "
        "latents that all heads' keys and values are made of, a small part of these", tgi=False)
    narrow_weights: bool = row(True, boolean, SWITCHES,
        "keep float32 weights on a CPU in 16 bits if none of them changes by that; saves memory",
        tgi=False, effect=effects.ON_CPU)
    compress_weights: bool = row(True, boolean, SWITCHES,
        "keep bfloat16 weights on a CPU in 12 bits, without losing any (needs AVX2 or NEON), and those that "
        "are quantised in their own 4 or 8 bits: saves memory and time", tgi=False)
    screen_head: bool = row(True, boolean, SWITCHES,
        "find the likeliest token on a CPU by a rough copy of the output layer, in 8 or 6 bits, and compute "
        "exactly only the few that may be it: faster, with the same tokens, for up to a byte of memory per "
        "weight of that layer. Used in steps whose requests are all greedy, without grammars or "
        "log-probabilities; needs VNNI, or AVX2 without AVX-512 (with --quantize int8: VNNI)",
        tgi=False, effect=effects.ON_CPU)
    trim_last_layer: bool = row(True, boolean, SWITCHES,
        "leave out of the last layer what is only needed for tokens whose logits nobody reads", tgi=False)
    prefault_cache: bool = row(True, boolean, SWITCHES,
        "have the system find memory for the KV cache on a CPU ahead of time, while nothing is computed",
        tgi=False, effect=effects.ON_CPU)
    merge_linears: bool = row(True, boolean, SWITCHES,
        "multiply by a layer's parallel matrices, such as those of queries, keys and values, at once",
        tgi=False)
    one_step_ahead: bool = row(True, boolean, SWITCHES,
        "start a GPU's next step before the results of the last one are read",
        tgi=False, effect=effects.FASTER_ON_GPU)
    tune_linears: bool = row(True, boolean, SWITCHES,
        "measure at the start which way of multiplying up to 256 rows is the fastest on this GPU",
        tgi=False, effect=effects.FASTER_ON_GPU)
    overlap_kernels: bool = row(True, boolean, SWITCHES,
        "on GPUs of the Hopper generation, start a kernel while the one before it still computes",
        tgi=False, effect=effects.FASTER_ON_GPU)
    filter_on_device: bool = row(True, boolean, SWITCHES,
        "apply top-k, top-p, min-p and penalties on the GPU, not on the host",
        tgi=False, effect=effects.FASTER_ON_GPU)
    group_experts: bool = row(True, boolean, SWITCHES,
        "multiply by a mixture's experts on a GPU with Parley's own kernels, sorted by expert there, not by "
        "transformers' code", tgi=False, effect=effects.FASTER_ON_GPU)
    validator: str = row("compiled", choice("compiled", "reference"), SWITCHES,
        "which validator checks requests; both decide alike, `reference` takes about a hundred times as "
        "long", tgi=False)
    # fmt: on
