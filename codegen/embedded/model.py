"""The network while it trains: the arithmetic of transformers' Llama, with less around it and so faster on a CPU."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the network, under the names of a Llama configuration."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 640
    num_hidden_layers: int = 5
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    rope_theta: float = 10000.0
    max_position_embeddings: int = 1024
    rms_norm_eps: float = 1e-5


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        keys = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, shape.num_attention_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * shape.head_dim, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Attend within each document of each row."""
        rows, length, _ = x.shape
        q, k, v = (
            projection(x)
            .view(rows, length, -1, self.shape.head_dim)
            .transpose(1, 2)  # (rows, heads, length, head_dim)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


class Mlp(nn.Module):
    """The gated feed-forward layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Gate, multiply, project back."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Add attention, then the feed-forward layer, to the stream."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The decoder, its embedding tied to its output; parameter names are those of a Llama checkpoint."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.apply(self._initialise)

    def forward(self, tokens: Tensor, documents: Tensor) -> Tensor:
        """Turn tokens and the number of the document each belongs to into hidden states."""
        length = tokens.shape[1]
        same = documents[:, None, :, None] == documents[:, None, None, :]  # (rows, 1, length, length)
        mask = same & torch.ones(length, length, dtype=torch.bool).tril()
        cos, sin = rotary(self.shape, length)
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)

    def loss(self, tokens: Tensor, documents: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over the targets that are not -100."""
        hidden = self(tokens, documents)
        wanted = targets >= 0
        return F.cross_entropy(F.linear(hidden[wanted], self.embed_tokens.weight).float(), targets[wanted])

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, Attention):
            nn.init.zeros_(module.o_proj.weight)
        if isinstance(module, Mlp):
            nn.init.zeros_(module.down_proj.weight)


def rotary(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the positions, (length, head_dim) each."""
    exponents = torch.arange(0, shape.head_dim, 2) / shape.head_dim
    angles = torch.outer(torch.arange(length), shape.rope_theta**-exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of channels by its position's angle."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def save(model: Llama, directory: Path, end_ids: list[int], start_id: int) -> None:
    """Write the weights in bfloat16 and the configuration that loads them."""
    weights = {
        f"model.{name}": tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(model.shape),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "bos_token_id": start_id,
        "eos_token_id": end_ids,
        "pad_token_id": start_id,
    }
    generation = {"bos_token_id": start_id, "eos_token_id": end_ids, "pad_token_id": start_id}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
