"""Whether an MLP's second linear is given all of what its first ones give, however great that is.

Some models clip it (Step 3.7, GLM-5), which a proof needn't come to see: few numbers are that great. So the
linears are stood in for, the first by great numbers and the second by what looks at what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from inference.models.joined import Linears
from inference.models.norms import is_norm
from inference.models.other_shape import OtherShape

_GREAT = 128.0  # numbers that are cut off are so long before, and 16 bits hold its square
_NEAR = 1e-2  # of a number, as 16 bits round it


class _Gives(nn.Module):
    """Stands in for a linear."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.given: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.given = x
        return x.new_full((*x.shape[:-1], self.outputs), _GREAT)


@torch.inference_mode()
def check_uncut(mlp: nn.Module, up: Linears, down: Linears, activation: Callable[[Tensor], Tensor]) -> None:
    """Raise OtherShape if an MLP does more between its linears than is known of it. Nothing is changed.

    Where there are norms between, or its code wants more than its input, nothing is seen and nothing said.
    """
    if any(map(is_norm, mlp.children())):
        return
    great, x = torch.tensor(_GREAT), torch.zeros(1, 1, up.inputs)
    gated = sum(up.sizes) == 2 * down.inputs
    expected = activation(great) * (great if gated else 1.0)
    with _stood_in(up), _stood_in(down) as (last, *_):
        try:
            mlp(x)
        except Exception:  # what else it wants, who knows
            return
    if last.given is not None and not torch.allclose(last.given, expected, rtol=_NEAR):
        raise OtherShape("what its MLP computes between its linears is clipped, or multiplied")


@contextmanager
def _stood_in(linears: Linears) -> Iterator[list[_Gives]]:
    own = [linears.parent.get_submodule(name) for name in linears.names]
    stands = [_Gives(size) for size in linears.sizes]
    try:
        for name, stand in zip(linears.names, stands, strict=True):
            linears.parent.set_submodule(name, stand)
        yield stands
    finally:
        for name, module in zip(linears.names, own, strict=True):
            linears.parent.set_submodule(name, module)
