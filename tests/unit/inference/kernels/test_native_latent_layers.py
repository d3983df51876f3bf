"""Layers of a stack whose heads attend to latents: right by float64, and the same bits in any batch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import silu

from inference.kernels.native import Library, PackedLinear, WeightKind
from inference.kernels.native_attention import NativeCacheLayer
from inference.kernels.native_heads import PackedHeads
from inference.kernels.native_latent_layers import LatentWeights, NativeLatentLayer
from inference.kernels.native_layers import LayerWeights, NativeStack, StackShape
from inference.kernels.reference import Attention
from inference.models.paged import LayerShape
from tests.unit.inference.kernels.test_native_layers import run, sequence
from tests.unit.inference.paged_attention import (
    ISAS,
    LIBRARIES,
    Tokens,
    built,
    every_library,
    expected,
    page_count,
    steps_of,
    whole,
)
from tests.unit.inference.paper_layers import rotary

torch.set_num_threads(1)
pytestmark = built
HIDDEN, INNER, EPS, NORM_EPS, SCALING = 48, 40, 1e-5, 1e-6, 0.2
KINDS = [WeightKind.FLOAT32, WeightKind.BFLOAT16, WeightKind.CODED]


@dataclass(frozen=True)
class Form:
    """What such a layer's sizes are."""

    heads: int
    nope: int
    rotated: int
    rank: int
    value: int
    lowered: int | None = None  # the numbers that queries are made of; None: of those that the layer is given
    interleaved: bool = False
    rotates: bool = True

    @property
    def shape(self) -> StackShape:
        return StackShape(
            hidden=HIDDEN,
            heads=self.heads,
            kv_heads=1,
            head_dim=self.rank + self.rotated,
            inner=INNER,
            eps=EPS,
            scaling=SCALING,
            rotary_dim=self.rotated,
            interleaved=self.interleaved,
        )


FORMS = {
    "DeepSeek V2 Lite": Form(4, 32, 16, 64, 32, interleaved=True),
    "DeepSeek V3": Form(4, 32, 16, 64, 32, lowered=40, interleaved=True),
    "MiniCPM 3": Form(5, 16, 8, 32, 16, lowered=24),
    "odd sizes": Form(3, 9, 6, 17, 11, lowered=21),
    "no rotation": Form(4, 16, 8, 32, 16, rotates=False),
}


