"""By which code a model attends: its own, or ours over the paged cache.

Most of transformers' models call the attention that is registered under the name they are given. Older ones
attend in a method of their own (GPT-J, GPT-Neo, CodeGen, GPT-NeoX Japanese, GPT), or in the middle of another
one (Falcon, Bloom, MPT): for those something stands that computes the same from the same hidden states.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.kernels.reference import Attention

ATTENTION = "parley_paged"
_LAYER = "parley_layer"  # the attribute of an attention module that holds its layer
_STANDS = "parley_stand_in"  # the attribute of what stands for some of a module's code


class AttendingLayer(Protocol):
    """One layer's part of a cache."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
        """Keep the keys and values (tokens, kv_heads, dim), and return (tokens, heads, value_dim)."""


def install(module: nn.Module, layer: AttendingLayer) -> None:
    """Have an attention module keep and attend to what is in `layer`."""
    setattr(module, _LAYER, layer)


def installed(module: nn.Module) -> AttendingLayer | None:
    """Return the layer that it has."""
    layer: AttendingLayer | None = vars(module).get(_LAYER)
    return layer


def uninstall(module: nn.Module) -> None:
    """Have it let go of its layer."""
    delattr(module, _LAYER)


def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
    """Have a module's layer attend, of (1, heads, tokens, dim) each; return (1, tokens, heads, value_dim)."""
    layer: AttendingLayer = getattr(module, _LAYER)
    query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
    return layer.attend(query, key, value, how)[None]


def attend_by(model: PreTrainedModel, name: str) -> None:
    """Have a model attend by what is registered under a name; by ours where it has none, if that can be."""
    modules = list(model.modules())
    if any(each._can_set_attn_implementation() for each in modules if isinstance(each, PreTrainedModel)):
        model.set_attn_implementation(name)  # others would but say that they can't, each time
    for module in modules:
        if name == ATTENTION:
            _stand_in(module)
        else:
            _stand_back(module)


def attending_by(model: PreTrainedModel) -> str:
    """Return the name under which its text attends."""
    name: str = ATTENTION if stood_for(model) else model.config.get_text_config()._attn_implementation
    return name


def stood_for(model: nn.Module) -> bool:
    """Return whether something stands for some of its modules' own attention."""
    return any(_STANDS in vars(module) for module in model.modules())


def _stand_in(module: Any) -> None:
    if _STANDS in vars(module):
        return
    for name, find in _STAND_INS:
        stand = find(module)
        if stand is not None:
            vars(module)[name] = stand
            vars(module)[_STANDS] = name
            return


def _stand_back(module: nn.Module) -> None:
    name = vars(module).pop(_STANDS, None)
    if name is not None:
        del vars(module)[name]


