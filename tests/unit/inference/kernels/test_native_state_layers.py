"""Layers of a stack that keep a state: right by float64, and the same bits in pieces and at once."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402

from inference.kernels.native import Library, PackedLinear, WeightKind  # noqa: E402
from inference.kernels.native_layers import LayerWeights, NativeStack, StackShape  # noqa: E402
from inference.kernels.native_recurrence import NativeStates, Recurrence  # noqa: E402
from inference.kernels.native_state import Convolution  # noqa: E402
from inference.kernels.native_state_layers import (  # noqa: E402
    NativeStateLayer,
    StateLayout,
    StateWeights,
)
from inference.kernels.state_parts import Heads  # noqa: E402
from tests.unit.inference.paged_attention import built, every_library  # noqa: E402
from tests.unit.inference.recurrences import Delta, Scan2, drawn, run_pieces  # noqa: E402

pytestmark = built
HIDDEN, INNER, TAPS, TOKENS = 48, 40, 4, 21
HEADS = Heads(2, 4, 16, 33)
VALUES = HEADS.values * HEADS.value_dim
KEYS = HEADS.keys * HEADS.key_dim
SHAPE = StackShape(hidden=HIDDEN, heads=0, kv_heads=0, head_dim=1, inner=INNER, eps=1e-6, scaling=1.0)
KINDS = ["delta", "mamba 2", "mamba 2, normalised", "convolution"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def _recurrence(kernels: NativeStates, kind: str) -> Delta | Scan2 | None:
    if kind == "convolution":
        return None
    return Delta(kernels, HEADS, TOKENS) if kind == "delta" else Scan2(kernels, HEADS, TOKENS)


class Paper:
    """A layer without norms, as the papers have it and as C has."""

    def __init__(self, library: Library, kind: str) -> None:
        self.kind = kind
        self.of = _recurrence(NativeStates(library), kind)
        self.norm = 1 + drawn(VALUES, seed=11) / 4 if kind.endswith("normalised") else None
        channels = HIDDEN if self.of is None else HEADS.channels
        self.layout = self._layout()
        self.kernel, self.bias = drawn(channels, TAPS, seed=12), drawn(channels, seed=13)
        outputs = HIDDEN if self.of is None else VALUES
        self.into = drawn(self.layout.width, HIDDEN, seed=14) / 7
        self.out, self.gate_up = drawn(HIDDEN, outputs, seed=15) / 7, drawn(2 * INNER, HIDDEN, seed=16) / 7
        self.down = drawn(HIDDEN, INNER, seed=17) / 7
        recurrence: Recurrence | None = None
        if self.of is not None:
            own = self.of._rule if isinstance(self.of, Delta) else self.of._scan
            assert isinstance(own, Recurrence)
            recurrence = own
        self.state = NativeStateLayer(
            StateWeights(
                layout=self.layout,
                convolution=Convolution(library, self.kernel, self.bias, silu=self.of is not None),
                recurrence=recurrence,
                norm=self.norm,
                norm_size=VALUES // 2,
                norm_eps=1e-5,
            )
        )
        self.state.allocate(6)
        linears = (self.into, self.out, self.gate_up, self.down)
        qkv, out, gate_up, down = (
            PackedLinear.pack(library, each, None, WeightKind.FLOAT32) for each in linears
        )
        weights = LayerWeights(
            qkv=qkv, out=out, gate_up=gate_up, down=down, cache=None, state=self.state, rotary=None
        )
        self.stack = NativeStack(library, [weights], SHAPE)

    def _layout(self) -> StateLayout:
        if self.of is None:
            return StateLayout(width=3 * HIDDEN, before=0, behind=HIDDEN, mixed=2 * HIDDEN)
        channels = HEADS.channels
        at = {"width": channels + VALUES + 2 * HEADS.values, "mixed": 0, "gates": channels}
        if self.kind == "delta":
            at |= {"keys": KEYS, "values": 2 * KEYS, "shares": channels + VALUES}
            return StateLayout(**at, steps=channels + VALUES + HEADS.values)
        return StateLayout(**at, keys=VALUES, queries=VALUES + KEYS, steps=channels + VALUES)

    def run(self, rows: Tensor, pieces: list[tuple[int, int, int]]) -> Tensor:
        """Return what C makes of a step: of each piece how many tokens, and the places of its states."""
        return run_pieces(self.stack, rows, pieces)

    def textbook(self, rows: Tensor) -> Tensor:
        """Return the same in float64."""
        at, x = self.layout, rows.double() @ self.into.double().T
        mixed = x[:, at.mixed : at.mixed + len(self.kernel)]
        if self.of is None:
            mixed = mixed * x[:, :HIDDEN]
        padded = torch.cat([mixed.new_zeros(TAPS - 1, mixed.shape[1]), mixed])
        found = sum(padded[j : j + len(rows)] * self.kernel[:, j].double() for j in range(TAPS)) + self.bias
        found = (
            found * x[:, HIDDEN : 2 * HIDDEN]
            if self.of is None
            else self._recurred(found.sigmoid() * found, x)
        )
        y = rows.double() + found @ self.out.double().T
        gates, ups = (y @ self.gate_up.double().T).chunk(2, -1)
        return y + (torch.nn.functional.silu(gates) * ups) @ self.down.double().T

    def _recurred(self, mixed: Tensor, x: Tensor) -> Tensor:
        of, at, heads = self.of, self.layout, HEADS.values
        gates = x[:, at.gates : at.gates + VALUES]
        assert of is not None
        of.x, of.steps = mixed, x[:, at.steps : at.steps + heads]
        if isinstance(of, Delta):
            of.gates, of.shares = gates, x[:, at.shares : at.shares + heads]
            return 1.0 * of.textbook()
        found = of.textbook() * torch.nn.functional.silu(gates)
        if self.norm is None:
            return found
        halves = found.unflatten(1, (2, -1))
        return (halves / (halves.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(1) * self.norm


@every_library
@every_kind
def test_layer_is_the_textbooks(library: Library, kind: str) -> None:
    layer, rows = Paper(library, kind), drawn(TOKENS, HIDDEN, seed=20)
    found, expected = layer.run(rows, [(TOKENS, -1, 0)]), layer.textbook(rows)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


@every_library
@every_kind
@settings(max_examples=15)
@given(inner=st.sets(st.integers(1, TOKENS - 1), max_size=5), others=st.integers(0, 3))
def test_pieces_and_who_is_beside_them_change_no_bit(
    library: Library, kind: str, inner: set[int], others: int
) -> None:
    layer, rows = Paper(library, kind), drawn(TOKENS, HIDDEN, seed=20)
    whole = layer.run(rows, [(TOKENS, -1, 0)])
    found = []
    for at, (start, stop) in enumerate(pairwise([0, *sorted(inner), TOKENS])):
        beside = [(1, -1, 2 + each) for each in range(others)]
        before = drawn(others, HIDDEN, seed=30 + at)
        piece = (stop - start, at % 2 if at else -1, 1 - at % 2)
        found.append(layer.run(torch.cat([before, rows[start:stop]]), [*beside, piece])[others:])
    assert torch.equal(torch.cat(found), whole)


@every_library
def test_parts_that_do_not_fit_are_refused(library: Library) -> None:
    convolve = Convolution(library, drawn(8, 4), None, silu=False)
    layout = StateLayout(width=23, before=0, behind=8, mixed=16)
    with pytest.raises(AssertionError):
        NativeStateLayer(StateWeights(layout=layout, convolution=convolve))
