"""Models in real shapes whose random weights are drawn on the device: nothing is downloaded or written.

The engine loads a model from a directory. Here that holds the configuration and a safetensors file of
which only the header is there (the rest is a hole in the file); the weights come from a generator.
"""

from __future__ import annotations

import gc
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

SEED = 0
# Of what a linear is given, by norm, alike in all widths. By transformers' 0.02 it would be 1.3 in 8B, whose
# 32 layers would make more of what 16 bits round away than the engine's proof allows: no fast level for it
_GAIN = 0.6


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's configuration, and what follows of it."""

    kind: str  # transformers' name of the architecture
    config: dict[str, Any]

    @property
    def described(self) -> PreTrainedConfig:
        """Return transformers' configuration."""
        found: PreTrainedConfig = AutoConfig.for_model(self.kind, **self.config)
        return found

    @property
    def layers(self) -> int:
        """Return how many decoder layers there are."""
        return int(self.config["num_hidden_layers"])

    @property
    def dim(self) -> int:
        """Return the size of a head."""
        config = self.config
        return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Return the (outputs, inputs) of a layer's linears, merged as the engine merges them."""
        config = self.config
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        return {
            "qkv": ((heads + 2 * kv_heads) * self.dim, hidden),
            "out": (hidden, heads * self.dim),
            "gate_up": (2 * inner, hidden),
            "down": (hidden, inner),
        }

    @property
    def multiplied(self) -> int:
        """Return the weights that a token is multiplied with: those of layers, and of the head."""
        layer = sum(outputs * inputs for outputs, inputs in self.linears.values())
        return self.layers * layer + int(self.config["vocab_size"] * self.config["hidden_size"])

    @property
    def state_bytes(self) -> int:
        """Return what of a sequence is read and written for each token."""
        return 0

    @property
    def kv_numbers(self) -> int:
        """Return the numbers that a token puts into the cache."""
        return 2 * self.layers * int(self.config["num_key_value_heads"]) * self.dim


class CountedShape(Shape):
    """A model whose linears are counted, as they aren't Llama's."""

    @property
    def multiplied(self) -> int:
        """Return the weights that a token is multiplied with."""
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.described, dtype=torch.bfloat16)
        linears = (each for each in model.modules() if isinstance(each, torch.nn.Linear))
        return sum(each.weight.numel() for each in linears)


class HybridShape(CountedShape):
    """A model of which most layers keep a state, by the gated delta rule, in place of keys and values."""

    @property
    def kv_numbers(self) -> int:
        """Return the numbers that a token puts into the cache."""
        full = self.described.layer_types.count("full_attention")
        return 2 * full * int(self.config["num_key_value_heads"]) * self.dim

    @property
    def state_bytes(self) -> int:
        """Return what of a sequence is read and written for each token, in float32."""
        config, keeping = self.config, self.described.layer_types.count("linear_attention")
        heads, keys = config["linear_num_value_heads"], config["linear_key_head_dim"]
        return 4 * keeping * int(heads * keys * config["linear_value_head_dim"])


class LatentShape(CountedShape):
    """A model with multi-head latent attention."""

    @property
    def kv_numbers(self) -> int:
        """Return the numbers that a token puts into the cache: latents, whatever is kept of them."""
        return self.layers * int(self.config["kv_lora_rank"] + self.config["qk_rope_head_dim"])


def _spread(hidden: int) -> float:
    """Return the deviation of weights whose products with so many numbers have the gain."""
    return round(_GAIN / hidden**0.5, 5)


def _llama(vocabulary: int, hidden: int, inner: int, layers: int, heads: int, *, tied: bool) -> Shape:
    return Shape("llama", {
        "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 8,
        "head_dim": 128 if hidden == 4096 else 64, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "tie_word_embeddings": tied,
        "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": _spread(hidden),
    })  # fmt: skip


def _qwen(hidden: int, inner: int, layers: int, heads: int) -> Shape:
    return Shape("qwen2", {
        "vocab_size": 151936, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
        "initializer_range": _spread(hidden),
    })  # fmt: skip


SHAPES = {
    "llama-3.1-8b": _llama(128256, 4096, 14336, 32, 32, tied=False),
    "llama-3.2-1b": _llama(128256, 2048, 8192, 16, 32, tied=True),
    "qwen2.5-0.5b": _qwen(896, 4864, 24, 14),
    "qwen2.5-1.5b": _qwen(1536, 8960, 28, 12),
    "qwen3.5-0.8b": HybridShape(
        "qwen3_5_text",
        {
            "vocab_size": 248320,
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "rms_norm_eps": 1e-6,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "initializer_range": _spread(1024),
        },
    ),
}
# As Youtu-LLM: latent attention, and no experts
LATENT = LatentShape("youtu", {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32,
    "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 16384,
    "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
    "initializer_range": _spread(2048),
})  # fmt: skip
SMALL_LATENT = LatentShape("youtu", {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "max_position_embeddings": 4096,
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
})  # fmt: skip
SMALL = Shape("llama", {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
})  # fmt: skip


def make_model(
    shape: Shape, device: torch.device, dtype: torch.dtype, attention: str = "eager"
) -> PreTrainedModel:
    """Return a model with weights of a fixed seed: each call on a device draws the same ones."""
    torch.manual_seed(SEED)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            shape.described, dtype=dtype, attn_implementation=attention
        )
    return model.to(device).eval().requires_grad_(False)


def write_description(folder: Path, shape: Shape) -> Path:
    """Write what the engine looks at before it loads a model; return the directory."""
    shape.described.save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape.described, dtype=torch.bfloat16)
    header, end = {}, 0
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and shape.config["tie_word_embeddings"]:
            continue
        start, end = end, end + 2 * tensor.numel()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.truncate(8 + len(encoded) + end)
    return folder


@contextmanager
def drawn_instead_of_read(shape: Shape, dtype: torch.dtype) -> Iterator[None]:
    """Have the engine load models of random weights."""

    def load(
        checkpoint: object,
        config: object,
        described: object,
        weights: object,
        device: torch.device,
        progress: Callable[[str], None],
        kept: object,
    ) -> PreTrainedModel:
        progress(f"Random weights of {shape.multiplied / 1e9:.1f} billion parameters")
        return make_model(shape, device, dtype)

    with patch("inference.loading.source.load_model", load):
        yield


def free(device: torch.device) -> None:
    """Give back what was dropped."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
