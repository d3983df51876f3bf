"""All layers of a model, found one after the other, which have to be alike in some ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from inference.cpu.rebuilt import Builder, Layer
from inference.kernels.native_layers import StackShape
from inference.models.anatomy import Variant
from inference.models.layers import OtherShape


def find_layers(builders: list[Builder]) -> Iterator[Layer]:
    """Yield the layers; raise OtherShape at the first that isn't of the shape, or not of the others'."""
    shapes: dict[tuple[bool, bool], StackShape] = {}  # of those that attend or don't, and are rotated or not
    found: dict[bool, Variant] = {}
    activations: set[str] = set()
    heads: set[tuple[int, int]] = set()  # of keys, and their sizes
    for builder in builders:
        layer, variant = builder.find(found.get(builder.attends))
        for rotated in (False, True) if layer.rope is not None else (False,):
            common = _common(layer.shape, rotated=rotated)
            if shapes.setdefault((builder.attends, rotated), common) != common:
                raise OtherShape("its layers are of several shapes")
        found[builder.attends] = variant
        if builder.attends:
            heads.add((layer.shape.kv_heads, layer.shape.head_dim))
        if layer.parts.gate_up is not None:
            activations.add(layer.parts.activation)
        if layer.parts.per_layer is not None:
            activations.add(layer.parts.per_layer.activation)
        yield layer
    if len({(each.eps, each.centred, each.residual) for each in shapes.values()}) > 1:
        raise OtherShape("its layers that keep a state are otherwise than those that attend")
    if any(each.divided for each in builders) and len(heads) > 1:
        raise OtherShape("its layers' heads differ, and can't be divided among processes")
    if len(activations) > 1:
        raise OtherShape("its MLPs have several activations")


def _common(shape: StackShape, *, rotated: bool) -> StackShape:
    """Return what layers have in common: not MLPs, keys, sizes of heads and scalings; some aren't rotated."""
    common = replace(shape, inner=0, activation="silu", scaling=1.0, kv_heads=0, head_dim=0, rotary_dim=None)
    return common if rotated else replace(common, interleaved=False)
