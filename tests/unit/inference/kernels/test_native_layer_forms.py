"""Forms of layers that few families have: right by a float64 oracle, and the same bits in any batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.kernels.choosing import Choosing
from inference.kernels.native import Library, WeightKind
from inference.kernels.native_layers import StackShape
from tests.unit.inference.kernels.test_native_layers import (
    CENTRED,
    PARTIAL,
    SHAPE,
    layers,
    run,
    sequence,
)
from tests.unit.inference.paged_attention import (
    ISAS,
    LIBRARIES,
    built,
    every_library,
    page_count,
    steps_of,
    whole,
)
from tests.unit.inference.paper_layers import (
    LAYER_KINDS,
    NORMS,
    PaperLayer,
    forward,
    native,
    random_layer,
    rotary,
    with_gates_behind,
    with_head_norms,
    with_mixture,
    with_norms_between,
)
from tests.unit.inference.paper_mixtures import random_mixture

torch.set_num_threads(1)
pytestmark = built
SPARSE = Choosing(scoring="sparsemixer", chosen=2, margin=0.4)
XIELU, SQUARED = (replace(SHAPE, activation=name) for name in ("xielu", "squared_relu"))
ODD = replace(XIELU, hidden=50, inner=75, head_dim=10, heads=5, kv_heads=1)  # nothing ends with a panel
GROWING = 1 + 0.3 * torch.log1p(torch.arange(400) // 16)


def curved(shape: StackShape) -> list[PaperLayer]:
    """Return layers of which each has another xIELU."""
    papers = [random_layer(shape, NORMS[:2], seed, gates=False) for seed in range(2)]
    return [replace(each, xielu=(0.9 - at, 0.4, 1.3, -1e-6)) for at, each in enumerate(papers)]


def late(shape: StackShape, together: bool = False) -> list[PaperLayer]:
    papers = [with_head_norms(each, shape, together) for each in layers(shape)]
    return [replace(each, late_norms=True) for each in papers]


STACKS: dict[str, tuple[StackShape, list[PaperLayer]]] = {
    "HunYuan": (PARTIAL, late(PARTIAL)),
    "centred norms behind the rotation": (CENTRED, late(CENTRED, together=True)),
    "one such norm behind the rotation": (CENTRED, late(CENTRED)),
    "Ministral 3": (SHAPE, [replace(layers(SHAPE)[0], query_scales=GROWING), layers(SHAPE)[1]]),
    "Apertus": (XIELU, curved(XIELU)),
    "odd xIELU": (ODD, curved(ODD)),
    "xIELU beside experts": (
        XIELU,
        [replace(each, mixture=random_mixture(48, SPARSE, seed=i)) for i, each in enumerate(curved(XIELU))],
    ),
    "AFMoE": (SHAPE, [with_gates_behind(each, SHAPE) for each in layers(SHAPE, NORMS)]),
    "BitNet": (SQUARED, [with_norms_between(each, SQUARED) for each in layers(SQUARED)]),
    "Phi 3.5 MoE": (
        CENTRED,
        [with_mixture(each, random_mixture(48, SPARSE, seed=i)) for i, each in enumerate(layers(CENTRED))],
    ),
}


@every_library
@pytest.mark.parametrize(("shape", "papers"), STACKS.values(), ids=STACKS.keys())
@pytest.mark.parametrize("length", [5, 97, 400], ids=["few rows", "two tiles", "many rows"])
def test_it_agrees_with_float64(
    library: Library, shape: StackShape, papers: list[PaperLayer], length: int
) -> None:
    x = sequence(length, shape.hidden)
    stack = native(library, papers, shape, page_count([length], 1), WeightKind.FLOAT32)
    (found,) = run(stack, [x], whole([len(x)]))
    size = shape.head_dim if shape.rotary_dim is None else shape.rotary_dim
    wanted = forward(papers, shape, x, [rotary(torch.arange(length), size)])
    assert (found - wanted).abs().max() <= 2e-5 * wanted.abs().max()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_batches_pieces_pages_and_threads_change_no_bit(data: st.DataObject) -> None:
    shape, papers = STACKS[data.draw(st.sampled_from(list(STACKS)))]
    kind = data.draw(st.sampled_from(LAYER_KINDS))
    lengths = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    kv_dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    inputs = [sequence(length, shape.hidden, seed) for seed, length in enumerate(lengths)]
    isa = data.draw(st.sampled_from(ISAS))
    library = LIBRARIES[isa, data.draw(st.sampled_from([1, 3]))]
    together = native(library, papers, shape, page_count(lengths, 1), kind, kv_dtype)
    found = run(together, inputs, data.draw(steps_of(lengths)), seed=data.draw(st.integers(0, 9)))
    for x, rows in zip(inputs, found, strict=True):
        alone = native(LIBRARIES[isa, 1], papers, shape, page_count([len(x)], 1), kind, kv_dtype)
        assert torch.equal(run(alone, [x], whole([len(x)]))[0], rows)


@every_library
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_xielu_is_right_near_its_border_and_far_from_it(library: Library, data: st.DataObject) -> None:
    """An MLP that gives each number back as the activation makes it."""
    above, below = (data.draw(st.floats(0.0, 4.0)) for _ in range(2))
    linear, least = data.draw(st.floats(-1.0, 1.0)), -data.draw(st.floats(0.0, 1e-3))
    numbers = (above, linear, below, least)
    shape = replace(XIELU, hidden=16, inner=16)
    plain = random_layer(shape, (), gates=False)
    identity = {
        "gate_up": torch.eye(16),
        "down": torch.eye(16),
        "out": torch.zeros_like(plain.linears["out"]),
    }
    paper = replace(plain, linears=plain.linears | identity, xielu=numbers)
    size = st.floats(1e-7, 50.0)
    values = data.draw(st.lists(st.one_of(size, size.map(lambda x: -x)), min_size=16, max_size=16))
    x = torch.tensor([values])
    stack = native(library, [paper], shape, page_count([1], 1), WeightKind.FLOAT32)
    (found,) = run(stack, [x], whole([1]))
    wanted = forward([paper], shape, x, [rotary(torch.arange(1), shape.head_dim)])
    assert ((found - wanted).abs() <= 2e-5 * (x.double().abs() + (wanted - x).abs())).all()


def test_a_position_without_a_scale_is_refused() -> None:
    _, papers = STACKS["Ministral 3"]
    stack = native(next(iter(LIBRARIES.values())), papers, SHAPE, page_count([401], 1), WeightKind.FLOAT32)
    with pytest.raises(AssertionError, match="scaled at each position"):
        run(stack, [sequence(401)], whole([401]))
