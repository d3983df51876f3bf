"""Multi-head latent attention over latents (DeepSeek-V2, arXiv:2405.04434, section 2.1).

Such a module makes the keys and values of all its heads of one latent for each token: of head h the key is
[Wk_h latent, rotated], the value Wv_h latent, and `rotated` is the same for all. As a score is
query_h . Wk_h latent = (Wk_h^T query_h) . latent, and a weighted sum of Wv_h latent is Wv_h times that of
latents, all heads can attend to one key [latent, rotated], whose first numbers are its value: that is all the
cache keeps.

What changes in the model's code is one method, which makes keys and values of latents (`expand_kv`): it gives
the latents themselves, and what is registered as attention multiplies its queries and results by `kv_b_proj`.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.models.quantised import LINEARS
from inference.models.weights import NarrowLinear
from inference.shortage import is_shortage

EXPANDS = "expand_kv"  # the method
LINEAR = "kv_b_proj"  # that it multiplies by
_LATENT = "parley_latent"  # the attribute of a module that attends to latents, where ours attends
_NEAR = 1e-4  # of the greatest number, in float32
_TOKENS = 3  # that it is seen to expand


class HeadProducts(Protocol):
    """Products with each head's part of `kv_b_proj`."""

    def absorb(self, query: Tensor) -> Tensor:
        """Return [Wk_h^T nope_h, rotated_h] of queries [nope_h, rotated_h], (tokens, heads, n) each."""

    def expand(self, found: Tensor) -> Tensor:
        """Return Wv_h found_h, (tokens, heads, value), of (tokens, heads, rank)."""


class Latent:
    """How one attention module makes keys and values of latents, and what stands for that."""

    def __init__(self, module: nn.Module, nope: int, value: int) -> None:
        """`nope`: of a head's key, the numbers that are made of the latent; `value`: a value's."""
        linear: nn.Linear = getattr(module, LINEAR)
        self._module = module
        self.nope = nope
        self.value = value
        self.rank = linear.in_features
        self.heads = linear.out_features // (nope + value)

    @property
    def module(self) -> nn.Module:
        """Return the module that attends."""
        return self._module

    @property
    def linear(self) -> nn.Module:
        """Return what multiplies latents, or stands for it."""
        linear: nn.Module = getattr(self._module, LINEAR)
        return linear

    def absorb(self, query: Tensor) -> Tensor:
        """Return the queries of latents, (1, heads, tokens, rank + rotated), of the module's own."""
        return self._products().absorb(query[0].transpose(0, 1)).transpose(0, 1)[None]

    def expand(self, found: Tensor) -> Tensor:
        """Return each head's sum of values, (1, tokens, heads, value), of its sum of latents."""
        return self._products().expand(found[0])[None]

    def keys_and_values(self, latent: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
        """Return one head's keys and values, (1, 1, tokens, n): what stands for the module's own method."""
        key = torch.cat((latent, rotated), -1)
        return key, key[..., : self.rank]

    def parts(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return views of a weight of kv_b_proj: Wk (heads, nope, rank) and Wv (heads, value, rank)."""
        heads = weight.view(self.heads, self.nope + self.value, self.rank)
        return heads[:, : self.nope], heads[:, self.nope :]

    def _products(self) -> HeadProducts:
        linear: Any = self.linear
        return linear if hasattr(linear, "absorb") else _TorchProducts(self, weight_of(linear))


class _TorchProducts:
    def __init__(self, latent: Latent, weight: Tensor) -> None:
        self._keys, self._values = latent.parts(weight)

    def absorb(self, query: Tensor) -> Tensor:
        nope, rotated = query.transpose(0, 1).split(
            (self._keys.shape[1], query.shape[2] - self._keys.shape[1]), -1
        )
        return torch.cat((torch.matmul(nope, self._keys.to(query.dtype)), rotated), -1).transpose(0, 1)

    def expand(self, found: Tensor) -> Tensor:
        values = self._values.to(found.dtype).transpose(1, 2)
        return torch.matmul(found.transpose(0, 1), values).transpose(0, 1)


def weight_of(linear: nn.Module) -> Tensor:
    """Return a linear's weight (n, k), whatever it is kept in."""
    weight = linear.get_weight() if isinstance(linear, NarrowLinear) else linear.get_parameter("weight")
    return weight.detach()


def find_latents(model: PreTrainedModel, expanded: Collection[str] = ()) -> list[Latent]:
    """Have a model's latent attention be over latents wherever ours attends, and return how.

    Not that of modules in which a linear of the paths `expanded` makes keys and values: adapters add to it.
    """
    found = []
    for path, module in model.named_modules():
        latent = None if f"{path}.{LINEAR}" in expanded else _latent(module)
        if latent is not None:
            vars(module)[_LATENT] = latent
            found.append(latent)
    return found


def forget_latents(latents: Collection[Latent]) -> None:
    """Have each module keep every head's keys and values again; its attention must be its own by now."""
    for latent in latents:
        vars(latent.module).pop(_LATENT, None)


def latent_of(module: nn.Module) -> Latent | None:
    """Return how a module attends to latents while ours stands for its method; None: it doesn't."""
    return vars(module).get(_LATENT) if EXPANDS in vars(module) else None


def registered_latent(module: nn.Module) -> Latent | None:
    """Return how a module attends to latents wherever ours attends; None: it doesn't."""
    return vars(module).get(_LATENT)


def stand_in(module: nn.Module) -> None:
    """Have a module whose attention is over latents give those, in place of keys and values."""
    latent: Latent | None = vars(module).get(_LATENT)
    if latent is not None:
        vars(module)[EXPANDS] = latent.keys_and_values


def stand_back(module: nn.Module) -> None:
    """Have its own method make keys and values again."""
    vars(module).pop(EXPANDS, None)


def _latent(module: Any) -> Latent | None:
    """Return how a module makes keys and values of latents, if that is what it was seen to do."""
    method: Any = getattr(module, EXPANDS, None)
    linear: Any = getattr(module, LINEAR, None)
    if not callable(method) or type(linear) not in LINEARS or linear.bias is not None:
        return None
    if len(inspect.signature(method).parameters) != 2:
        return None
    nope, value = (getattr(module, name, None) for name in ("qk_nope_head_dim", "v_head_dim"))
    if not isinstance(nope, int) or not isinstance(value, int) or linear.out_features % (nope + value):
        return None
    latent = Latent(module, nope, value)
    try:
        return latent if _expands(module, latent) else None
    except Exception as error:  # any model's code may take anything
        if is_shortage(error):
            raise
        return None


@torch.inference_mode()
def _expands(module: Any, latent: Latent) -> bool:
    """Return whether a module's method makes of latents what is said above."""
    weight, generator = weight_of(latent.linear), torch.Generator().manual_seed(0)
    dtype = torch.float32 if type(latent.linear) is NarrowLinear else weight.dtype
    given, rotated = (
        torch.randn(1, 1, _TOKENS, size, generator=generator).to(weight.device, dtype)
        for size in (latent.rank, module.qk_rope_head_dim)
    )
    keys, values = getattr(module, EXPANDS)(given, rotated)
    wk, wv = (part.float().transpose(1, 2) for part in latent.parts(weight))
    expected = torch.cat((given[0].float() @ wk, rotated[0].float().expand(latent.heads, -1, -1)), -1)
    return _near(keys, expected[None]) and _near(values, (given[0].float() @ wv)[None])


def _near(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape:
        return False
    off = max(_NEAR, 8 * torch.finfo(found.dtype).eps)  # of 16 bits, what rounding the results makes
    return bool((found.float() - expected).abs().max() <= off * expected.abs().max())
