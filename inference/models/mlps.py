"""A layer's MLP: its linears, found by names or by their sizes, and what is computed between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from inference.models.joined import Linears, linears_in, named_linears
from inference.models.other_shape import OtherShape
from inference.models.uncut import check_uncut
from inference.models.xielu import Xielu, find_xielu

_FAR = [-1000.0, -20.0, 20.0, 1000.0]  # some functions are clipped
GATE_UP = (("gate_proj", "up_proj"), ("gate_up_proj",), ("w1", "w3"), ("input_linear",))
_DOWN = (("down_proj",), ("w2",), ("output_linear",))


def _squared_relu(x: Tensor) -> Tensor:
    return relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "gelu": gelu,
    "squared_relu": _squared_relu,
    "relu": relu,
}


@dataclass(frozen=True, slots=True, eq=False)
class Mlp:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) where `up` has no gates."""

    up: Linears
    down: Linears
    activation: str
    inner: int  # what `down` reads
    numbers: Xielu | None = None  # of an activation that has some of its own
    learned: nn.Module | None = None  # and what has them

    @property
    def own(self) -> tuple[nn.Module, ...]:
        """Return the modules that have parameters, beside its linears."""
        return () if self.learned is None else (self.learned,)


def read_mlp(mlp: nn.Module) -> Mlp:
    """Return an MLP's parts; raise OtherShape."""
    try:
        up, down = gated_mlp(mlp)
        inner = sum(up.sizes) // 2
    except OtherShape:
        found = list(linears_in(mlp))
        if len(found) != 2 or found[0][1] != found[1][1][::-1]:
            raise
        (first, (inner, _)), (second, _) = found
        up, down = Linears(mlp, (first,)), Linears(mlp, (second,))
    try:
        activation = find_activation(mlp)
    except OtherShape:
        learned = _learned(mlp) if sum(up.sizes) == inner else None
        if learned is None:
            raise
        return Mlp(up, down, "xielu", inner, *learned)
    check_uncut(mlp, up, down, ACTIVATIONS[activation])
    return Mlp(up, down, activation, inner)


def _learned(mlp: nn.Module) -> tuple[Xielu, nn.Module] | None:
    """Return an activation whose numbers are learned, and its module; None: it is none that is known."""
    for module in mlp.children():
        try:
            with torch.inference_mode():
                found = find_xielu(module, _tried())
        except Exception:  # what it is for, who knows
            continue
        if found is not None:
            return found, module
    return None


def gated_mlp(mlp: nn.Module) -> tuple[Linears, Linears]:
    """Return the linears of a gated MLP; raise OtherShape."""
    return named_linears(mlp, GATE_UP), named_linears(mlp, _DOWN)


def find_activation(mlp: nn.Module) -> str:
    """Return the name of a module's activation, by what it computes; raise OtherShape."""
    x = _tried()
    for function in _functions(mlp):
        try:
            with torch.inference_mode():
                found = function(x)
        except Exception:  # what it is for, who knows
            continue
        if not isinstance(found, Tensor) or found.shape != x.shape:
            continue
        for name, known in ACTIVATIONS.items():
            if torch.allclose(found, known(x), rtol=1e-5, atol=1e-6):
                return name
    if all(hasattr(mlp, name) for name in ("w1", "w2", "w3")):  # its code names a function: as in LFM2
        return "silu"
    raise OtherShape(f"the activation of `{type(mlp).__name__}` is none of {', '.join(ACTIVATIONS)}")


def _tried() -> Tensor:
    return torch.cat([torch.linspace(-8, 8, 65), torch.tensor(_FAR)])


def _functions(mlp: nn.Module) -> Iterator[Callable[[Tensor], Any]]:
    """Yield what of a module may be an activation: what it calls so first, then all without parameters."""
    for name in ("act_fn", "activation_fn"):
        if callable(function := getattr(mlp, name, None)):
            yield function
    yield from (each for each in mlp.children() if next(each.parameters(), None) is None)
    yield from (each for each in vars(mlp).values() if callable(each))
