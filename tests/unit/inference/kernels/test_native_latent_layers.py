"""Layers of a stack whose heads attend to latents: right by float64, and the same bits in pieces."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402

from inference.kernels.native import Library, PackedLinear, WeightKind  # noqa: E402
from inference.kernels.native_attention import NativeCacheLayer, NativeStep  # noqa: E402
from inference.kernels.native_heads import PackedHeads  # noqa: E402
from inference.kernels.native_latent_layers import LatentWeights, NativeLatentLayer  # noqa: E402
from inference.kernels.native_layers import LayerWeights, NativeStack, StackShape  # noqa: E402
from inference.models.paged import LayerShape  # noqa: E402
from tests.unit.inference.paged_attention import built, every_library  # noqa: E402
from tests.unit.inference.recurrences import drawn  # noqa: E402

pytestmark = built
HIDDEN, INNER, TOKENS = 48, 40, 21
HEADS, NOPE, ROTATED, RANK, VALUE, LOWERED = 5, 19, 6, 37, 23, 29
EPS = 1e-6
every_form = pytest.mark.parametrize("lowered", [False, True])
every_kind = pytest.mark.parametrize("kind", [WeightKind.FLOAT32, WeightKind.INT8])
every_order = pytest.mark.parametrize("interleaved", [False, True])


def _tables(tokens: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(tokens)[:, None] * torch.tensor([1.0, 0.3, 0.05])
    return angles.cos(), angles.sin()


def _rotated(x: Tensor, interleaved: bool) -> Tensor:
    """Return (tokens, ..., ROTATED) rotated by its position, in float64."""
    cosines, sines = (each.double() for each in _tables(len(x)))
    if x.dim() == 3:
        cosines, sines = cosines[:, None], sines[:, None]
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    pair = (a * cosines - b * sines, b * cosines + a * sines)
    return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


class Paper:
    """A layer with norms of its own inputs, as the paper has it and as C has."""

    def __init__(
        self, library: Library, *, lowered: bool, interleaved: bool, kind: WeightKind = WeightKind.FLOAT32
    ) -> None:
        queries = HEADS * (NOPE + ROTATED)
        first = LOWERED if lowered else queries
        self.library, self.lowered, self.interleaved = library, lowered, interleaved
        self.into = drawn(first + RANK + ROTATED, HIDDEN, seed=1) / 7
        self.made = drawn(queries, LOWERED, seed=2) / 5
        self.keys, self.values = drawn(HEADS, NOPE, RANK, seed=3) / 4, drawn(HEADS, VALUE, RANK, seed=4) / 6
        self.query_norm, self.latent_norm = (1 + drawn(n, seed=n) / 4 for n in (LOWERED, RANK))
        self.out, self.gate_up = (
            drawn(HIDDEN, HEADS * VALUE, seed=5) / 9,
            drawn(2 * INNER, HIDDEN, seed=6) / 7,
        )
        self.down, self.input_norm = drawn(HIDDEN, INNER, seed=7) / 7, 1 + drawn(HIDDEN, seed=8) / 4

        def pack(weight: Tensor) -> PackedLinear:
            return PackedLinear.pack(library, weight.contiguous(), None, kind)

        self._latent = NativeLatentLayer(
            LatentWeights(
                queries=pack(self.made) if lowered else None,
                keys=PackedHeads([pack(each.T) for each in self.keys]),
                values=PackedHeads([pack(each) for each in self.values]),
                latent_norm=self.latent_norm,
                latent_eps=1e-3,
                rotated=ROTATED,
                query_norm=self.query_norm if lowered else None,
                query_eps=1e-2,
            )
        )
        linears = (self.into, self.out, self.gate_up, self.down)
        self._qkv, self._out, self._gate_up, self._down = map(pack, linears)
        self._shape = StackShape(
            hidden=HIDDEN,
            heads=HEADS,
            kv_heads=1,
            head_dim=RANK + ROTATED,
            inner=INNER,
            eps=EPS,
            scaling=0.2,
            rotary_dim=ROTATED,
            interleaved=interleaved,
        )
        self._table = np.arange(12, dtype=np.int32)[::-1].reshape(4, 3).copy()

    def begin(self) -> NativeStack:
        """Return the layer with an empty cache."""
        cache = NativeCacheLayer(self.library, LayerShape(1, RANK + ROTATED, RANK, latent=True), 12)
        weights = LayerWeights(
            qkv=self._qkv,
            out=self._out,
            gate_up=self._gate_up,
            down=self._down,
            cache=cache,
            latent=self._latent,
            input_norm=self.input_norm,
            mid_norm=self.input_norm,
        )
        return NativeStack(self.library, [weights], self._shape)

    def run(self, stack: NativeStack, rows: Tensor, pieces: list[tuple[int, int, int]]) -> Tensor:
        """Return what C makes of a step: of each piece where it begins and ends, and its slot."""
        starts, stops, slots = (np.array(each, dtype=np.int64) for each in zip(*pieces, strict=True))
        step = NativeStep(starts, stops, slots, self._table)
        at = torch.cat([torch.arange(start, stop) for start, stop, _ in pieces])
        tables = [
            each.repeat_interleave(2, 1) if self.interleaved else torch.cat((each, each), 1)
            for each in _tables(TOKENS)
        ]
        return stack.run(rows, *(each[at] for each in tables), step)

    def whole(self, rows: Tensor) -> Tensor:
        """Return the same of one sequence at once."""
        return self.run(self.begin(), rows, [(0, len(rows), 0)])

    def textbook(self, rows: Tensor) -> Tensor:
        """Return the same in float64, with each head's keys and values expanded."""
        x = rows.double()
        mixed = _normed(x, self.input_norm, EPS) @ self.into.double().T
        first, latent, shared = mixed.split((mixed.shape[1] - RANK - ROTATED, RANK, ROTATED), 1)
        if self.lowered:
            first = _normed(first, self.query_norm, 1e-2) @ self.made.double().T
        nope, turned = first.unflatten(1, (HEADS, -1)).split((NOPE, ROTATED), 2)
        latent = _normed(latent, self.latent_norm, 1e-3)
        keys = torch.einsum("tr,hnr->thn", latent, self.keys.double())
        values = torch.einsum("tr,hvr->thv", latent, self.values.double())
        scores = torch.einsum("qhn,khn->hqk", nope, keys)
        turned, shared = _rotated(turned, self.interleaved), _rotated(shared, self.interleaved)
        scores = (scores + torch.einsum("qhr,kr->hqk", turned, shared)) * 0.2
        unseen = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
        y = x + torch.einsum("hqk,khv->qhv", weights, values).flatten(1) @ self.out.double().T
        gates, ups = (_normed(y, self.input_norm, EPS) @ self.gate_up.double().T).chunk(2, -1)
        return y + (torch.nn.functional.silu(gates) * ups) @ self.down.double().T