class Paper:
    """A layer as the paper has it, with every head's keys and values, and as C has it."""

    def __init__(self, form: Form, seed: int = 0) -> None:
        self.form = form
        generator = torch.Generator().manual_seed(seed)

        def drawn(*sizes: int) -> Tensor:
            return (torch.randn(*sizes, generator=generator) * sizes[-1] ** -0.5).bfloat16().float()

        dim, rank = form.nope + form.rotated, form.rank
        first = form.heads * dim if form.lowered is None else form.lowered
        self.into, self.out = (
            drawn(first + rank + form.rotated, HIDDEN),
            drawn(HIDDEN, form.heads * form.value),
        )
        self.queries = None if form.lowered is None else 2 * drawn(form.heads * dim, form.lowered)
        self.keys, self.values = drawn(form.heads, form.nope, rank), drawn(form.heads, form.value, rank)
        self.gate_up, self.down = drawn(2 * INNER, HIDDEN), drawn(HIDDEN, INNER)
        self.norms = [1 + drawn(size) for size in (HIDDEN, HIDDEN, rank, first)]

    def native(
        self,
        library: Library,
        blocks: int,
        kind: WeightKind = WeightKind.FLOAT32,
        dtype: torch.dtype = torch.float32,
    ) -> LayerWeights:
        """Return the layer in C, over a cache that holds nothing but NaN."""

        def packed(weight: Tensor) -> PackedLinear:
            return PackedLinear.pack(library, weight.contiguous(), None, kind)

        form, made = self.form, self.queries
        cache = NativeCacheLayer(
            library, LayerShape(1, form.rank + form.rotated, form.rank, True), blocks, dtype
        )
        cache.keys.fill_(torch.nan)
        latent = LatentWeights(
            queries=None if made is None else packed(made),
            keys=PackedHeads([packed(each.T) for each in self.keys]),
            values=PackedHeads([packed(each) for each in self.values]),
            latent_norm=self.norms[2],
            latent_eps=NORM_EPS,
            rotated=form.rotated,
            query_norm=None if made is None else self.norms[3],
            query_eps=NORM_EPS,
        )
        return LayerWeights(
            qkv=packed(self.into),
            out=packed(self.out),
            gate_up=packed(self.gate_up),
            down=packed(self.down),
            cache=cache,
            latent=NativeLatentLayer(latent),
            input_norm=self.norms[0],
            mid_norm=self.norms[1],
            rotary=0 if form.rotates else None,
        )

    def textbook(self, x: Tensor) -> Tensor:
        """Return what the layer makes of a whole sequence (tokens, hidden), in float64."""
        form, n = self.form, len(x)
        x = x.double()
        given = _norm(x, self.norms[0], EPS) @ self.into.double().T
        first, latent, rotated = given.split(
            [given.shape[1] - form.rank - form.rotated, form.rank, form.rotated], 1
        )
        if self.queries is not None:
            first = _norm(first, self.norms[3], NORM_EPS) @ self.queries.double().T
        query = first.view(n, form.heads, form.nope + form.rotated)
        latent = _norm(latent, self.norms[2], NORM_EPS)
        query = torch.cat([query[..., : form.nope], self._turn(query[..., form.nope :])], -1)
        key = torch.einsum("nr,hkr->nhk", latent, self.keys.double())
        key = torch.cat([key, self._turn(rotated[:, None]).expand(-1, form.heads, -1)], -1)
        value = torch.einsum("nr,hvr->nhv", latent, self.values.double())
        x = (
            x
            + expected(Tokens(query, key, value), Attention(scaling=SCALING)).flatten(1) @ self.out.double().T
        )
        gates, ups = (_norm(x, self.norms[1], EPS) @ self.gate_up.double().T).chunk(2, -1)
        return x + (silu(gates) * ups) @ self.down.double().T

    def _turn(self, heads: Tensor) -> Tensor:
        if not self.form.rotates:
            return heads
        cos, sin = (
            each.double()[:, None]
            for each in rotary(torch.arange(len(heads)), self.form.rotated, self.form.interleaved)
        )
        if self.form.interleaved:
            across = torch.stack([-heads[..., 1::2], heads[..., 0::2]], -1).flatten(-2)
        else:
            front, back = heads.chunk(2, -1)
            across = torch.cat([-back, front], -1)
        return heads * cos + across * sin


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@every_library
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("length", [5, 97, 300], ids=["few rows", "two tiles", "many rows"])
def test_it_agrees_with_float64(library: Library, form: Form, length: int) -> None:
    papers, x = [Paper(form, seed) for seed in range(2)], sequence(length)
    layers = [each.native(library, page_count([length], 1)) for each in papers]
    (found,) = run(NativeStack(library, layers, form.shape), [x], whole([length]))
    wanted = papers[1].textbook(papers[0].textbook(x).float())
    assert (found - wanted).abs().max() <= 2e-5 * wanted.abs().max()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_batches_pieces_pages_and_threads_change_no_bit(data: st.DataObject) -> None:
    paper, kind = Paper(FORMS[data.draw(st.sampled_from(list(FORMS)))]), data.draw(st.sampled_from(KINDS))
    lengths = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    inputs = [sequence(length, seed=seed) for seed, length in enumerate(lengths)]
    isa = data.draw(st.sampled_from(ISAS))
    library = LIBRARIES[isa, data.draw(st.sampled_from([1, 3]))]
    if kind is WeightKind.CODED and not library.compresses:
        return

    def stack(of: Library, lengths: list[int]) -> NativeStack:
        return NativeStack(of, [paper.native(of, page_count(lengths, 1), kind, dtype)], paper.form.shape)

    steps, seed = data.draw(steps_of(lengths)), data.draw(st.integers(0, 9))
    found = run(stack(library, lengths), inputs, steps, seed=seed)
    for x, rows in zip(inputs, found, strict=True):
        (alone,) = run(stack(LIBRARIES[isa, 1], [len(x)]), [x], whole([len(x)]))
        assert torch.equal(alone, rows)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("latent_norm", torch.ones(7), "a weight for each number"),
        ("query_norm", None, "what queries are made of is normalised"),
        ("rotated", 5, "a query for each head"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(field: str, value: object, says: str) -> None:
    layer = Paper(FORMS["MiniCPM 3"]).native(LIBRARIES[ISAS[0], 1], 1).latent
    assert layer is not None
    weights = layer.weights
    named = {name: getattr(weights, name) for name in LatentWeights.__slots__}
    with pytest.raises(AssertionError, match=says):
        NativeLatentLayer(LatentWeights(**named | {field: value}))