def _method(module: Any) -> Callable[..., Any] | None:
    """Return what stands for a method `_attn`, which is given rotated queries and keys; None: it has none."""
    own = getattr(module, "_attn", None)
    names = [*inspect.signature(own).parameters][:3] if callable(own) else []
    kind = getattr(module, "attention_type", None)  # GPT-Neo's, which divides by nothing
    divisor: Any = getattr(module, "scale_attn", getattr(module, "norm_factor", kind and 1.0))

    def attend_to(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, None]:
        window = module.config.window_size if kind == "local" else None
        how = Attention(scaling=1.0 / float(divisor), window=window)
        found = attend(module, query.to(value.dtype), key.to(value.dtype), value, how)
        return found.transpose(1, 2), None

    def attend_across(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> list[Tensor]:
        how = Attention(scaling=v.shape[-1] ** -0.5 if module.scale else 1.0)
        return [attend(module, q, k.transpose(2, 3), v, how).transpose(1, 2)]

    if names == ["query", "key", "value"] and divisor is not None:
        return attend_to
    return attend_across if names == ["q", "k", "v"] and hasattr(module, "scale") else None


def _falcon(module: Any) -> Callable[..., Any] | None:
    """Return what stands for the forward of Falcon's attention; None for others, and with linear biases."""
    config, rotate = getattr(module, "config", None), _beside(module, "apply_rotary_pos_emb")
    if rotate is None or not hasattr(module, "new_decoder_architecture") or getattr(config, "alibi", True):
        return None

    def forward(hidden: Tensor, *_: Any, position_embeddings: Any, **__: Any) -> tuple[Tensor, None]:
        heads = _falcons_heads(module, module.query_key_value(hidden))
        query, key, value = (each.transpose(1, 2) for each in heads)
        query, key = rotate(query, key, *position_embeddings)
        found = attend(module, query, key, value, Attention(scaling=module.inv_norm_factor))
        return module.dense(found.flatten(2)), None

    return forward


def _falcons_heads(module: Any, mixed: Tensor) -> tuple[Tensor, ...]:
    """Return queries, keys and values, (1, tokens, heads, dim) each, those that heads share once.

    Its own code indexes by lists, which are copied to a GPU: no graph of one could be captured.
    """
    heads = mixed.unflatten(-1, (-1, module.head_dim))
    if module.new_decoder_architecture:
        size = module.num_heads // module.num_kv_heads + 2  # of a group, with its key and value
        groups = heads.unflatten(2, (-1, size))
        return groups[..., :-2, :].flatten(2, 3), groups[..., -2, :], groups[..., -1, :]
    if module.multi_query:
        return heads[..., :-2, :], heads[..., -2:-1, :], heads[..., -1:, :]
    return heads.unflatten(2, (-1, 3)).unbind(3)


def _bloom(module: Any) -> Callable[..., Any] | None:
    """Return what stands for the forward of Bloom's attention; None for others."""
    build = _beside(module, "build_alibi_tensor")
    if build is None or not hasattr(module, "slow_but_exact") or not hasattr(module, "_reshape"):
        return None
    slopes = _blooms_slopes(build, module.num_heads, module.dense.weight.device)
    how = Attention(scaling=module.inv_norm_factor, slopes=slopes)

    def forward(hidden: Tensor, residual: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        query, key, value = module._reshape(module.query_key_value(hidden))
        found = attend(module, query, key, value, how)
        return module.dense(found.flatten(2)) + residual, None

    return forward


def _blooms_biases(module: Any) -> Callable[..., None] | None:
    """Return what stands for the method by which Bloom makes biases of a mask, which nobody reads then."""
    makes = hasattr(module, "build_alibi_tensor") and any(map(_bloom, module.modules()))
    return _no_biases if makes else None


def _no_biases(*_: Any, **__: Any) -> None:
    """Our attention has their slopes."""


def _mpt(module: Any) -> Callable[..., Any] | None:
    """Return what stands for the forward of MPT's attention; None for others."""
    build = _beside(module, "build_mpt_alibi_tensor")
    if build is None or not hasattr(module, "Wqkv"):
        return None
    slopes = _mpts_slopes(build, module.n_heads, module.out_proj.weight.device)
    how = Attention(scaling=module.softmax_scale, slopes=slopes)

    def forward(hidden: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        mixed = module.Wqkv(hidden)
        if module.clip_qkv:
            mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
        heads = (*mixed.shape[:2], 3, module.n_heads, module.head_dim)
        query, key, value = mixed.view(heads).permute(2, 0, 3, 1, 4)
        return module.out_proj(attend(module, query, key, value, how).flatten(2)), None

    return forward


@cache  # all layers have one tensor, and so what is made of it for a step
def _blooms_slopes(build: Callable[..., Tensor], heads: int, device: torch.device) -> Tensor:
    return build(torch.ones(1, 2), heads, torch.float32)[:, 0, 1].to(device)  # of keys at positions 0 and 1


@cache
def _mpts_slopes(build: Callable[..., Tensor], heads: int, device: torch.device) -> Tensor:
    return -build(heads, 2)[:, 0, 0].to(device)  # of the key before the newest, and of that


def _beside(module: nn.Module, name: str) -> Callable[..., Any] | None:
    """Return a function beside a module's own code; None: there is none of that name."""
    return getattr(inspect.getmodule(type(module)), name, None)


_STAND_INS = (
    ("_attn", _method),
    ("forward", _falcon),
    ("forward", _bloom),
    ("build_alibi_tensor", _blooms_biases),
    ("forward", _mpt),
)
