"""Norms of a model's layers, recognised by trying them in float32: root-mean-square norms, and layer norms.

A layer norm (Ba et al. 2016) subtracts the mean first, and may add a bias: it is centred.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inference.models.other_shape import OtherShape

_EPSILONS = ("variance_epsilon", "eps", "epsilon")  # what modules call theirs
_USUAL = 1e-5  # of those that don't say
_NEAR = {"rtol": 1e-5, "atol": 1e-6}


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """What a norm computes."""

    weights: Tensor  # (n,): what it multiplies with; if it is centred (2, n): that, and what it then adds
    eps: float
    centred: bool


@dataclass(frozen=True, slots=True, eq=False)
class Norms:
    """What a layer's norms multiply with, and add, as `Norm` has it; None: there is no such norm."""

    eps: float
    before_attention: Tensor | None
    after_attention: Tensor | None
    before_mlp: Tensor | None
    after_mlp: Tensor | None
    query: Tensor | None  # of each head, or of all heads together; centred of each head, one's or all's
    key: Tensor | None
    centred: bool = False
    value: Tensor | None = None  # of each head, root-mean-square
    attended: Tensor | None = None  # of what attention's second linear reads, of all heads together
    inner: Tensor | None = None  # of what an MLP's second linear reads


def is_norm(module: nn.Module) -> bool:
    """Return whether a module calls itself one: some have no parameters by which to tell."""
    return "norm" in type(module).__name__.lower()


def norm_weight(module: nn.Module) -> tuple[Tensor, float]:
    """Return what a root-mean-square norm multiplies with and its epsilon, found by trying it in float32.

    The former is float32, on the module's device. Raises OtherShape if it is another norm.
    """
    weight, eps = getattr(module, "weight", None), _epsilon(module)
    if not isinstance(weight, Tensor) or weight.dim() != 1 or eps is None:
        raise _no_rms(module)
    x = _rows(len(weight))
    found = _given(module, x)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    own = weight.detach().float().cpu()
    for factor in (own, 1 + own):
        if found is not None and torch.allclose(found, normed * factor, **_NEAR):
            return factor.to(weight.device).contiguous(), eps
    raise _no_rms(module)


def read_norm(module: nn.Module, size: int, heads: int = 1) -> Norm:
    """Return what a norm of `size` numbers computes; raise OtherShape if it is none that is known.

    With several `heads` it may be given rows of them, and have weights for each.
    """
    try:
        return Norm(*norm_weight(module), centred=False)
    except OtherShape:
        pass
    bare = bare_norm(module, size)
    if bare is not None:
        return bare
    for x, turned in _tried(size, heads):
        found = _given(module, x)
        if found is None:
            continue
        for eps in dict.fromkeys((_epsilon(module) or _USUAL, _USUAL)):
            centred = x - x.mean(-1, keepdim=True)
            normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
            for weight, bias in _affines(module, size, heads):
                shape = (heads, 1, size) if turned else (heads, size)
                each = [part if part.numel() == size else part.view(shape) for part in (weight, bias)]
                if torch.allclose(found, normed * each[0] + each[1], **_NEAR):
                    return Norm(torch.stack([weight, bias]).contiguous(), eps, centred=True)
    raise OtherShape(f"its norm `{type(module).__name__}` is no root-mean-square norm, and no layer norm")


def bare_norm(module: nn.Module, size: int) -> Norm | None:
    """Return a root-mean-square norm that multiplies with nothing, if a module is one."""
    eps, x = _epsilon(module), _rows(size)
    found = None if eps is None or any(True for _ in module.parameters()) else _given(module, x)
    if found is None or eps is None:
        return None
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return Norm(torch.ones(size), eps, centred=False) if torch.allclose(found, normed, **_NEAR) else None


def _tried(size: int, heads: int) -> Iterator[tuple[Tensor, bool]]:
    """Yield what a norm may take, and whether heads come before rows in it."""
    x = _rows(size)
    several = torch.stack([x.roll(head, -1) for head in range(heads)])[None]  # (1, heads, rows, size)
    yield (x if heads == 1 else several.transpose(1, 2).contiguous()), False
    yield several, True


def _affines(module: nn.Module, size: int, heads: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what a module may multiply with and add then, (size,) or (heads * size,) each."""
    own: dict[str, list[Tensor]] = {"weight": [], "bias": []}
    for path, parameter in module.named_parameters():
        own.setdefault(path.rpartition(".")[2], []).append(parameter.detach().float().cpu().flatten())
    weight, bias = (torch.cat(each) if each else None for each in (own["weight"], own["bias"]))
    if any(each is not None and each.numel() not in (size, heads * size) for each in (weight, bias)):
        return
    if weight is None:
        weight = torch.ones(size if bias is None else bias.numel())
    bias = torch.zeros_like(weight) if bias is None else bias
    if bias.shape == weight.shape:
        yield weight, bias
        yield 1 + weight, bias


def _epsilon(module: nn.Module) -> float | None:
    found = (getattr(each, name, None) for each in module.modules() for name in _EPSILONS)
    return next((each for each in found if isinstance(each, float)), None)


def _rows(size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, size, generator=generator) * torch.tensor([[1.0], [30.0], [0.01]])


def _given(module: nn.Module, x: Tensor) -> Tensor | None:
    """Return what a module makes of numbers, as many; None if it makes something else, or nothing."""
    try:
        with torch.inference_mode():
            found = _plain(module)(x)
    except Exception:  # a module that is no norm may want anything
        return None
    return found if isinstance(found, Tensor) and found.shape == x.shape else None


def _plain(module: nn.Module) -> nn.Module:
    """Return a norm in float32 on the CPU: itself, or a copy."""
    if all(each.device.type == "cpu" and each.dtype == torch.float32 for each in module.parameters()):
        return module
    return deepcopy(module).to("cpu", torch.float32)


def _no_rms(module: nn.Module) -> OtherShape:
    return OtherShape(f"its norm `{type(module).__name__}` is no root-mean-square norm")