@every_library
@every_form
@every_order
def test_layer_is_the_textbooks(library: Library, lowered: bool, interleaved: bool) -> None:
    layer = Paper(library, lowered=lowered, interleaved=interleaved)
    rows = drawn(TOKENS, HIDDEN, seed=20)
    found, expected = layer.whole(rows), layer.textbook(rows)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


@every_library
@every_form
@every_kind
@settings(max_examples=15, deadline=None)
@given(inner=st.sets(st.integers(1, TOKENS - 1), max_size=5), others=st.integers(0, 3))
def test_pieces_and_who_is_beside_them_change_no_bit(
    library: Library, lowered: bool, kind: WeightKind, inner: set[int], others: int
) -> None:
    layer = Paper(library, lowered=lowered, interleaved=True, kind=kind)
    rows = drawn(TOKENS, HIDDEN, seed=20)
    stack, found = layer.begin(), []
    for at, (start, stop) in enumerate(pairwise([0, *sorted(inner), TOKENS])):
        beside = [(at, at + 1, 1 + each) for each in range(others)]
        before = drawn(others, HIDDEN, seed=30 + at)
        step = layer.run(stack, torch.cat([before, rows[start:stop]]), [*beside, (start, stop, 0)])
        found.append(step[others:])
    assert torch.equal(torch.cat(found), layer.whole(rows))


@every_library
def test_parts_that_do_not_fit_are_refused(library: Library) -> None:
    heads = [
        PackedHeads([PackedLinear.pack(library, drawn(n, k), None, WeightKind.FLOAT32)])
        for n, k in ((8, 4), (6, 7))
    ]
    with pytest.raises(AssertionError, match="sums of latents"):
        NativeLatentLayer(
            LatentWeights(
                queries=None,
                keys=heads[0],
                values=heads[1],
                latent_norm=drawn(8),
                latent_eps=1e-6,
                rotated=2,
            )
        )
