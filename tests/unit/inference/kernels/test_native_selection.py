"""Mamba as a layer of a stack: right by float64, and the same bits in pieces and at once."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402

from inference.kernels.native import Library, PackedLinear, WeightKind  # noqa: E402
from inference.kernels.native_layers import LayerWeights, NativeStack, StackShape  # noqa: E402
from inference.kernels.native_recurrence import MambaScan, NativeStates  # noqa: E402
from inference.kernels.native_selection import Selection  # noqa: E402
from inference.kernels.native_state import Convolution  # noqa: E402
from inference.kernels.native_state_layers import (  # noqa: E402
    NativeStateLayer,
    StateLayout,
    StateWeights,
)
from inference.kernels.state_parts import Heads  # noqa: E402
from tests.unit.inference.paged_attention import built, every_library  # noqa: E402
from tests.unit.inference.recurrences import Scan, drawn, run_pieces  # noqa: E402

pytestmark = built
HIDDEN, CHANNELS, KEYS, RANK, TAPS, TOKENS = 48, 132, 16, 5, 4, 21
SIZES = (RANK, KEYS, KEYS)
HEADS = Heads(1, 4, KEYS, CHANNELS // 4)
EPS = 1e-5
every_form = pytest.mark.parametrize("normalised", [False, True])


class Paper:
    """Such a layer without an MLP and norms of its own, as the paper has it and as C has."""

    def __init__(self, library: Library, *, normalised: bool) -> None:
        self.of = Scan(NativeStates(library), HEADS, TOKENS)
        scan = self.of._scan
        assert isinstance(scan, MambaScan)
        self.norms = tuple(1 + drawn(n, seed=40 + n) / 4 for n in SIZES) if normalised else None
        self.kernel, self.bias = drawn(CHANNELS, TAPS, seed=12), drawn(CHANNELS, seed=13)
        self.into, self.out = drawn(2 * CHANNELS, HIDDEN, seed=14) / 7, drawn(HIDDEN, CHANNELS, seed=15) / 11
        self.projects = drawn(sum(SIZES), CHANNELS, seed=16) / 11
        self.widens = drawn(CHANNELS, RANK, seed=17) / 2
        packed = [
            PackedLinear.pack(library, each, None, WeightKind.FLOAT32)
            for each in (self.into, self.out, self.projects, self.widens)
        ]
        selection = Selection(
            projects=packed[2],
            widens=packed[3],
            scan=scan,
            norms=self.norms,
            eps=EPS,
        )
        self.state = NativeStateLayer(
            StateWeights(
                layout=StateLayout(width=2 * CHANNELS, mixed=0, gates=CHANNELS),
                convolution=Convolution(library, self.kernel, self.bias, silu=True),
                selection=selection,
            )
        )
        self.state.allocate(6)
        weights = LayerWeights(
            qkv=packed[0],
            out=packed[1],
            gate_up=None,
            down=None,
            cache=None,
            state=self.state,
            rotary=None,
        )
        shape = StackShape(hidden=HIDDEN, heads=0, kv_heads=0, head_dim=1, inner=0, eps=EPS, scaling=1.0)
        self.stack = NativeStack(library, [weights], shape)

    def run(self, rows: Tensor, pieces: list[tuple[int, int, int]]) -> Tensor:
        """Return what C makes of a step: of each piece how many tokens, and the places of its states."""
        return run_pieces(self.stack, rows, pieces)

    def textbook(self, rows: Tensor) -> Tensor:
        """Return the same in float64."""
        mixed, gates = (rows.double() @ self.into.double().T).chunk(2, -1)
        padded = torch.cat([mixed.new_zeros(TAPS - 1, CHANNELS), mixed])
        found = sum(padded[j : j + len(rows)] * self.kernel[:, j].double() for j in range(TAPS)) + self.bias
        x = found.sigmoid() * found
        parts = list((x @ self.projects.double().T).split(SIZES, -1))
        for at, norm in enumerate(self.norms or ()):
            parts[at] = parts[at] / (parts[at].square().mean(-1, keepdim=True) + EPS).sqrt() * norm
        of = self.of
        of.x, of.gates, of.steps = x, gates, parts[0] @ self.widens.double().T
        of.into, of.by = parts[1:]
        return rows.double() + of.textbook() @ self.out.double().T


@every_library
@every_form
def test_layer_is_the_textbooks(library: Library, normalised: bool) -> None:
    layer, rows = Paper(library, normalised=normalised), drawn(TOKENS, HIDDEN, seed=20)
    found, expected = layer.run(rows, [(TOKENS, -1, 0)]), layer.textbook(rows)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


@every_library
@every_form
@settings(max_examples=15)
@given(inner=st.sets(st.integers(1, TOKENS - 1), max_size=5), others=st.sampled_from([0, 1, 3, 400]))
def test_pieces_and_who_is_beside_them_change_no_bit(
    library: Library, normalised: bool, inner: set[int], others: int
) -> None:
    layer, rows = Paper(library, normalised=normalised), drawn(TOKENS, HIDDEN, seed=20)
    whole = layer.run(rows, [(TOKENS, -1, 0)])
    found = []
    for at, (start, stop) in enumerate(pairwise([0, *sorted(inner), TOKENS])):
        before = drawn(others, HIDDEN, seed=30 + at)
        piece = (stop - start, at % 2 if at else -1, 1 - at % 2)
        beside = [(others, -1, 2)] if others else []
        found.append(layer.run(torch.cat([before, rows[start:stop]]), [*beside, piece])[others:])
    assert torch.equal(torch.cat(found), whole)


@every_library
def test_parts_that_do_not_fit_are_refused(library: Library) -> None:
    paper = Paper(library, normalised=False)
    selection = paper.state.weights.selection
    assert selection is not None
    for norms in (None, (torch.ones(RANK + 1), torch.ones(KEYS), torch.ones(KEYS))):
        widens = selection.widens if norms else selection.projects
        broken = Selection(projects=selection.projects, widens=widens, scan=selection.scan, norms=norms)
        with pytest.raises(AssertionError):
            broken.check(CHANNELS)
