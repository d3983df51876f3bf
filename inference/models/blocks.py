"""What a layer has behind what mixes its tokens: an MLP, a mixture of experts, both, or nothing."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from inference.models.joined import Linears, is_linear, linears_in
from inference.models.norms import is_norm
from inference.models.other_shape import OtherShape
from inference.models.quantised_experts import is_mixture

_BOTH = 2  # a mixture, and an MLP


class MixtureBesideMlp(nn.Module):
    """A mixture and an MLP of one layer that read the same, and are added up: as if they were one module."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of what both give."""
        first, second = (_whole(module(x)) for module in (self.first, self.second))
        return first + second


def find_block(layer: nn.Module, mixer: nn.Module | None) -> nn.Module | None:
    """Return what a layer has behind its mixer; itself, if an MLP's two linears are in it; None: nothing.

    `mixer`: what mixes its tokens; None: nothing does. Raises OtherShape.
    """
    mlp = getattr(layer, "mlp", None)
    if isinstance(mlp, nn.Module) and mlp is not mixer:
        return mlp
    others = [
        (name, module)
        for name, module in layer.named_children()
        if (mixer is None or mixer not in module.modules())
        and not name.endswith("norm")
        and not is_norm(module)
        and (any(True for _ in module.parameters()) or any(map(is_linear, module.modules())))  # of few bits
    ]
    if not others and mixer is not None:
        return None
    if len(others) == 1:
        return others[0][1]
    if others and [name for name, _ in others] == [name for name, _ in linears_in(layer)]:
        return layer
    if len(others) == _BOTH and sum(_has_experts(module) for _, module in others) == 1:
        return MixtureBesideMlp(*(module for _, module in others))
    raise OtherShape("it has no module `mlp`")


def parts_of(block: nn.Module | None) -> tuple[nn.Module, ...]:
    """Return the modules in a layer that a block stands for."""
    if block is None:
        return ()
    return (block.first, block.second) if isinstance(block, MixtureBesideMlp) else (block,)


def _has_experts(module: nn.Module) -> bool:
    return any(map(is_mixture, module.modules()))


def _whole(result: Any) -> Tensor:
    tensor: Tensor = result[0] if isinstance(result, tuple) else result
    return tensor


def refuse_others(layer: nn.Module, modules: list[nn.Module], linears: list[Linears | None]) -> None:
    """Raise OtherShape if the layer has parameters that no part of it accounts for."""
    known = {id(each.parent.get_submodule(name)) for each in linears if each for name in each.names}
    known |= {id(each) for each in modules}
    for name, module in layer.named_modules():
        if id(module) in known or name.endswith("norm"):
            continue
        if next(module.parameters(recurse=False), None) is not None:
            raise OtherShape(f"it has a module `{name or type(layer).__name__}`")
